"""Notifications of jobs that ended: only where names may leave the host, and only for what their owners did not do."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gpuwarden.config.notify import GROUPS
from gpuwarden.features.why.model import Cause
from gpuwarden.notify.messages import Origin, message
from support.jobs_ended import job_ended

ORIGIN = Origin(node="n1", mode="enforce", boot_id="b")


def document(cause: Cause, *, names: bool = True) -> dict[str, Any] | None:
    made = message(job_ended(cause=cause), ORIGIN, names=names)
    return None if made is None else json.loads(made[1].body)


@pytest.mark.parametrize("cause", Cause)
def test_a_job_is_notified_if_it_was_not_its_own_doing(cause: Cause) -> None:
    not_its_own = {Cause.HARDWARE, Cause.HOST, Cause.FABRIC, Cause.NOTICE, Cause.OTHER_NODE}
    assert (document(cause) is not None) == (cause in not_its_own)
    assert document(cause, names=False) is None


def test_a_job_that_may_have_ended_well_is_not_notified_for_what_is_only_possible() -> None:
    ended = job_ended(cause=Cause.FABRIC)
    of_another_node = {name: value for name, value in ended.data.items() if name not in ("state", "exit_code")}
    for certainty, is_notified in (("possible", False), ("likely", True)):
        event = replace(ended, data={**of_another_node, "certainty": certainty})
        assert (message(event, ORIGIN, names=True) is not None) is is_notified


def test_the_message_has_the_answer_and_not_the_whole_record() -> None:
    message = document(Cause.HARDWARE)
    assert message is not None
    assert (message["event"], message["group"], message["subject"]) == ("job_ended", "job", "job/slurm/4711")
    assert "finding" not in message
    assert message["data"] == {
        "user": "alice", "job_name": "train-70b", "state": "FAILED", "exit_code": 1, "cause": "hardware", "certainty": "likely",
        "sentence": "What ended slurm/4711 of alice.", "code": "xid.79", "slot": "0000:4e:00.0",
    }  # fmt: skip
    assert message["group"] in GROUPS
