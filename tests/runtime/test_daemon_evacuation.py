"""A training on two nodes of a real Slurm, one of which is about to end: signalled, saved, requeued, running elsewhere in time."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from typing import Any

import pytest

from support.daemons import RunningDaemon
from support.slurm import CONTROLLER, SLURM_BESIDE, Slurm
from support.slurm_hanging import HangingCommands
from support.slurm_hosts import SlurmHost, remove
from support.slurm_trainings import Training

pytestmark = SLURM_BESIDE

OWN_SIGNAL = "USR1"
"""Declared by a job, so that its ranks can distinguish our signal from the SIGTERM with which Slurm ends what it requeues."""
SOONER = "60s"
"""The end of a machine that was announced for later: the job is requeued soon, though the controller had the most time to signal it."""


@pytest.fixture
def hosts(slurm: Slurm) -> Iterator[dict[str, SlurmHost]]:
    """Yield a host for each node, in folders that the users of jobs can reach."""
    folder = slurm.folder / "hosts"
    made = {}
    for node in slurm.names:
        (folder / node).mkdir(parents=True)
        made[node] = SlurmHost(folder / node, slurm, node)
        made[node].seclude()
    yield made
    remove(folder)


def ends(host: SlurmHost, within: str) -> None:
    done = host.order("notify-termination", "--in", within, "--reason", "spot")
    assert done.returncode == 0, done.stderr


def evacuation(daemon: RunningDaemon, training: Training) -> dict[str, Any]:
    """Return the job's part of the evacuation; results are empty before it began."""
    jobs = daemon.status()["jobs"]
    parts = [
        job for departure in jobs["departures"] for job in departure["jobs"] if job["job"] == f"slurm/{training.job}"
    ]
    return dict(parts[0]) if parts else {"result": "", "requeue": ""}


def _times(training: Training, events: list[dict[str, Any]]) -> str:
    """Seconds from the notice to each step, for people: nothing is asserted of them."""
    at = {event["kind"]: datetime.fromisoformat(event["at"]).timestamp() for event in reversed(events)}
    steps = {
        "excluded": at["excluded"],
        "both ranks signalled": max(training.reported("signal", rank)[0]["at"] for rank in range(2)),
        "both ranks saved": max(training.reported("saved", rank)[0]["at"] for rank in range(2)),
        "requeued and pending": at["requeued"],
        "both ranks resumed elsewhere": max(report["at"] for report in training.reported("begins")),
    }
    lines = (f"  {at_ - at['noticed']:6.2f} s  {step}" for step, at_ in steps.items())
    return "\n".join(["", "from the notice:", *lines, ""])


@pytest.mark.slow
def test_both_ranks_save_and_the_job_goes_on_elsewhere_from_where_it_was(
    slurm: Slurm, hosts: dict[str, SlurmHost], capsys: pytest.CaptureFixture[str]
) -> None:
    """The ranks save at their own speeds, and each answers for both."""
    training = Training(slurm, agrees=True, takes=(0.0, 1.5), after="stay")
    doomed = min(training.nodes())
    with hosts[doomed].acting() as daemon:
        daemon.wait_status("healthy")
        ends(hosts[doomed], "300s")  # the controller has a thirtieth of it to answer
        daemon.wait(lambda: len(training.reported("saved")) == 2, "both ranks to save")
        daemon.wait(lambda: slurm.job(training.job).get("Restarts") == "1", "the job to be requeued")
        daemon.wait(lambda: len(training.reported("begins")) == 4, "both ranks to begin again")
        daemon.wait(lambda: evacuation(daemon, training)["requeue"] == "done", "the status to show it")
        job = evacuation(daemon, training)
        daemon.wait(lambda: {"excluded", "requeued"} <= {event["kind"] for event in events_of(daemon)}, "the ledger to")
        events = events_of(daemon)
    assert (job["result"], job["way"], job["signal"], job["saved"]) == ("sent", "job_wide", "TERM", True)
    assert training.cut_off() == []
    assert (job["acknowledged_by"], job["all_ranks"]) == ("socket", True)
    for rank in range(2):
        assert training.signals(rank)[0] == "SIGTERM"
        _, again = training.reported("begins", rank)
        assert again["node"] != doomed
        assert again["step"] == training.reported("saved", rank)[-1]["step"] > 0
    assert slurm.state(doomed) >= {"DRAIN"}
    assert slurm.reason(doomed).startswith("gpuwarden: termination")
    with capsys.disabled():
        sys.stdout.write(_times(training, events))


