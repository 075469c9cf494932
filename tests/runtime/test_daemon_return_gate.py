"""The real daemon and the service of its return gate: a mended node is tested before it returns, whatever is killed or missing meanwhile."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.active_test_hosts import LONG, PASSES, gone, wait
from support.daemons import RunningDaemon
from support.mounts import ext4, frozen
from support.return_gates import GatedHost, gate_events, gate_of
from support.slurm import GPUS, SLURM, Slurm

ONCE = ["gate_wanted", "gate_begun", "gate_ended passed", "restored"]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[GatedHost]:
    host = GatedHost(tmp_path)
    yield host
    host.end()


def is_excluded(host: GatedHost, daemon: RunningDaemon) -> None:
    daemon.wait_status("healthy")
    host.breaks()
    daemon.wait(host.marker.exists, "the exclusion")


def is_back(host: GatedHost, daemon: RunningDaemon) -> None:
    daemon.wait(lambda: not host.marker.exists(), "the node to be back")
    daemon.wait(lambda: "restored" in gate_events(daemon), "the event of it")


def tries(daemon: RunningDaemon) -> int:
    """Return the number of tries in the newest event of the gate."""
    events = json.loads(daemon.get("/v1/events?since=0")[1])["events"]
    count: int = [event["data"].get("tries", 0) for event in events if event["kind"] == "gate_ended"][-1]
    return count


@pytest.mark.slow
def test_a_mended_node_is_tested_and_comes_back(host: GatedHost) -> None:
    host.with_cuda()
    host.serve()
    with host.acting() as daemon:
        daemon.wait(lambda: gate_of(daemon)["state"] == "clear", "the probe")
        is_excluded(host, daemon)
        host.is_mended()
        is_back(host, daemon)
        assert gate_events(daemon) == ONCE
        daemon.wait(lambda: gate_of(daemon)["state"] == "clear", "status to show it")
        results = daemon.status()["tests"]["results"]
        assert [(row["level"], row["result"]) for row in results] == [("gate", "nothing_found")] * 2
        assert 'gpuwarden_return_gate{state="clear"} 1' in daemon.get("/metrics")[1].decode()


@pytest.mark.slow
def test_a_gpu_that_fails_the_test_keeps_the_node_out_with_a_finding_of_its_own(host: GatedHost) -> None:
    cuda = host.with_cuda()
    cuda.add("stuck 4096 3 1")
    host.serve()
    with host.acting() as daemon:
        is_excluded(host, daemon)
        host.is_mended()
        daemon.wait_status("failure", "test_failed.memory")
        daemon.wait(lambda: "gate_ended failed" in gate_events(daemon), "the end of the test")
        daemon.wait_passes(10)
        assert host.marker.exists()
        assert gate_events(daemon).count("gate_begun") == 1
        assert host.order("restore", "--force").returncode == 0
        is_back(host, daemon)


@pytest.mark.slow
def test_a_host_that_cannot_test_says_so_from_the_start_and_returns_as_without_a_gate(host: GatedHost) -> None:
    with host.acting() as daemon:
        daemon.wait(lambda: gate_of(daemon)["state"] == "impossible", "the probe")
        assert "systemctl enable --now gpuwarden-test.socket" in gate_of(daemon)["text"]
        assert "test_impossible" in host.order("status").stdout
        daemon.wait_status("healthy")
        is_excluded(host, daemon)
        host.is_mended()
        is_back(host, daemon)
        assert gate_events(daemon) == ["gate_wanted", "gate_ended void", "restored"]


@pytest.mark.slow
def test_a_gpu_that_cannot_be_tested_is_named_and_left_out_when_another_one_returns(host: GatedHost) -> None:
    host.with_cuda()
    host.fake.reading(0, "compute_mode", 3)
    host.serve()
    with host.acting() as daemon:
        daemon.wait(lambda: "GPU 0: its compute mode is exclusive process" in gate_of(daemon)["text"], "the probe")
        assert gate_of(daemon)["state"] == "clear"
        assert "GPU 0: its compute mode" in host.order("status").stdout
        is_excluded(host, daemon)
        host.is_mended()
        is_back(host, daemon)
        assert gate_events(daemon) == ONCE


@pytest.mark.slow
def test_a_service_that_answers_rubbish_or_not_at_all_is_no_verdict_and_the_node_stays_out(host: GatedHost) -> None:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(host.socket_path))
    listening.close()  # refused
    with host.acting() as daemon:
        is_excluded(host, daemon)
        host.is_mended()
        daemon.wait(lambda: "gate_ended no_verdict" in gate_events(daemon), "the end of the first try")
        daemon.wait(lambda: gate_of(daemon)["state"] == "waiting", "status to show it")
        assert "systemctl status gpuwarden-test.socket" in gate_of(daemon)["text"]
        daemon.wait_passes(5)
        assert host.marker.exists()
        refused = host.order("restore")
        assert refused.returncode == 64
        assert "not restored: no test has passed since the failure, the last one gave no verdict" in refused.stderr
        assert "gpuwarden restore --untested" in refused.stderr
        assert host.marker.exists()
        assert host.order("restore", "--untested").returncode == 0
        is_back(host, daemon)


@pytest.mark.slow
@pytest.mark.disposable
def test_a_ledger_that_cannot_be_written_costs_no_try(host: GatedHost) -> None:
    host.script({"*": PASSES})
    host.serve()
    with ext4(host.folder / "disk") as disk:
        host.state_dir = disk / "state"
        host.configure(host.gated)
        with host.acting() as daemon:
            is_excluded(host, daemon)
            daemon.wait(lambda: gate_events(daemon) == ["gate_wanted"], "the gate")
            with frozen(disk):
                host.is_mended()
                daemon.wait(lambda: "ledger cannot be written" in gate_of(daemon)["text"], "status to show it")
                assert host.workers == []
            is_back(host, daemon)
            assert gate_events(daemon) == ONCE


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_a_test_whose_service_gets_sigterm_is_no_try_and_one_that_is_killed_is(host: GatedHost, killed: bool) -> None:
    host.script({"*": LONG})
    service = host.serve()
    with host.acting() as daemon:
        is_excluded(host, daemon)
        host.is_mended()
        wait(lambda: len(host.workers) == 2, "the workers of the test")
        (service.processes[-1].kill if killed else service.processes[-1].terminate)()
        daemon.wait(lambda: "gate_ended no_verdict" in gate_events(daemon), "the end of the test")
        assert tries(daemon) == int(killed)


@pytest.mark.slow
def test_a_daemon_that_is_stopped_in_a_test_has_ended_it_and_it_is_no_try(host: GatedHost) -> None:
    """After an upgrade the next daemon begins another test at once."""
    host.script({"*": [LONG, PASSES]})
    host.serve()
    with host.acting() as daemon:
        is_excluded(host, daemon)
        host.is_mended()
        wait(lambda: len(host.workers) == 2, "the workers of the test")
        assert daemon.stop() == 0
    wait(lambda: all(gone(host.note(gpu)["pid"]) for gpu in range(2)), "the end of its workers")
    with host.acting() as daemon:
        is_back(host, daemon)
        again = ["gate_wanted", "gate_begun", "gate_ended no_verdict", "gate_begun", "gate_ended passed", "restored"]
        assert gate_events(daemon)[-6:] == again
        events = json.loads(daemon.get("/v1/events?since=0")[1])["events"]
        ended = [event["data"] for event in events if event["kind"] == "gate_ended"]
        assert [data.get("tries", 0) for data in ended] == [0, 0]
        assert [data["text"] for data in ended] == [
            "gpuwarden was stopped while the test ran",
            "a test of level gate found nothing on 2 GPUs",
        ]


@pytest.mark.slow
def test_a_package_that_is_away_for_a_moment_lets_no_node_back_untested(host: GatedHost) -> None:
    """A driver's package that is replaced: its libraries are gone for longer than two probes take."""
    host.script({"*": PASSES})
    host.serve()
    aside = host.libraries.with_suffix(".aside")
    with host.acting() as daemon:
        daemon.wait(lambda: b"gate_able" in daemon.get("/v1/events?since=0")[1], "the first probe")
        is_excluded(host, daemon)
        host.libraries.rename(aside)
        host.is_mended()
        daemon.wait(lambda: "no test can begin: libcuda.so.1" in gate_of(daemon)["text"], "a second probe")
        assert host.marker.exists()
        assert "gate_ended" not in " ".join(gate_events(daemon))
        aside.rename(host.libraries)
        is_back(host, daemon)
        assert gate_events(daemon) == ONCE


