"""The daemon on a host, as its operators and their tools see it: real process, real NVML bindings, real sockets."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuwarden.health.gpu.reading_time import LEARNED_FROM
from support.commands import COMMAND, environment, gpuwarden
from support.daemons import PATIENCE, FakeHost, Json, RunningDaemon, alive, slots
from support.scrape import Scrape
from support.socket_talk import ask

HOT_CALL = "nvmlDeviceGetPowerUsage"
"""A call that every pass makes of every GPU."""


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path, gpus=4)


@pytest.fixture
def daemon(host: FakeHost) -> Iterator[RunningDaemon]:
    with host.daemon() as running:
        running.wait_status("healthy")
        yield running


def test_a_healthy_host_is_healthy_everywhere_it_is_asked(host: FakeHost) -> None:
    host.config.write_text(host.config.read_text().replace("[publish]\n", '[publish]\nswitch = "rack 7 leaf 2"\n'))
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        code, body = daemon.get("/heartbeat")
        beat = json.loads(body)
        assert (code, beat["status"], beat["schedulable"]) == (200, "healthy", True)
        assert beat["gpus"] == {"expected": 4, "present": 4}
        assert daemon.get("/readyz")[0] == 200
        scrape = Scrape(daemon.get("/metrics")[1])
        assert scrape.value("gpuwarden_node_health", state="healthy") == 1.0
        assert len(scrape.values("DCGM_FI_DEV_GPU_TEMP")) == 4
        (labels,) = scrape.labels("gpuwarden_machine_info")
        assert labels["switch"] == "rack 7 leaf 2", "what the site has configured"
        verdict = host.run_dir / "verdict"
        daemon.wait(lambda: verdict.exists() and "\nstate=healthy\n" in verdict.read_text(), "the verdict file")
        shown = host.order("status")
        assert (shown.returncode, "healthy" in shown.stdout) == (0, True)


def test_an_xid_line_is_in_the_heartbeat_and_counted_once_with_nvml_s_own_event(
    host: FakeHost, daemon: RunningDaemon
) -> None:
    host.fake.xid(2, 48)
    host.xid(2, 48)
    daemon.wait_status("failure", "xid.48")
    daemon.wait_passes(5)  # the other source is read, too
    scrape = Scrape(daemon.get("/metrics")[1])
    assert scrape.value("gpuwarden_xid_total", pci_bus_id=slots(4)[2], xid="48") == 1.0
    assert scrape.value("gpuwarden_xid_total", pci_bus_id=slots(4)[1], xid="48") == 0.0
    (finding,) = daemon.status()["findings"]
    assert (finding["check"], finding["gpu"], finding["severity"]) == ("xid", 2, "failure")


def test_another_board_in_the_slot_has_no_xids_of_the_one_before(host: FakeHost, daemon: RunningDaemon) -> None:
    host.xid(2, 48)
    daemon.wait_status("failure", "xid.48")
    host.fake.text(2, "uuid", "GPU-new").text(2, "serial", "999")
    daemon.wait_status("healthy")
    scrape = Scrape(daemon.get("/metrics")[1])
    assert scrape.values("gpuwarden_xid_total", uuid="GPU-new", xid="48") == [0.0]
    assert scrape.values("gpuwarden_xid_last_timestamp_seconds") == []
    assert scrape.values("DCGM_FI_DEV_XID_ERRORS") == []
    host.xid(2, 31)
    daemon.wait(
        lambda: Scrape(daemon.get("/metrics")[1]).values("gpuwarden_xid_total", uuid="GPU-new", xid="31") == [1.0],
        "the first Xid of the new one",
    )


@pytest.mark.slow
def test_a_gpu_that_falls_off_the_bus_is_missing_and_its_series_end(host: FakeHost, daemon: RunningDaemon) -> None:
    host.fake.lost(1)
    host.plug(4, missing=frozenset({1}))
    daemon.wait_status("failure", "gpu_missing")
    scrape = Scrape(daemon.get("/metrics")[1])
    assert scrape.values("gpuwarden_gpu_missing", pci_bus_id=slots(4)[1]) == [1.0]
    assert (scrape.value("gpuwarden_gpus_expected"), scrape.value("gpuwarden_gpus_present")) == (4.0, 3.0)
    daemon.wait(
        lambda: len(Scrape(daemon.get("/metrics")[1]).values("DCGM_FI_DEV_GPU_TEMP")) == 3, "the end of its series"
    )
    assert daemon.get("/heartbeat")[0] == 503


@pytest.mark.slow
def test_a_gpu_that_is_gone_when_the_daemon_starts_is_missed(host: FakeHost) -> None:
    with host.daemon() as running:
        running.wait_status("healthy")
        assert running.stop() == 0
    host.fake.vanish(3)
    host.plug(4, missing=frozenset({3}))
    with host.daemon() as running:
        host.fake.vanish(3)
        running.wait_status("failure", "gpu_missing")


@pytest.mark.slow
def test_a_driver_that_hangs_is_a_failure_while_everything_keeps_answering(host: FakeHost) -> None:
    host.configure(deadline="1s")
    with host.daemon() as running:
        running.wait_status("healthy")
        host.fake.add(f"hang * {HOT_CALL}", "hang * nvmlInitWithFlags")

        def failed() -> bool:
            """Return True once the driver counts as unresponsive. The daemon answers all the time."""
            assert running.get("/metrics")[0] in (200, 503)
            return running.is_now("failure", "driver_unresponsive")

        running.wait(lambda: running.heartbeat()["status"] in ("unknown", "failure"), "the silence")
        assert [gpu["index"] for gpu in running.status()["gpus"]] == [0, 1, 2, 3]
        running.wait(failed, "the failure")
        assert [gpu["index"] for gpu in running.status()["gpus"]] == [0, 1, 2, 3]
        lines = [json.loads(line) for line in running.lines().splitlines() if line.startswith("{")]
        changes = [line for line in lines if line["event"] == "node health changed" and line["to"] == "unknown"]
        assert {(line["from"], line["level"]) for line in changes} == {("healthy", "warning")}
        shown = host.order("status")
        assert (shown.returncode, "driver_unresponsive" in shown.stdout) == (2, True)
        host.fake.clear()
        running.wait(lambda: running.heartbeat()["status"] != "failure", "the driver's return")


@pytest.mark.slow
def test_one_gpu_that_hangs_is_named_and_the_others_are_judged_meanwhile(host: FakeHost) -> None:
    host.configure(deadline="2s")
    slot = slots(4)[2]
    with host.daemon() as running:
        running.wait_status("healthy")
        host.fake.hang(2, "nvmlDeviceGetFieldValues")
        running.wait(lambda: running.is_now("failure", "gpu_unresponsive"), "the failure")
        host.fake.reading(1, "remapped_rows_failure", 1)
        running.wait(lambda: "row_remap_failed" in running.heartbeat()["reasons"], "the fault of another GPU")
        expected = {0: "healthy", 1: "failure", 2: "failure", 3: "healthy"}
        running.wait(
            lambda: {gpu["index"]: gpu["health"] for gpu in running.status()["gpus"]} == expected,
            "the verdict about each, which may be unknown for a moment where a pass takes more than two seconds",
        )
        shown = host.order("status").stdout
        assert f"no answer from {slot} in nvmlDeviceGetFieldValues" in " ".join(shown.split())
        host.fake.clear()


@pytest.mark.slow
def test_a_driver_that_becomes_slow_is_a_warning_that_names_the_gpu(host: FakeHost) -> None:
    """The times of the condition are seconds here; that they are ten minutes is asked of the judge (tests/health/test_driver_slow.py)."""
    host.configure('[checks.driver_slow]\nrise = "5s"\nfall = "2s"\n')
    with host.daemon() as running:
        running.wait_status("healthy")

        passes = set[float]()

        def learned() -> bool:
            scrape = Scrape(running.get("/metrics")[1])
            passes.update(scrape.values("gpuwarden_collector_last_success_timestamp_seconds", collector="nvml"))
            return len(passes) > LEARNED_FROM

        running.wait(learned, "the passes to learn from")
        host.fake.slow(2, HOT_CALL, 1_700_000)
        running.wait(lambda: running.is_now("warning", "driver_slow"), "the warning")
        (finding,) = running.status()["findings"]
        assert (finding["evidence"]["slowest_gpu"], finding["gpu"]) == (slots(4)[2], None)
        assert finding["evidence"]["slowest_gpu_seconds"] >= 1.7
        shown = " ".join(host.order("status").stdout.split())
        assert "time to read the GPUs: " in shown
        host.fake.clear()
        running.wait_status("healthy")


@pytest.mark.slow
def test_a_crash_inside_the_library_costs_a_pass_and_not_the_verdict(host: FakeHost, daemon: RunningDaemon) -> None:
    before = daemon.heartbeat()["sequence"]
    host.fake.crash(0, HOT_CALL, once=True)
    daemon.wait(
        lambda: Scrape(daemon.get("/metrics")[1]).value("gpuwarden_collector_restarts_total", collector="nvml"),
        "a restart",
    )
    daemon.wait(lambda: daemon.heartbeat()["sequence"] > before + 3, "passes after the crash")
    daemon.wait_status("healthy")
    assert '"to": "failure"' not in daemon.lines()


@pytest.mark.slow
def test_a_killed_worker_is_replaced_at_the_next_pass(daemon: RunningDaemon) -> None:
    worker = daemon.worker()
    os.kill(worker, signal.SIGKILL)
    daemon.wait(lambda: daemon.worker() not in (0, worker), "another worker")
    daemon.wait_status("healthy")


@pytest.mark.slow
def test_a_killed_daemon_forgets_nothing_and_repeats_nothing(host: FakeHost) -> None:
    with host.daemon() as running:
        running.wait_status("healthy")
        host.xid(0, 95)
        running.wait_status("failure", "xid.95")
        running.wait(
            lambda: "latched" in host.command("events", "--run-dir", host.run_dir).stdout, "the latch in the ledger"
        )
        worker = running.worker()
        running.kill()
        assert not alive(worker)
    with host.daemon() as running:
        running.wait_status("failure", "xid.95")
        running.wait_passes(3)
        scrape = Scrape(running.get("/metrics")[1])
        assert scrape.value("gpuwarden_xid_total", pci_bus_id=slots(4)[0], xid="95") == 1.0
        assert running.stop() == 0


@pytest.mark.slow
def test_an_acknowledgement_outlives_the_daemon(host: FakeHost) -> None:
    with host.daemon() as running:
        running.wait_status("healthy")
        host.xid(0, 95)
        running.wait(lambda: any(f["latched"] for f in running.status()["findings"]), "the latch")
        (finding,) = running.status()["findings"]
        done = host.order("ack", finding["id"])
        assert (done.returncode, done.stderr) == (0, "")
        running.wait_status("healthy")
        assert running.stop() == 0
    with host.daemon() as running:
        running.wait_status("healthy")


@pytest.mark.slow
def test_old_lines_are_history_on_the_very_first_start(host: FakeHost) -> None:
    host.xid(0, 95, age=3600)
    host.xid(1, 119, age=10)
    with host.daemon() as running:
        running.wait_status("failure", "xid.119")
        assert "xid.95" not in running.heartbeat()["reasons"]


@pytest.mark.slow
def test_a_reader_of_the_log_that_stops_reading_stops_nothing(host: FakeHost) -> None:
    blocked, write = os.pipe()
    try:
        with host.daemon(stderr=write) as running:
            running.wait_status("healthy")
            for _ in range(3):
                for gpu in range(4):
                    for number in range(1, 160):
                        host.xid(gpu, number)
            running.wait_status("failure", "xid.95")
            running.wait(
                lambda: Scrape(running.get("/metrics")[1]).value("gpuwarden_dropped_total", what="log") is not None,
                "metrics",
            )
            first = running.heartbeat()["sequence"]
            running.wait(lambda: running.heartbeat()["sequence"] > first, "another pass")
    finally:
        os.close(blocked)
        os.close(write)


@pytest.mark.slow
def test_clients_that_never_read_and_never_finish_delay_nobody(daemon: RunningDaemon) -> None:
    clients = [socket.create_connection(("127.0.0.1", daemon.port)) for _ in range(200)]
    try:
        for number, client in enumerate(clients):
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 20 if number % 2 else b"GET /metr")
        assert daemon.get("/metrics")[0] == 200
        assert daemon.get("/heartbeat")[0] == 200
    finally:
        for client in clients:
            client.close()


def test_a_kernel_log_that_cannot_be_opened_is_a_finding_and_no_crash(host: FakeHost) -> None:
    host.kmsg.unlink()
    with host.daemon() as running:
        running.wait(lambda: "kmsg" in error_of(running, "kernel_log"), "the collector's error")
        running.wait(lambda: running.heartbeat()["sequence"] > 0, "a pass")


def error_of(running: RunningDaemon, collector: str) -> str:
    """Return the collector's error; "" while it has none, or is not shown yet."""
    return next((str(row["error"]) for row in running.status()["collectors"] if row["name"] == collector), "")


