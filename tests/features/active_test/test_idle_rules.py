"""When a node is tested while it is idle, and what Slurm must be set to for it: the rules alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.doctor.row import Grade
from gpuwarden.features.active_test.idle.job import IdleJob, minutes
from gpuwarden.features.active_test.idle.power_saving import read_suspend_time, shown_suspend_time
from gpuwarden.features.active_test.idle.preemption import missing
from gpuwarden.features.active_test.idle.submit import unfit
from gpuwarden.features.active_test.idle.user import NoSuchSubmitter, submits_as
from gpuwarden.features.active_test.idle.wanted import last_tested, not_due
from gpuwarden.features.slurm.settings import epilog, epilog_test
from gpuwarden.publish.times import rfc3339
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.slurm.facts import NodeFacts
from gpuwarden_collectors.slurm.parse import shown_node
from gpuwarden_collectors.slurm.settings import parse_partitions

NOW, DAY, HOUR = 1_800_000_000.0, 86_400.0, 3_600.0
KEYS = {"PreemptType": "preempt/partition_prio", "PreemptMode": "CANCEL", "PreemptExemptTime": "00:00:00"}
USERS = "PartitionName=gpu Nodes=n[1-3] PriorityTier=1 PreemptMode=OFF GraceTime=0 MaxTime=UNLIMITED State=UP"
TESTS = "PartitionName=gwtest Nodes=n[1-3] PriorityTier=0 PreemptMode=CANCEL GraceTime=0 MaxTime=00:30:00 State=UP"
IDLE = NodeFacts(name="n1", base="idle", partitions=("gpu", "gwtest"), gpus=8)


def lacking(keys: Mapping[str, str] = KEYS, users: str = USERS, tests: str = TESTS, node: str = "n1") -> str:
    return "; ".join(missing(keys, parse_partitions(f"{users}\n{tests}\n"), "gwtest", node, 600.0))


def test_a_partition_of_the_lowest_tier_that_is_cancelled_at_once_will_do() -> None:
    assert lacking() == ""
    assert lacking(tests=TESTS.replace("CANCEL", "REQUEUE")) == ""
    assert lacking(KEYS | {"PreemptMode": "GANG,SUSPEND"}) == ""


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"keys": KEYS | {"PreemptType": "preempt/none"}}, "PreemptType=preempt/partition_prio (found preempt/none)"),
        ({"keys": KEYS | {"PreemptType": "preempt/qos"}}, "PreemptType=preempt/partition_prio (found preempt/qos)"),
        ({"keys": KEYS | {"PreemptMode": "OFF"}}, "PreemptMode=CANCEL (found OFF)"),
        ({"keys": KEYS | {"PreemptExemptTime": "00:10:00"}}, "PreemptExemptTime=00:00:00 (found 00:10:00"),
        ({"tests": ""}, "PartitionName=gwtest Nodes=n1 PriorityTier=0 PreemptMode=CANCEL GraceTime=0"),
        ({"node": "n9"}, "PartitionName=gwtest Nodes=n[1-3],n9 (it does not have n9)"),
        ({"tests": TESTS.replace("CANCEL", "SUSPEND")}, "PartitionName=gwtest PreemptMode=CANCEL (found SUSPEND)"),
        ({"tests": TESTS.replace("GraceTime=0", "GraceTime=30")}, "PartitionName=gwtest GraceTime=0 (found 30"),
        ({"tests": TESTS.replace("Tier=0", "Tier=1")}, "PartitionName=gwtest PriorityTier=0 (found 1)"),
        ({"users": USERS.replace("Tier=1", "Tier=0")}, "PartitionName=gpu PriorityTier=1 (found 0 at gpu"),
        ({"tests": TESTS.replace("00:30", "00:05")}, "PartitionName=gwtest MaxTime=10 (found 300 s"),
        ({"tests": TESTS.replace("State=UP", "State=DOWN")}, "PartitionName=gwtest State=UP"),
    ],
)
def test_what_is_missing_for_preemption_is_named_as_a_line_of_slurm_conf(changed: dict[str, Any], line: str) -> None:
    assert line in lacking(**changed)


SAVES = {"SuspendProgram": "/usr/sbin/off", "SuspendTime": "300 sec"}


@pytest.mark.parametrize(
    ("node", "keys", "why"),
    [
        ({}, {}, ""),
        ({"flags": frozenset({"dynamic_norm"})}, {}, ""),
        ({"base": "mixed"}, {}, "mixed, not idle"),
        *(({"flags": frozenset({flag})}, {}, f"idle+{flag}, not idle") for flag in (
            "drain", "maint", "reserved", "planned", "powered_down", "powering_down", "powering_up", "power_down",
            "not_responding", "completing", "reboot_requested", "something_new")),
        ({"flags": frozenset({"cloud"})}, {}, "a node of a cloud"),
        ({"gpus": 0}, {}, "Slurm has no GPU of n1"),
        ({}, SAVES, "power saving switches n1 off when it is idle (SuspendTime 300 sec)"),
        ({}, {"SuspendTime": "300 sec"}, ""),
        ({}, SAVES | {"SuspendTime": "INFINITE"}, ""),
        ({}, SAVES | {"SuspendExcNodes": "n[1-2]"}, ""),
        ({}, SAVES | {"SuspendExcNodes": "n[1-2]:1"}, "power saving"),
        ({}, SAVES | {"SuspendExcNodes": "n2"}, "power saving"),
        ({}, SAVES | {"SuspendExcParts": "debug,gpu"}, ""),
    ],
)  # fmt: skip
def test_only_a_node_that_is_idle_and_stays_on_is_tested(node: dict[str, Any], keys: dict[str, str], why: str) -> None:
    facts = {name: getattr(IDLE, name) for name in ("name", "base", "flags", "partitions", "gpus")} | node
    reason = unfit(NodeFacts(**facts), keys, parse_partitions(USERS))
    assert why in reason if why else not reason


def test_a_partition_has_a_suspend_time_of_its_own() -> None:
    partitions = parse_partitions(f"{USERS} SuspendTime=600")
    assert "SuspendTime of gpu 600" in unfit(IDLE, SAVES | {"SuspendTime": "INFINITE"}, partitions)


# The lines of src/api/node_info.c of Slurm 26.05, which was not run.
SHOWN = """NodeName=n1 Arch=x86_64 CoresPerSocket=1
   NodeAddr=127.0.0.1 NodeHostName=n1 Version=26.05.0
   State=IDLE ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   BootTime=2026-11-28T16:50:22 SlurmdStartTime=2026-11-28T17:24:01
   LastBusyTime=2026-11-28T17:24:01 ResumeAfterTime=None SuspendTime={}
   Comment=LastBusyTime=now SuspendTime=5
