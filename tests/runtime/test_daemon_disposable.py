"""The daemon on the real kernel log and on a disk that freezes: for machines that may be thrown away."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.daemons import FakeHost, RunningDaemon, slots
from support.disposable import WITHOUT_KMSG, kernel_log_writer
from support.mounts import ext4, fill, frozen, remount, tmpfs
from support.scrape import Scrape
from support.whole_lines import whole_lines

pytestmark = pytest.mark.disposable


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path, gpus=2)


def counted(running: RunningDaemon) -> float:
    value = Scrape(running.get("/metrics")[1]).value("gpuwarden_kernel_log_disbelieved_total", reason="facility")
    return value or 0.0


def counted_of_history(running: RunningDaemon) -> float:
    """Return how many lines were counted of those that were there before: some passes later all of the log has been read."""
    sequence = running.heartbeat()["sequence"]
    running.wait(lambda: running.heartbeat()["sequence"] > sequence + 3, "passes")
    return counted(running)


@pytest.mark.slow
def test_what_root_writes_to_the_real_kernel_log_neither_raises_nor_ends_anything_and_is_counted(
    host: FakeHost,
) -> None:
    bus = slots(2)[1].removesuffix(".0")

    host.xid(1, 95)
    with host.daemon() as running:
        running.wait_status("failure", "xid.95")
        assert running.stop() == 0
    host.kmsg = Path("/dev/kmsg")
    host.configure()
    with host.daemon() as running, kernel_log_writer() as write:
        running.wait_status("failure", "xid.95")
        before, sequence = counted_of_history(running), running.heartbeat()["sequence"]
        write(f"<4>NVRM: Xid (PCI:{bus}): 48, pid=77, name=python, Double bit ECC error")
        write(f"<4>NVRM: Xid (PCI:{bus}): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")
        write(f"<4>nvidia {bus}.0: reset done")
        running.wait(lambda: counted(running) >= before + 3, "the lines to be counted")
        running.wait(lambda: running.heartbeat()["sequence"] > sequence + 3, "passes")
        assert [reason for reason in running.heartbeat()["reasons"] if reason.startswith("xid")] == ["xid.95"]
        assert "written by a process" in " ".join(running.status()["errors"])
        assert running.stop() == 0


@pytest.mark.slow
def test_a_daemon_that_may_not_open_the_device_reads_the_log_by_syslog_and_resumes_where_it_was(host: FakeHost) -> None:
    forged = f"<4>NVRM: Xid (PCI:{slots(2)[1].removesuffix('.0')}): 48, pid=77, name=python, Double bit ECC error"
    host.kmsg = Path("/dev/kmsg")
    host.configure()
    with kernel_log_writer() as write:
        with host.daemon(prefix=WITHOUT_KMSG) as running:
            running.wait_status("healthy")
            before = counted_of_history(running)
            write(forged)
            write(forged)
            running.wait(lambda: counted(running) == before + 2, "the lines to be counted")
            assert running.stop() == 0
        write(forged)
        with host.daemon(prefix=WITHOUT_KMSG) as running:
            running.wait(lambda: counted(running) == 1, "the one line that came in between")
            running.wait_status("healthy")
            assert counted(running) == 1
            assert Scrape(running.get("/metrics")[1]).value("gpuwarden_kernel_log_gaps_total") == 0
            assert running.stop() == 0


@pytest.mark.slow
def test_a_frozen_disk_stops_neither_judging_nor_publishing_and_nothing_is_forgotten(host: FakeHost) -> None:
    with ext4(host.folder / "disk") as disk:
        host.state_dir = disk / "state"
        host.configure()
        with host.daemon() as running:
            running.wait_status("healthy")
            with frozen(disk):
                host.xid(0, 95)
                running.wait_status("failure", "xid.95")
                running.wait_status("failure", "ledger_unavailable")
                before = running.heartbeat()["sequence"]
                running.wait(lambda: running.heartbeat()["sequence"] > before + 3, "passes on a frozen disk")
                assert running.get("/v1/events?since=0")[0] == 200
            running.wait(lambda: "ledger_unavailable" not in running.heartbeat()["reasons"], "the disk's return")
            assert running.stop() == 0
        with host.daemon() as running:
            running.wait_status("failure", "xid.95")
            assert running.stop() == 0


def component_up(running: RunningDaemon, component: str) -> float | None:
    return Scrape(running.get("/metrics")[1]).value("gpuwarden_component_up", component=component)


def is_reported(running: RunningDaemon, component: str, why: str) -> bool:
    """Return True if the fault is reported as a finding, a metric and a line of the status."""
    status = running.status()
    finding = any(
        f["id"] == f"output_failed.{component}@node" and why in f["evidence"]["why"] for f in status["findings"]
    )
    line = any(text.startswith(f"{component}: ") and why in text for text in status["errors"])
    return finding and line and component_up(running, component) == 0.0


@pytest.mark.slow
def test_a_full_run_directory_is_reported_and_no_verdict_calls_a_failed_node_healthy(host: FakeHost) -> None:
    with tmpfs(host.folder / "disk", "256k") as disk:
        host.run_dir = disk / "run"
        host.configure()
        verdict = host.run_dir / "verdict"
        with host.daemon() as running:
            running.wait_status("healthy")
            running.wait(lambda: "\nstate=healthy\n" in whole_lines(verdict), "the verdict")
            filler = fill(disk)
            running.wait(
                lambda: is_reported(running, "verdict", "No space left on device"), "the full disk to be reported"
            )
            host.xid(0, 95)
            running.wait_status("failure", "xid.95")
            running.wait(lambda: "\nstate=healthy\n" not in whole_lines(verdict), "no healthy verdict")
            filler.unlink()
            running.wait(lambda: component_up(running, "verdict") == 1.0, "the disk's return")
            running.wait(lambda: "\nstate=failure\n" in whole_lines(verdict), "the verdict")
            running.wait(
                lambda: "output_failed.verdict" not in running.heartbeat()["reasons"], "the end of the finding"
            )
            assert running.stop() == 0


@pytest.mark.slow
def test_a_read_only_run_directory_is_reported(host: FakeHost) -> None:
    with tmpfs(host.folder / "disk", "256k") as disk:
        host.run_dir = disk / "run"
        host.configure()
        with host.daemon() as running:
            running.wait_status("healthy")
            remount(disk, "ro")
            running.wait(
                lambda: is_reported(running, "verdict", "Read-only file system"), "the read-only disk to be reported"
            )
            remount(disk, "rw")
            running.wait(lambda: component_up(running, "verdict") == 1.0, "the disk's return")
            assert running.stop() == 0


@pytest.mark.slow
def test_a_run_directory_that_is_read_only_at_the_start_leaves_heartbeat_and_metrics(host: FakeHost) -> None:
    """The port alone can still say failure. What could not be made is made as soon as it can be."""
    with tmpfs(host.folder / "disk", "256k") as disk:
        host.run_dir = disk / "run"
        host.configure()
        remount(disk, "ro")
        with host.daemon() as running:
            running.wait_status("warning", "output_failed.control", "output_failed.verdict")
            assert component_up(running, "control") == 0.0
            host.xid(0, 95)
            running.wait_status("failure", "xid.95")
            assert running.get("/heartbeat")[0] == 503
            shown = host.order("status")
            assert (shown.returncode, "no daemon answers" in shown.stderr) == (3, True)
            remount(disk, "rw")
            running.wait(lambda: component_up(running, "control") == 1.0, "the socket")
            assert host.order("status").returncode == 2
            assert running.stop() == 0


@pytest.mark.slow
def test_what_the_prolog_goes_by_is_written_as_soon_as_the_disk_takes_it(host: FakeHost) -> None:
    with tmpfs(host.folder / "disk", "256k") as disk:
        host.state_dir = disk / "state"
        host.configure('[slurm]\nenabled = true\non_stale = "refuse"\njobs = false\n')
        host.config.write_text('mode = "enforce"\n' + host.config.read_text())
        filler = fill(disk)
        mark = disk / "state-slurm/refuse"
        with host.daemon() as running:
            running.wait(
                lambda: is_reported(running, "slurm", "No space left on device"), "the full disk to be reported"
            )
            assert not mark.exists()
            filler.unlink()
            running.wait(mark.exists, "the mark")
            running.wait(lambda: component_up(running, "slurm") == 1.0, "the metric to show it")
            assert running.stop() == 0
