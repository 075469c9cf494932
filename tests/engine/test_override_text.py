"""What `gpuwarden restore` says on a node with active failures: why, what jobs have to expect, and the way past them."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import pytest

from gpuwarden.actuators.base import ActuatorRefused
from gpuwarden.base.peer import Peer
from gpuwarden.control.orders import order_verbs
from gpuwarden.engine.enforcement import Enforcement
from gpuwarden.engine.override_text import FORCE, overridden, refusal, stays_out
from gpuwarden.health.model import NODE, Health, Subject, Verdict, gpu, link
from gpuwarden.publish.sockets.control import VerbError
from support.enforcement_rig import SETTINGS, Rig, rig_options
from support.policy_story import xid
from support.schedulers import Cluster, Node
from support.snapshots import UPTIME, at, finding, gpu_verdict, slot

ABSENT = "0000:ff:00.0"
VERDICT = Verdict(
    at=at(UPTIME), health=Health.FAILURE, gpus=(gpu_verdict(3), replace(gpu_verdict(5), index=None, slot=slot(5)))
)
NO_GPU = "no job can use any GPU of this node"
GO_ON = "jobs run, possibly degraded"
ROOT = Peer(1, 0, frozenset({0}))


@pytest.mark.parametrize(
    ("code", "subject", "effect"),
    [
        ("xid", gpu(slot(3)), "jobs that are given GPU 3 may fail, hang or compute wrong results"),
        ("xid", gpu(slot(5)), "jobs that are given that GPU may fail, hang or compute wrong results"),
        ("gpu_missing", gpu(ABSENT), "jobs that are given this GPU fail when they start"),
        ("gpu_missing", gpu(slot(3)), "jobs that are given this GPU fail when they start"),
        ("driver_unresponsive", NODE, NO_GPU),
        ("driver_not_loaded", NODE, NO_GPU),
        ("driver_library_mismatch", NODE, NO_GPU),
        ("nvml_unavailable", NODE, NO_GPU),
        ("nvlink_down", link(slot(3), 7), "jobs that use GPU 3 with others may hang, fail or run slowly"),
        ("memory_degrading", gpu(slot(3)), GO_ON),
        ("power_brake", gpu(slot(3)), GO_ON),
        ("fabric_manager_down", NODE, "any job on this node may fail"),
        ("xid", gpu(ABSENT), "any job on this node may fail"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_every_answer_lists_the_failure_with_what_it_means_for_jobs(code: str, subject: Subject, effect: str) -> None:
    failures = [finding(code, subject)]
    line = f"  {failures[0].key} (the title of {code}): {effect}"
    assert line in refusal(failures, VERDICT, enforce=True).splitlines()
    assert line in stays_out(failures, VERDICT, ["slurm: done"], done=True).splitlines()
    assert line in list(overridden(failures, VERDICT))


def test_of_many_failures_eight_are_listed_and_the_others_counted() -> None:
    failures = [finding("nvlink_down", link(slot(3), number)) for number in range(11)]
    for text in (
        refusal(failures, VERDICT, enforce=True),
        stays_out(failures, VERDICT, [], done=True),
        "\n".join(overridden(failures, VERDICT)),
    ):
        assert text.count("jobs that use GPU 3 with others") == 8
        assert "  and 3 more: gpuwarden status lists them" in text.splitlines()
    assert next(overridden(failures, VERDICT)).endswith("overridden: jobs start despite 11 active failures:")


def test_a_failure_that_is_only_remembered_is_named_so_and_the_advice_is_to_wait() -> None:
    failures = [replace(finding("xid", gpu(slot(3))), confirmed=False)]
    text = refusal(failures, VERDICT, enforce=True)
    assert "(the title of xid, remembered from before gpuwarden started)" in text
    assert "try again then" in text
    assert "gpuwarden ack" not in text


# --- with the exit code


@dataclass
class Service:
    enforcement: Enforcement
    verdict: Verdict

    async def jobs_signalled(self) -> str:
        return ""


async def refused(rig: Rig) -> tuple[int, str]:
    """Order a restoration; return the exit code of the command and what it prints."""
    verbs = order_verbs(Service(rig.enforcement, rig.verdict), name_of, rig.clock)
    try:
        answer = await verbs["restore"]({}, ROOT)
    except VerbError as error:
        answer = error
    assert isinstance(answer, VerbError)
    return answer.code, str(answer)


async def name_of(_uid: int) -> str:
    return "alice"


def rig_of(*, enforce: bool) -> Rig:
    settings = replace(SETTINGS, enforce=enforce)
    return Rig(Cluster(time.time, {"n1": Node()}), options=rig_options(settings=settings))


@pytest.mark.parametrize(
    ("enforce", "first"),
    [
        (True, "nothing was restored: active failures keep this node out of scheduling"),
        (False, "nothing was restored: this node has active failures"),
    ],
    ids=["enforce", "observe"],
)
async def test_a_refusal_exits_with_64_and_names_the_way_past_the_failures(*, enforce: bool, first: str) -> None:
    rig = rig_of(enforce=enforce)
    rig.enforcement.run()
    rig.passes(xid())
    code, text = await refused(rig)
    assert (code, text.splitlines()[0]) == (64, first)
    assert text.endswith(f"; to start jobs here despite them: {FORCE}")
    assert FORCE == "gpuwarden restore --force"
    await rig.kill()


async def test_an_operator_s_exclusion_that_ends_over_a_failure_exits_with_1_and_names_the_way_past_it() -> None:
    rig = rig_of(enforce=True)
    rig.enforcement.run()
    await rig.enforcement.orders.exclude("alice", "replacing a fan")
    rig.passes(xid())
    code, text = await refused(rig)
    assert (code, text.splitlines()[0]) == (
        1,
        "the operator's exclusion has ended, and the node stays out for active failures; fake: done",
    )
    assert text.endswith(f"; to start jobs here despite them: {FORCE}")
    await rig.kill()


async def test_a_node_that_a_scheduler_refuses_to_take_out_is_not_called_out() -> None:
    rig = rig_of(enforce=True)
    rig.enforcement.run()
    await rig.enforcement.orders.exclude("alice", "replacing a fan")
    rig.client.away = ActuatorRefused("cannot drain n1: Invalid user id")
    rig.passes(xid())
    code, text = await refused(rig)
    assert (code, text.splitlines()[0]) == (
        1,
        "the operator's exclusion has ended, and the node is to stay out for active failures; fake: refused: cannot drain n1: Invalid user id",
    )
    await rig.kill()
