"""What a real nv-hostengine 4.6.0 answered in some stories, and that the double of its bindings answers the same."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuwarden_collectors.dcgm.bindings import open_bindings
from gpuwarden_collectors.dcgm.incidents import xid_and_link
from support.dcgm import BINDINGS, FakeDcgm
from support.dcgm_rig import DoubleRig
from support.dcgm_stories import STORIES
from support.quick import first_quick

RECORDED = Path(__file__).parents[1] / "data" / "dcgm-4.6.0"


def recorded(name: str) -> Any:
    return json.loads((RECORDED / f"{name}.json").read_text())


def without_texts(answer: Any) -> Any:
    return {key: each for key, each in answer.items() if key != "texts"} if isinstance(answer, dict) else answer


@pytest.mark.parametrize("story", first_quick(5, STORIES))
def test_the_double_answers_as_the_real_engine_did(story: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in FakeDcgm(tmp_path).environment.items():
        monkeypatch.setenv(name, value)
    answers: list[tuple[str, Any]] = []
    with DoubleRig(tmp_path) as rig:
        STORIES[story](rig, lambda step, answer: answers.append((step, json.loads(json.dumps(answer)))))
    steps = recorded(story)
    assert [step for step, _ in answers] == [each["step"] for each in steps]
    for (step, answer), real in zip(answers, steps, strict=True):
        assert without_texts(answer) == without_texts(real["answer"]), step


def test_the_classes_and_numbers_of_errors_are_the_real_ones() -> None:
    structs = open_bindings(BINDINGS).structs
    errors = recorded("errors")
    assert {name: number for name, (number, _) in errors.items()} == structs.CODES
    texts = dict(errors.values())
    assert {number: str(structs.DCGMError(number)) for number in structs.TEXTS} == {n: texts[n] for n in structs.TEXTS}


def test_the_xid_is_read_from_the_texts_that_the_engine_writes() -> None:
    (step,) = (each["answer"] for each in recorded("xids") if each["step"] == "many Xids")
    texts = (SimpleNamespace(error=SimpleNamespace(code=101, msg=text)) for text in step["texts"])
    incidents = step["reader"]["incidents"]
    assert {xid_and_link(text)[0] for text in texts} == {incident["xid"] for incident in incidents}
    assert len(incidents) > 20