@pytest.mark.slow
def test_a_daemon_killed_before_and_while_the_test_runs_ends_it_and_the_next_one_tests_again(host: GatedHost) -> None:
    host.script({"*": [LONG, PASSES]})
    host.serve()
    with host.acting() as daemon:
        is_excluded(host, daemon)
        daemon.wait(lambda: "gate_wanted" in gate_events(daemon), "the gate")
        daemon.process.kill()
    host.is_mended()
    with host.acting() as daemon:
        daemon.wait(lambda: gate_of(daemon)["state"] == "running", "the test")
        wait(lambda: len(host.workers) == 2, "its workers")
        daemon.process.kill()
    wait(lambda: all(gone(host.note(gpu)["pid"]) for gpu in range(2)), "the end of its workers")
    with host.acting() as daemon:
        is_back(host, daemon)
        again = ["gate_wanted", "gate_begun", "gate_ended no_verdict", "gate_begun", "gate_ended passed", "restored"]
        assert gate_events(daemon) == again


@pytest.mark.slow
def test_a_test_whose_result_came_before_the_daemon_was_killed_is_not_run_again(host: GatedHost) -> None:
    host.serve(GATE_ANSWERS="never")
    with host.acting() as daemon:
        is_excluded(host, daemon)
        host.is_mended()
        daemon.wait((host.stubs / "handed-in").exists, "the results")
        daemon.process.kill()
    with host.acting() as daemon:
        is_back(host, daemon)
        assert gate_events(daemon) == ONCE


