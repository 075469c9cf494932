"""The daemon beside nv-hostengine: real processes, with the pretended bindings and a process in place of the engine."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from gpuwarden_collectors.dcgm.bindings import INSTALLED
from support.daemons import QUIET, FakeHost, RunningDaemon, children, slots
from support.dcgm import BINDINGS, FakeDcgm, engine_process
from support.scrape import Scrape

GPUS = 2
AT_ONCE = "".join(
    f'[checks.{code}]\nrise = "0s"\nfall = "0s"\n'
    for code in ("dcgm_unresponsive", "dcgm_faulty_memory", "collector_failed")
)
OTHERS_OFF = QUIET.replace("[collectors.dcgm]\nenabled = false\n", "")


class Rig:
    """A host with two GPUs that NVML and DCGM both have, and where the engine of DCGM listens."""

    def __init__(self, folder: Path) -> None:
        self.dcgm = FakeDcgm(folder, gpus=GPUS)
        self.place = folder / "nv-hostengine"
        with self.dcgm.change() as engine:
            for gpu, slot in zip(engine["gpus"], slots(GPUS), strict=True):
                gpu["slot"] = f"0000{slot}".upper()
        self.host = FakeHost(folder, gpus=GPUS)

    @contextmanager
    def daemon(self, dcgm: str) -> Iterator[RunningDaemon]:
        self.host.configure(f'[collectors.dcgm]\ninterval = "1s"\n{dcgm}{AT_ONCE}', beside=OTHERS_OFF)
        with self.host.daemon(more=self.dcgm.environment) as running:
            running.wait(lambda: running.heartbeat()["sequence"] > 0, "a pass")
            yield running

    @property
    def keys(self) -> str:
        return f'bindings = "{BINDINGS}"\naddress = "unix://{self.place}"\n'


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def outcome(daemon: RunningDaemon) -> str:
    return str(next((each["outcome"] for each in daemon.status()["collectors"] if each["name"] == "dcgm"), ""))


def findings(daemon: RunningDaemon) -> dict[str, dict[str, object]]:
    return {finding["check"]: finding for finding in daemon.status()["findings"]}


@pytest.mark.slow
def test_what_only_dcgm_sees_is_a_finding_until_it_is_gone(rig: Rig) -> None:
    with engine_process(rig.dcgm, rig.place), rig.daemon(rig.keys) as daemon:
        daemon.wait(lambda: outcome(daemon) == "observed", "a pass of DCGM")
        rig.dcgm.field(1, 1507, 1)
        daemon.wait_status("failure", "dcgm_faulty_memory")
        finding = findings(daemon)["dcgm_faulty_memory"]
        assert finding["gpu"] == 1
        assert Scrape(daemon.get("/metrics")[1]).value("gpuwarden_node_health", state="failure") == 1.0


@pytest.mark.slow
def test_an_xid_that_only_dcgm_saw_is_counted_once_also_after_a_restart_of_the_daemon(rig: Rig) -> None:
    with engine_process(rig.dcgm, rig.place):
        with rig.daemon(rig.keys) as daemon:
            daemon.wait(lambda: outcome(daemon) == "observed", "a pass of DCGM")
            rig.dcgm.xid(0, 48)
            daemon.wait_status("failure", "xid.48")
            assert daemon.stop() == 0
        with rig.daemon(rig.keys) as daemon:
            daemon.wait(lambda: outcome(daemon) == "observed", "a pass of DCGM")
            sequence = daemon.heartbeat()["sequence"]
            daemon.wait(lambda: daemon.heartbeat()["sequence"] > sequence + 10, "more passes")
            scrape = Scrape(daemon.get("/metrics")[1])
            assert scrape.value("gpuwarden_xid_total", pci_bus_id=slots(GPUS)[0], xid="48") == 1.0
            assert daemon.is_now("failure", "xid.48")


@pytest.mark.slow
def test_a_killed_engine_is_reported_while_the_heartbeat_responds_and_is_found_again(rig: Rig) -> None:
    with ExitStack() as stack:
        engine = stack.enter_context(engine_process(rig.dcgm, rig.place))
        daemon = stack.enter_context(rig.daemon(rig.keys))
        daemon.wait(lambda: outcome(daemon) == "observed", "a pass of DCGM")
        engine.kill()
        daemon.wait_status("warning", "dcgm_unresponsive")
        assert daemon.get("/heartbeat")[0] == 200
        stack.enter_context(engine_process(rig.dcgm, rig.place))
        daemon.wait_status("healthy")


@pytest.mark.slow
def test_a_hanging_engine_is_reported_while_the_gpus_go_on_being_observed(rig: Rig) -> None:
    with engine_process(rig.dcgm, rig.place) as engine, rig.daemon(f'deadline = "1s"\n{rig.keys}') as daemon:
        daemon.wait(lambda: outcome(daemon) == "observed", "a pass of DCGM")
        engine.send_signal(signal.SIGSTOP)
        daemon.wait_status("warning", "dcgm_unresponsive")
        sequence = daemon.heartbeat()["sequence"]
        daemon.wait(lambda: daemon.heartbeat()["sequence"] > sequence + 10, "ten passes of NVML")


@pytest.mark.skipif(any(map(Path.exists, INSTALLED)), reason="this host has DCGM")
def test_without_dcgm_the_collector_is_absent_and_nothing_is_wrong(rig: Rig) -> None:
    with rig.daemon("") as daemon:
        daemon.wait(lambda: outcome(daemon) == "absent", "DCGM to be absent")
        daemon.wait_status("healthy")
        assert children(daemon.process.pid) == [daemon.worker()]
        assert Scrape(daemon.get("/metrics")[1]).value("gpuwarden_collector_restarts_total", collector="dcgm") == 0.0


@pytest.mark.slow
def test_bindings_without_a_running_engine_start_no_worker(rig: Rig) -> None:
    with rig.daemon(f'bindings = "{BINDINGS}"\n') as daemon:
        daemon.wait(lambda: outcome(daemon) == "absent", "the engine to be absent")
        assert children(daemon.process.pid) == [daemon.worker()]


@pytest.mark.slow
def test_bindings_that_are_installed_later_are_read_without_a_restart(rig: Rig, tmp_path: Path) -> None:
    later = tmp_path / "bindings"
    keys = f'bindings = "{later}"\naddress = "unix://{rig.place}"\n'
    with engine_process(rig.dcgm, rig.place), rig.daemon(keys) as daemon:
        daemon.wait(lambda: outcome(daemon) == "failed", "the configured folder to be missed")
        assert children(daemon.process.pid) == [daemon.worker()]
        later.symlink_to(BINDINGS)
        daemon.wait(lambda: outcome(daemon) == "observed", "a pass of DCGM")
        assert len(children(daemon.process.pid)) == 2


@pytest.mark.slow
def test_bindings_that_do_not_fit_the_engine_are_reported_with_what_to_install(rig: Rig) -> None:
    rig.dcgm.fail("dcgmConnect_v3", -12)
    with engine_process(rig.dcgm, rig.place), rig.daemon(rig.keys) as daemon:
        daemon.wait_status("warning", "collector_failed.dcgm")
        assert "install the bindings" in str(findings(daemon)["collector_failed"])