@pytest.mark.slow
def test_a_job_is_not_requeued_on_the_acknowledgement_of_one_rank_while_another_saves(
    slurm: Slurm, hosts: dict[str, SlurmHost]
) -> None:
    """Ranks answer for themselves, as older clients do: the one here is fast, and nothing is known here of the slow one."""
    training = Training(slurm, takes=(0.0, 4.0), after="stay")
    doomed = min(training.nodes())
    with hosts[doomed].acting() as daemon:
        daemon.wait_status("healthy")
        ends(hosts[doomed], "300s")
        daemon.wait(lambda: evacuation(daemon, training).get("acknowledged_by") == "socket", "rank 0 to acknowledge")
        ends(hosts[doomed], SOONER)
        slurm.wait(lambda: slurm.job(training.job).get("Restarts") == "1", "the job to be requeued at its time")
        daemon.wait(partial(is_requeued, daemon, training), "the status to show it")
        job = evacuation(daemon, training)
        wrote = [report["at"] for report in training.reported("wrote") if report["run"] == 0]
        assert [at < time_of(daemon, "requeued") for at in wrote] == [True, True]
    assert training.cut_off() == []
    assert (job["saved"], job["all_ranks"]) == (True, False)


@pytest.mark.slow
def test_a_job_whose_ranks_leave_is_requeued_once_slurm_runs_no_step_of_it_any_more(
    slurm: Slurm, hosts: dict[str, SlurmHost]
) -> None:
    """The requeue is so early only for that reason: the ranks do not find the daemon, the script goes on, and the end is far."""
    training = Training(slurm, answers=False, takes=(0.0, 4.0), after="leave", then="sleep 600")
    doomed = min(training.nodes())
    with hosts[doomed].acting() as daemon:
        daemon.wait_status("healthy")
        ends(hosts[doomed], "500s")
        slurm.wait(lambda: slurm.job(training.job).get("Restarts") == "1", "the job to be requeued")
        daemon.wait(partial(is_requeued, daemon, training), "the status to show it")
        job = evacuation(daemon, training)
        wrote = [report["at"] for report in training.reported("wrote") if report["run"] == 0]
        assert [at < time_of(daemon, "requeued") for at in wrote] == [True, True]
    assert training.cut_off() == []
    assert (job["acknowledged_by"], job["all_ranks"]) == ("step", True)


def events_of(daemon: RunningDaemon) -> list[dict[str, Any]]:
    """Return the events that are on disk."""
    events: list[dict[str, Any]] = json.loads(daemon.get("/v1/events")[1])["events"]
    return events


def time_of(daemon: RunningDaemon, kind: str) -> float:
    """Unix time of the last event of this kind, once there is one on disk."""
    daemon.wait(lambda: any(event["kind"] == kind for event in events_of(daemon)), f"the event {kind}")
    return max(datetime.fromisoformat(event["at"]).timestamp() for event in events_of(daemon) if event["kind"] == kind)


@pytest.mark.slow
def test_of_two_nodes_that_end_at_once_one_signals_the_job_and_it_is_requeued_once(
    slurm: Slurm, hosts: dict[str, SlurmHost]
) -> None:
    """Every rank gets gpuwarden's signal once, whichever node sends it. Signals that Slurm sends besides do not count."""
    training = Training(slurm, declares=OWN_SIGNAL, agrees=True, takes=(0.5, 1.5), after="stay")
    with ExitStack() as daemons:
        doomed = [hosts[node] for node in sorted(training.nodes())]
        both = [daemons.enter_context(host.acting()) for host in doomed]
        for daemon in both:
            daemon.wait_status("healthy")
        with ThreadPoolExecutor(2) as pool:  # the announcement of an end waits until jobs are signalled
            list(pool.map(lambda host: ends(host, "300s"), doomed))
        slurm.wait(lambda: slurm.job(training.job).get("Restarts") == "1", "the job to be requeued")
        both[0].wait(lambda: any(is_requeued(daemon, training) for daemon in both), "one of them to show it")
        for daemon in both:
            daemon.wait(partial(has_result, daemon, training), "each to show what it did")
        results = sorted(evacuation(daemon, training)["result"] for daemon in both)
        assert results == ["sent", "watched"], [evacuation(daemon, training) for daemon in both]
        # Two nodes are wanted, and one is left.
        slurm.wait(lambda: slurm.job_state(training.job) == "PENDING", "Slurm to end both ranks")
        assert [own_signals(training, rank) for rank in range(2)] == [1, 1], training.reported("signal")
        assert slurm.job(training.job)["Restarts"] == "1"
    assert training.cut_off() == []


def own_signals(training: Training, rank: int) -> int:
    return training.signals(rank).count(f"SIG{OWN_SIGNAL}")


def has_result(daemon: RunningDaemon, training: Training) -> bool:
    return bool(evacuation(daemon, training)["result"])


def is_requeued(daemon: RunningDaemon, training: Training) -> bool:
    return bool(evacuation(daemon, training)["requeue"] == "done")