"""


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        ("600", "(SuspendTime in force for n1 600)"),
        ("INFINITE", ""),
        ("-2", "(SuspendTime 300 sec)"),  # not set
    ],
)
def test_what_the_controller_shows_for_the_node_counts_alone(shown: str, why: str) -> None:
    reason = unfit(IDLE, SAVES, parse_partitions(USERS), shown_suspend_time(SHOWN.format(shown)))
    assert why in reason if why else not reason


async def test_the_controller_is_asked_for_it_only_where_nodes_are_switched_off_and_have_one() -> None:
    asked: list[tuple[str, ...]] = []

    class Asked:
        async def ask(self, undone: str, *words: str) -> str:
            assert undone
            asked.append(words)
            return SHOWN.format("600")

    commands: Any = Asked()
    for version, program in (("24.11.5", "/usr/sbin/off"), ("26.05.0", "(null)"), ("", "/usr/sbin/off")):
        keys = {"SLURM_VERSION": version, "SuspendProgram": program}
        assert await read_suspend_time(commands, IDLE, keys) == ""
    newer = SAVES | {"SLURM_VERSION": "26.05.1"}
    assert await read_suspend_time(commands, IDLE, newer | {"SuspendExcNodes": "n[1-9]"}) == ""
    assert not asked
    assert await read_suspend_time(commands, IDLE, newer) == "600"
    assert asked == [("scontrol", "--local", "--all", "show", "node", "n1")]


def status(*results: tuple[str, float, str], gpus: int = 1) -> dict[str, Any]:
    """Return a status with GPUs that were tested at a level that many seconds ago, with a result."""
    return {
        "gpus": [{"uuid": f"GPU-{n}", "pci_bus_id": f"0000:0{n}:00.0", "present": True} for n in range(gpus)],
        "tests": {"results": [
            {"uuid": "GPU-0", "level": level, "at": rfc3339(NOW - ago), "result": result} for level, ago, result in results
        ]},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("document", "due"),
    [
        (status(), True),
        (status(("quick", DAY - HOUR, "nothing_found")), False),
        (status(("quick", DAY + HOUR, "nothing_found")), True),
        (status(("standard", HOUR, "warning")), False),
        (status(("gate", HOUR, "nothing_found")), True),
        (status(("quick", HOUR, "nothing_found"), gpus=2), True),
        (status(("quick", 2 * HOUR, "no_verdict")), False),
        (status(("quick", 4 * HOUR, "no_verdict")), True),
        (status(gpus=0), False),
    ],
)
def test_a_test_is_due_where_a_gpu_has_no_result_of_the_level_that_is_new_enough(
    document: dict[str, Any], *, due: bool
) -> None:
    times = last_tested(document, Level.QUICK, DAY, NOW)
    assert (not_due(times, Level.QUICK, DAY, NOW) == "") is due
    assert (None in times.values()) is due


def test_a_clock_that_was_set_back_does_not_put_off_tests_for_ever() -> None:
    times = last_tested(status(("quick", -2 * DAY, "nothing_found")), Level.QUICK, DAY, NOW)
    assert not_due(times, Level.QUICK, DAY, NOW) == ""


def test_the_job_is_exclusive_bounded_and_never_started_twice() -> None:
    job = IdleJob(
        node="n1",
        gpus=8,
        partition="gwtest",
        level=Level.QUICK,
        parallel=8,
        config=None,
        run_dir=Path("/run/gpuwarden"),
        account="ops",
    )
    words = job.command()
    for word in ("--exclusive", "--gres=gpu:8", "--nodelist=n1", "--no-requeue", "--account=ops", "--export=NIL"):
        assert word in words
    assert f"--time={minutes(Level.QUICK, 8, 8)}" in words
    assert f"--deadline=now+{minutes(Level.QUICK, 8, 8) * 60 + 120}seconds" in words
    assert job.script().splitlines()[-1].startswith("exec ")


def test_jobs_are_submitted_as_a_user_whom_the_daemon_believes() -> None:
    assert submits_as("root", 0) == ()
    with pytest.raises(NoSuchSubmitter, match="no user of this host"):
        submits_as("no-such-user-here", 0)
    with pytest.raises(NoSuchSubmitter, match="does not accept"):
        submits_as("nobody", 0)
    with pytest.raises(NoSuchSubmitter, match="run it as root"):
        submits_as("root", 65534)


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [("gpu:4", 4), ("gpu:h100:8(S:0-1)", 8), ("gpu", 1), ("gpu:a:2,gpu:b:3", 5), ("shard:16", 0), ("(null)", 0)],
)
def test_the_gpus_of_a_node_are_counted(gres: str, gpus: int) -> None:
    node = shown_node(f"NodeName=n1 Gres={gres} State=IDLE")
    assert (node.gpus, node.has_gpu) == (gpus, gpus > 0)


BOTH = "/x/gpuwarden-slurm-epilog,/x/gpuwarden-slurm-epilog-test"


@pytest.mark.parametrize(
    ("keys", "grades"),
    [
        ({"Epilog": "/x/gpuwarden-slurm-epilog"}, []),
        ({"Epilog": BOTH, "Prolog": "/x/gpuwarden-slurm-prolog", "PrologEpilogTimeout": "65534"}, [Grade.OK]),
        ({"Epilog": BOTH, "Prolog": "/x/gpuwarden-slurm-prolog", "PrologEpilogTimeout": "20"}, [Grade.FAIL]),
        ({"Epilog": BOTH, "Prolog": "/x/gpuwarden-slurm-prolog", "EpilogTimeout": "30 sec"}, [Grade.FAIL]),
        ({"Epilog": BOTH}, [Grade.WARN]),
    ],
)
def test_slurm_leaves_the_epilogs_test_its_time(keys: dict[str, str], grades: list[Grade]) -> None:
    assert [row.grade for row in epilog_test(keys)] == grades


def test_the_epilogs_test_alone_is_not_taken_for_the_epilog() -> None:
    assert epilog({"Epilog": "/x/gpuwarden-slurm-epilog-test"}).grade is Grade.WARN
