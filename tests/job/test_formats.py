"""The default format without PyTorch: what it takes, what it refuses, and that loading runs nothing.

`saved_before` holds checkpoints as 0.1.0 writes them. With PyTorch: test_torch_formats.py.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import sys
from collections import Counter, OrderedDict, deque
from pathlib import Path
from typing import Any

import pytest

from gpuwarden_job import CheckpointStore, Ranks, Refused, SaveFailed, Undecodable, capture, load_trusted, restore
from support.job_world import EXAMPLES, ended, start, together

BEFORE = Path(__file__).parent / "saved_before"


@pytest.fixture(autouse=True)
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unload torch, as in a job that has not loaded it, whatever another test of this process did."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)


class Part:
    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"rows": [{"value": self.value}]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["rows"][0]["value"]


class MakesAFolder:
    """What a forged checkpoint would hold."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def of(folder: Path, **options: Any) -> CheckpointStore:
    return CheckpointStore(folder, ranks=Ranks(), **options)


def loaded(store: CheckpointStore) -> Any:
    latest_checkpoint = store.load_latest()
    assert latest_checkpoint is not None
    return latest_checkpoint.state


def test_a_state_is_plain_and_its_random_numbers_go_on() -> None:
    saved = json.loads(json.dumps(capture(step=3, samples=24, world=1, model=Part(1.5))))
    wanted = [random.random(), random.gauss(0, 1)]
    part = Part(None)
    assert restore(saved, model=part) == (3, 24)
    assert part.value == 1.5
    assert [random.random(), random.gauss(0, 1)] == wanted


@pytest.mark.parametrize(
    "value",
    [
        {"a": (1, -2.5, None, True, "x" * 300)}, OrderedDict(b=[{}]), b"bytes", bytearray(b"more"), "\ud800", -(1 << 64), float("inf"), {1, 2}, frozenset({3}),
        1j, range(5), Counter("aab"), deque([1, 2], maxlen=2), 1 << 3000,
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_plain_values_come_back_as_they_were(tmp_path: Path, value: Any) -> None:
    of(tmp_path).save({"value": value}, 1)
    restored_value = loaded(of(tmp_path))["value"]
    assert (type(restored_value), restored_value) == (type(value), value)


@pytest.mark.parametrize(
    "value",
    [Part(1), Path("x"), random.Random(1), print, [str]],
    ids=["class", "path", "generator", "function", "type"],
)
@pytest.mark.parametrize("beside", [False, True], ids=["save", "save_async"])
def test_a_part_that_a_restart_could_not_load_is_refused_at_once_and_named(
    tmp_path: Path, value: Any, beside: bool
) -> None:
    store = of(tmp_path)
    store.save(capture(step=1, samples=8, world=1, model=Part(1), sampler=Part(2)), 1)
    state = capture(step=2, samples=16, world=1, model=Part(1), sampler=Part(value))
    save = store.save_async if beside else store.save
    with pytest.raises(Refused, match=r"step 2 was not saved.*the part sampler holds .* at \['rows'\]\[0\]\['value'\]"):
        save(state, 2)
    store.flush()
    assert [checkpoint.step for checkpoint in store.saved()] == [1]
    assert loaded(store)["step"] == 1
    assert not list(tmp_path.glob(".*")), "nothing was begun"


def test_with_a_format_of_its_own_a_job_saves_what_it_likes(tmp_path: Path) -> None:
    store = of(tmp_path, dump=pickle.dump, load=load_trusted)
    store.save(Path("x"), 1)
    assert loaded(store) == Path("x")


def test_one_rank_s_shard_that_is_refused_costs_this_save_and_no_other(tmp_path: Path) -> None:
    def run(ranks: Ranks) -> tuple[type, Any]:
        store = CheckpointStore(tmp_path, ranks=ranks, sharded=True)
        store.save(ranks.rank, 1)
        with pytest.raises(SaveFailed) as failed:
            store.save(Path("x") if ranks.rank == 1 else ranks.rank, 2)
        return failed.type, loaded(store)

    assert together(3, run) == [(SaveFailed, 0), (Refused, 1), (SaveFailed, 2)]
    assert not list(tmp_path.glob(".*"))


def test_loading_runs_nothing_that_a_checkpoint_brings_unless_it_is_trusted(tmp_path: Path) -> None:
    folder, made = tmp_path / "saved", tmp_path / "made"
    of(folder, dump=pickle.dump).save({"parts": MakesAFolder(made)}, 1)
    with pytest.raises(Undecodable, match=r"perhaps a pickle.*trust.*load it once with .*load=load_trusted"):
        of(folder).load_latest()
    assert not made.exists()
    of(folder, load=load_trusted).load_latest()
    assert made.exists()


def test_a_pickle_from_before_is_resumed_by_the_example_as_it_was_once_it_was_trusted(tmp_path: Path) -> None:
    folder = tmp_path / "from before"
    shutil.copytree(BEFORE / "plain", folder)
    with pytest.raises(Undecodable, match=r"perhaps a pickle.*load=load_trusted"):
        of(folder).load_latest()
    of(folder).save(loaded(of(folder, load=load_trusted)), 10)
    ends = []
    for name in ("from before", "from now"):
        code, output = ended(
            start(
                EXAMPLES / "train.py", "--folder", tmp_path / name, "--steps", "30", "--save-every", "10",
                "--markers", tmp_path / "markers", run_dir=tmp_path,
            )
        )  # fmt: skip
        assert code == 0, output
        ends.append(output.splitlines())
    assert (ends[0][0], ends[1][0]) == ("begins at step 10", "begins at step 0")
    assert ends[0][-1] == ends[1][-1]


def test_a_checkpoint_of_torch_names_what_it_needs_where_torch_is_not_loaded(tmp_path: Path) -> None:
    shutil.copytree(BEFORE / "torch", tmp_path / "saved")
    with pytest.raises(Undecodable, match="torch wrote it: import torch before loading"):
        of(tmp_path / "saved").load_latest()