@pytest.mark.slow
def test_a_daemon_that_is_killed_after_it_signalled_a_job_signals_it_no_second_time_and_requeues_it(
    slurm: Slurm, hosts: dict[str, SlurmHost]
) -> None:
    training = Training(slurm, answers=False, declares=OWN_SIGNAL)
    doomed = hosts[min(training.nodes())]
    with doomed.acting() as daemon:
        daemon.wait_status("healthy")
        ends(doomed, "300s")
        daemon.wait(lambda: len(training.reported("signal")) == 2, "both ranks to be signalled")
        daemon.wait(lambda: b'"signalled"' in daemon.get("/v1/events")[1], "it to be on disk")
        daemon.kill()
    with doomed.acting() as daemon:
        daemon.wait(lambda: evacuation(daemon, training)["result"] == "sent", "the signal to be recorded")
        ends(doomed, SOONER)
        daemon.wait(
            lambda: slurm.job(training.job).get("Restarts") == "1", "the job to be requeued when its time is up"
        )
        daemon.wait(partial(is_requeued, daemon, training), "the status to show it")
    assert [own_signals(training, rank) for rank in range(2)] == [1, 1], training.reported("signal")


@pytest.mark.slow
def test_a_notice_that_is_called_off_leaves_the_job_where_it_is(slurm: Slurm, hosts: dict[str, SlurmHost]) -> None:
    training = Training(slurm, answers=False)
    doomed = hosts[min(training.nodes())]
    with doomed.acting() as daemon:
        daemon.wait_status("healthy")
        ends(doomed, "300s")
        daemon.wait(lambda: len(training.reported("signal")) == 2, "both ranks to be signalled")
        done = doomed.order("notify-termination", "--cancel")
        assert done.returncode == 0, done.stderr
        daemon.wait(lambda: slurm.state(doomed.node) == {"MIXED"}, "the node to take work again")
        daemon.wait(
            lambda: not any(folders or files for _, folders, files in os.walk(doomed.run_dir / "ack")), "no folders"
        )
        assert evacuation(daemon, training)["requeue"] == ""
    assert (slurm.job_state(training.job), slurm.job(training.job)["Restarts"]) == ("RUNNING", "0")


@pytest.mark.slow
def test_while_the_controller_hangs_ranks_are_signalled_here_and_the_job_is_requeued_once_it_responds(
    slurm: Slurm, hosts: dict[str, SlurmHost]
) -> None:
    """The rank here takes the other one along, which nobody else signals."""
    training = Training(slurm, agrees=True, takes=(0.0, 2.0), after="stay")
    doomed = hosts[min(training.nodes())]
    with doomed.acting() as daemon:
        daemon.wait_status("healthy")
        slurm.pause(CONTROLLER)
        ends(doomed, "300s")  # it is requeued so soon only since its rank acknowledges
        daemon.wait(lambda: training.reported("signal"), "the rank of this node to be signalled")
        daemon.wait(lambda: evacuation(daemon, training)["result"] == "sent", "the status to show it")
        assert evacuation(daemon, training)["way"] == "local"
        slurm.resume(CONTROLLER)
        daemon.wait(lambda: slurm.state(doomed.node) >= {"DRAIN"}, "the drain")
        daemon.wait(lambda: slurm.job(training.job).get("Restarts") == "1", "the job to be requeued")
    assert {report["node"] for report in training.reported("signal") if report["signals"] == 1} >= {doomed.node}
    assert training.cut_off() == []


@pytest.mark.slow
def test_hanging_calls_of_slurms_commands_delay_no_signal_shortly_before_the_end(
    slurm: Slurm, hosts: dict[str, SlurmHost]
) -> None:
    """The drain hangs, and the mark of a job, both for longer than the machine has; of another job the controller answers all."""
    first = Training(slurm, declares=OWN_SIGNAL, after="stay")
    second = Training(slurm, declares=OWN_SIGNAL, after="stay", name="second", waits=True)
    doomed = hosts[min(first.nodes())]
    commands = HangingCommands(doomed.folder / "commands")
    doomed.configure_slurm(more=f'folder = "{commands.folder}"\ntimeout = "120s"')
    with doomed.acting() as daemon:
        daemon.wait_status("healthy")
        commands.hang(f"^scontrol update (NodeName|JobId={first.job})")
        ends(doomed, "115s")  # the controller has a thirtieth of it to answer for the second job
        daemon.wait(lambda: len(commands.hanging) == 2, "both calls to hang")
        second.begins()
        assert second.nodes() >= {doomed.node}
        daemon.wait(lambda: len(second.reported("signal")) == 2, "both ranks of the second job to be signalled")
        daemon.wait(lambda: evacuation(daemon, second)["result"] == "sent", "to say so")
        assert evacuation(daemon, second)["way"] == "job_wide"
        assert len(commands.hanging) == 2, "neither was given up by then"
        assert daemon.stop() == 0
    assert first.reported("signal") == []
