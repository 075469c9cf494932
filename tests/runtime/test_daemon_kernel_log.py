"""The daemon and a kernel log with lines that the kernel did not write, or that bus and NVML deny."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from support.daemons import FakeHost, RunningDaemon, slots
from support.scrape import Scrape

REASONS = ("facility", "packet_filter", "unknown_slot")
BUS = slots(1)[0].removesuffix(".0")
TAIL = " IN= OUT=lo SRC=127.0.0.1 DST=127.0.0.1 LEN=29 TOS=0x00 PREC=0x00 TTL=64 ID=1 DF PROTO=UDP SPT=9 DPT=9 LEN=9 "
NONE = f"NVRM: Xid (PCI:{BUS}): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
RESET = f"nvidia {BUS}.0: reset done"


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path, gpus=2)


def by_a_process(host: FakeHost, text: str) -> None:
    with host.kmsg.open("a") as file:
        file.write(f"28,{900_000 + time.monotonic_ns() // 1_000 % 10**12},1,-;{text}\n")


def disbelieved(daemon: RunningDaemon) -> list[float | None]:
    page = Scrape(daemon.get("/metrics")[1])
    return [page.value("gpuwarden_kernel_log_disbelieved_total", reason=reason) for reason in REASONS]


def passes(daemon: RunningDaemon, number: int = 4) -> None:
    before = daemon.heartbeat()["sequence"]
    daemon.wait(lambda: daemon.heartbeat()["sequence"] > before + number, "passes")


@pytest.mark.slow
def test_forged_lines_raise_nothing_and_are_counted_from_zero(host: FakeHost) -> None:
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        assert disbelieved(daemon) == [0, 0, 0]
        host.kernel_line(f"NVRM: Xid (PCI:{BUS}): 95, forged{TAIL}")
        host.kernel_line("NVRM: Xid (PCI:0000:99:00): 95, Uncontained ECC error")
        host.kernel_line("nvidia-nvswitch0: SXid (PCI:0000:99:00.0): 20034, Fatal, Link 30 LTSSM Fault Up")
        by_a_process(host, f"NVRM: Xid (PCI:{BUS}): 95, forged")
        daemon.wait(lambda: disbelieved(daemon) == [1, 1, 2], "the lines to be counted")
        passes(daemon)
        assert daemon.heartbeat()["status"] == "healthy"
        assert "lines that look like faults were ignored" in " ".join(daemon.status()["errors"])
        assert daemon.stop() == 0


@pytest.mark.slow
def test_forged_lines_end_no_real_failure(host: FakeHost) -> None:
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        host.xid(0, 95)
        daemon.wait_status("failure", "xid.95")
        for text in (NONE, RESET):
            by_a_process(host, text)
        host.kernel_line(f"{NONE}{TAIL}")
        passes(daemon, 10)
        assert daemon.heartbeat()["status"] == "failure"
        assert daemon.stop() == 0


@pytest.mark.slow
def test_at_its_start_the_daemon_knows_the_slots_before_it_reads_the_kernel_log(host: FakeHost) -> None:
    host.kernel_line("NVRM: Xid (PCI:0000:99:00): 95, Uncontained ECC error")
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        daemon.wait(lambda: disbelieved(daemon) == [0, 0, 1], "the line to be counted")
        assert daemon.is_now("healthy")
        assert daemon.stop() == 0


@pytest.mark.slow
def test_an_xid_79_of_a_gpu_that_answers_is_a_warning_and_bus_and_nvml_are_asked_at_once(host: FakeHost) -> None:
    host.configure(interval="30s", deadline="10s")
    text = host.config.read_text().replace('interval = "500ms"', 'interval = "30s"')
    host.config.write_text(text)
    with host.daemon() as daemon:
        daemon.wait(lambda: daemon.heartbeat()["sequence"] == 1, "the first pass")
        host.xid(0, 79)
        daemon.wait(lambda: "xid.79" in daemon.heartbeat()["reasons"], "the Xid")
        assert daemon.heartbeat()["status"] == "warning"
        assert daemon.heartbeat()["sequence"] == 2, "no pass was due"
        [finding] = daemon.status()["findings"]
        assert "contradicted" in finding["evidence"]
        assert daemon.stop() == 0


@pytest.mark.slow
def test_an_xid_79_of_a_gpu_that_is_gone_is_a_failure(host: FakeHost) -> None:
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        host.fake.vanish(0)
        host.xid(0, 79)
        daemon.wait_status("failure", "xid.79")
        assert daemon.stop() == 0


@pytest.mark.slow
def test_an_xid_79_without_a_bus_to_ask_is_a_failure(host: FakeHost) -> None:
    host.config.write_text(host.config.read_text().replace("[collectors.pci]\n", "[collectors.pci]\nenabled = false\n"))
    with host.daemon() as daemon:
        daemon.wait(lambda: daemon.heartbeat()["sequence"] > 1, "passes")
        host.xid(0, 79)
        daemon.wait_status("failure", "xid.79")
        assert daemon.stop() == 0


@pytest.mark.slow
def test_check_asks_bus_and_nvml_too(host: FakeHost) -> None:
    host.xid(0, 79)
    done = host.command("check", "--config", host.config)
    assert "but its configuration space can be read and NVML has an answer of it" in done.stdout
    assert "WARNING" in done.stdout