@pytest.mark.slow
def test_a_corrupt_ledger_is_moved_aside_and_reported(host: FakeHost) -> None:
    host.state_dir.mkdir()
    (host.state_dir / "ledger.db").write_bytes(b"this is no database" * 1000)
    with host.daemon() as running:
        running.wait_status("warning", "ledger_unavailable")
        assert list(host.state_dir.glob("ledger.db.corrupt-*"))


@pytest.mark.slow
def test_sigterm_ends_it_with_success_even_while_the_driver_hangs(host: FakeHost) -> None:
    host.configure(deadline="1s")
    with host.daemon() as running:
        running.wait_status("healthy")
        worker = running.worker()
        host.fake.hang("*", HOT_CALL)
        running.wait(lambda: "timed_out" in [c["outcome"] for c in running.status()["collectors"]], "a missed deadline")
        assert running.stop() == 0
        assert not alive(worker)


@pytest.mark.slow
def test_a_port_in_use_is_reported_and_nothing_is_left_running(host: FakeHost, daemon: RunningDaemon) -> None:
    other = host.folder / "other.toml"
    other.write_text(
        host.config.read_text().replace(":0", f":{daemon.port}").replace("/run", "/run2").replace("/state", "/state2")
    )
    refused = subprocess.run(
        [*COMMAND, "run", "--config", str(other)],
        env={**os.environ, **host.fake.environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert refused.returncode == 69
    assert str(daemon.port) in refused.stderr


@pytest.mark.slow
def test_a_second_daemon_on_the_same_ledger_reports_it_and_writes_nothing_into_it(
    host: FakeHost, daemon: RunningDaemon
) -> None:
    other = FakeHost(host.folder, gpus=4)
    other.run_dir = host.folder / "run2"
    other.configure()
    with other.daemon() as second:
        second.wait_status("warning", "ledger_unavailable")
        (finding,) = second.status()["findings"]
        assert "another gpuwarden" in finding["evidence"]["why"]
    daemon.wait_status("healthy")


@pytest.mark.slow
def test_a_check_agrees_with_the_daemon_s_memory_and_writes_nothing(host: FakeHost) -> None:
    with host.daemon() as running:
        running.wait_status("healthy")
        host.xid(0, 95)
        running.wait(lambda: any(f["latched"] for f in running.status()["findings"]), "the latch")
        assert running.stop() == 0
    before = {file: file.stat().st_mtime_ns for file in host.state_dir.iterdir()}
    checked = host.command("check", "--config", host.config, "--json")
    assert checked.returncode == 2, checked.stderr
    assert json.loads(checked.stdout)["reasons"] == ["xid.95"]
    assert {file: file.stat().st_mtime_ns for file in host.state_dir.iterdir()} == before


SIMULATED_FAULTS = (
    (("lost",), "gpu_missing"),
    (("xid", "79"), "xid.79"),
    (("xid", "95"), "xid.95"),
    (("row-remap-failure",), "row_remap_failed"),
)


def lost_by_xid_79(status: Json) -> bool:
    """Return True if the Xid counts as it does of a GPU that is lost: one that answers makes it a warning."""
    failures = {finding["id"].partition("@")[0] for finding in status["findings"] if finding["severity"] == "failure"}
    return status["present"] == 1 and {"xid.79", "gpu_missing"} <= failures


@pytest.mark.slow
def test_simulated_faults_go_the_whole_way(tmp_path: Path) -> None:
    run_dir, state_dir = tmp_path / "run", tmp_path / "state"
    directories = ["--listen", "127.0.0.1:0", "--run-dir", str(run_dir), "--state-dir", str(state_dir)]
    process = subprocess.Popen(
        [*COMMAND, "run", "--simulate", "2", *directories], env=environment(tmp_path), stderr=subprocess.DEVNULL
    )

    def wait(condition: Callable[[Json], bool]) -> int:
        """The exit code of the first `gpuwarden status` whose document is as wanted."""
        end = time.monotonic() + PATIENCE
        while True:
            shown = gpuwarden("status", "--json", "--run-dir", run_dir, temporary=tmp_path)
            if shown.stdout and condition(json.loads(shown.stdout)):
                return shown.returncode
            assert time.monotonic() < end, shown.stdout
            time.sleep(0.1)

    try:
        assert wait(lambda status: status["simulated"] and status["present"] == 2) == 0
        refused = asyncio.run(ask(run_dir / "job.sock", {"verb": "acknowledge"}))
        assert "with simulated GPUs there is nothing to acknowledge" in refused["error"]
        for fault, code in SIMULATED_FAULTS:
            done = gpuwarden("inject", "--run-dir", run_dir, "--gpu", "1", *fault, temporary=tmp_path)
            assert done.returncode == 0, done.stderr
            assert wait(lambda status, code=code: code in status["reasons"]) == 2  # type: ignore[misc]  # bound per round
            if code == "xid.79":
                wait(lost_by_xid_79)
            gpuwarden("inject", "--run-dir", run_dir, "clear", temporary=tmp_path)
            wait(lambda status: all(gpu["readings"] for gpu in status["gpus"]))
    finally:
        process.terminate()
        assert process.wait(PATIENCE) == 0
