"""The program of a site as an actuator: what it may answer, and what is made of that."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwarden.actuators.base import ActuatorError, ActuatorRefused, ActuatorUnavailable
from gpuwarden.actuators.program import ExecActuator
from gpuwarden.actuators.registry import NoCounter
from gpuwarden.config.exec import Program
from gpuwarden.policy.model import Owner
from gpuwarden_collectors.base import host_clock

FAILED = "gpuwarden: failure gpu=3 xid=79"
PATIENCE = 60.0


def answering(folder: Path, answer: str, code: int = 0, timeout: float = PATIENCE) -> ExecActuator:
    (folder / "answer").write_text(answer)
    program = folder / "lb"
    program.write_text(f"#!/bin/sh\ncat {folder}/answer\nexit {code}\n")
    program.chmod(0o700)
    return ExecActuator(
        Program(command=(str(program),), timeout=timeout), node="n1", boot_id="b",
        counter=NoCounter("n1", allowed=True), clock=host_clock,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "owner", "reason"),
    [
        ('{"excluded":false}', Owner.NONE, ""),
        (f'{{"excluded":true,"reason":"{FAILED}","since":1772366400,"pool":"gpu"}}', Owner.OURS, FAILED),
        ('{"excluded":true,"reason":"rack\\u001b[2J move"}', Owner.FOREIGN, "rack (2J move"),
        ('{"excluded":true}', Owner.FOREIGN, ""),
    ],
)
async def test_the_owner_of_an_exclusion_follows_from_its_reason(
    tmp_path: Path, answer: str, owner: Owner, reason: str
) -> None:
    node_state = await answering(tmp_path, answer).read()
    assert (node_state.owner, node_state.reason) == (owner, reason)


ODD = {
    "nothing": "",
    "no object": "[]",
    "no answer to the question": "{}",
    "a string for it": '{"excluded":"no"}',
    "a time without end": f'{{"excluded":true,"since":{"9" * 400}}}',
    "no number": '{"excluded":true,"since":NaN}',
    "deep": "[" * 16_000,
    "a flood": " " * 1_000_000 + '{"excluded":false}',
}


@pytest.mark.parametrize("answer", ODD.values(), ids=ODD)
async def test_an_invalid_response_is_an_error_that_names_the_expected_form(tmp_path: Path, answer: str) -> None:
    with pytest.raises(ActuatorUnavailable, match=r'expected \{"excluded":false\}'):
        await answering(tmp_path, answer).read()


@pytest.mark.parametrize(("code", "error"), [(77, ActuatorRefused), (127, ActuatorRefused), (1, ActuatorUnavailable)])
async def test_the_exit_code_decides_whether_a_person_must_intervene(
    tmp_path: Path, code: int, error: type[ActuatorError]
) -> None:
    with pytest.raises(error, match=f"cannot look n1: .*lb exits with {code}: no such pool"):
        await answering(tmp_path, "no such pool", code).read()
