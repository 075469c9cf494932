"""The program in the documentation that hands a node over to HyperPod: it asks Slurm about an exclusion for a failure, and nothing else."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from gpuwarden.health.memory import State, Track
from gpuwarden.health.model import Advice, Event, EventKind, Key, Latch, Severity, Subject
from gpuwarden.notify.messages import Origin, message
from gpuwarden.notify.repair import repair
from gpuwarden_collectors.facts import Stamp
from support.hyperpod import program

AT = Stamp(boottime=100.0, wall=1_772_366_400.25)
KEY = Key("xid", Subject("gpu", "0000:1b:00.0"), "95")
FAILED = Track(
    key=KEY, severity=Severity.FAILURE, advice=Advice.RESET_GPU, latch=Latch.NONE, evidence={}, first_seen=AT, last_seen=AT, raised=True
)  # fmt: skip
SHOWN = "NodeName=n1 State=IDLE+DRAIN Reason=gpuwarden: failure gpu=3 xid=95"


def event(kind: EventKind = EventKind.EXCLUDED, why: str = "failure", actuator: str = "slurm") -> Event:
    return Event(kind=kind, at=AT, boot_id="b", data={"actuator": actuator, "why": why, "reason": "gpuwarden: x"})


def commands(folder: Path, told: Event, shown: str = SHOWN) -> list[str]:
    """Return the calls of scontrol by the program that is told of this event on a node whose GPU has failed."""
    state = replace(State(), tracks={KEY: FAILED})
    notification = message(
        told, Origin(node="n1", mode="enforce", boot_id="b"), repair=repair(told, "n1", state, lambda _: False)
    )
    assert notification is not None
    (folder / "scontrol").write_text(f"#!/bin/sh\necho \"$*\" >>{folder}/asked\necho '{shown}'\n")
    (folder / "scontrol").chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}"}
    words = [str(program(folder))]
    subprocess.run(words, input=notification[1].body, env=environment, text=True, check=True, timeout=60)
    assert (folder / "calls").exists()
    return (folder / "asked").read_text().splitlines() if (folder / "asked").exists() else []


def test_an_exclusion_for_a_failure_hands_the_node_over(tmp_path: Path) -> None:
    assert commands(tmp_path, event()) == ["show node n1", "update NodeName=n1 State=FAIL Reason=Action:Reboot"]


@pytest.mark.parametrize(
    "told",
    [
        event(EventKind.INTENDED),
        event(why="operator"),
        event(why="termination"),
        event(EventKind.RESTORED),
        event(actuator="kubernetes"),
    ],
    ids=["what mode observe would do", "an operator's", "a termination", "a restoration", "another scheduler's"],
)
def test_nothing_else_asks_for_anything(tmp_path: Path, told: Event) -> None:
    assert commands(tmp_path, told) == []


def test_a_node_that_is_out_for_another_reason_by_now_is_left_alone(tmp_path: Path) -> None:
    assert commands(tmp_path, event(), "NodeName=n1 State=FAIL Reason=Action:Reboot") == ["show node n1"]