def test_by_default_nothing_of_the_gate_is_loaded(host: GatedHost) -> None:
    """Modules that are not used cost every node their memory."""
    host.configure()
    script = "import sys, gpuwarden.runtime.app, gpuwarden.features.active_test.daemon\nprint([m for m in sys.modules if 'gate' in m and 'hook_gate' not in m])"
    output = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert output.strip() == "[]"


class TestInSlurm:
    pytestmark = SLURM

    @pytest.fixture
    def node(self, tmp_path: Path, slurm: Slurm) -> Iterator[GatedHost]:
        scheduler = f'[breaker]\npercent = 100\nrecount_after = "1s"\n[slurm]\nenabled = true\nnode = "n1"\nconf = "{slurm.conf}"\n'
        host = GatedHost(tmp_path, GPUS, scheduler)
        host.more |= {"PATH": slurm.environment["PATH"], "SLURM_CONF": str(slurm.conf)}
        yield host
        host.end()

    @pytest.mark.slow
    def test_it_waits_for_the_jobs_takes_all_memory_and_is_seen_by_others(self, node: GatedHost, slurm: Slurm) -> None:
        seen = node.folder / "seen"
        node.script({"*": [{"write": {"phase": "int8"}}, {"wait": str(seen)}, *PASSES]})
        node.serve()
        release = slurm.folder / "jobs/release-gate"
        job = slurm.submit(f"while [ ! -e {release} ]; do sleep 0.1; done", "-w", "n1")
        slurm.wait(lambda: slurm.job_state(job) == "RUNNING", "the job to run")
        with node.acting() as daemon:
            daemon.wait_status("healthy")
            node.breaks()
            daemon.wait(lambda: '"node excluded"' in daemon.lines(), "the drain to be recorded")
            node.is_mended()
            daemon.wait(lambda: "slurm has jobs here" in gate_of(daemon)["text"], "it to wait for the job")
            assert (node.workers, gate_events(daemon)) == ([], ["gate_wanted"])
            release.touch()
            daemon.wait(lambda: node.workers, "the test")
            assert "Comment=gpuwarden: test from=" in slurm.show("n1")
            seen.touch()
            daemon.wait(lambda: slurm.state("n1") == {"IDLE"}, "the node to be back")
            daemon.wait(lambda: gate_events(daemon) == ONCE, "the return to be read back")
            assert {answer for gpu in range(GPUS) for _, answer, _ in node.note(gpu)["answers"]} == {"all"}
            assert daemon.status()["tests"]["results"][0]["level"] == "quick"
            slurm.wait(lambda: "gpuwarden: test" not in slurm.show("n1"), "the mark to be gone")
