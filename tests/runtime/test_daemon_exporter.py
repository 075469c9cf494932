"""The daemon in dcgm-exporter's place: MIG, jobs, what DCGM alone knows, and who was not answered."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.daemons import QUIET, FakeHost, RunningDaemon, slots
from support.dcgm import BINDINGS, FakeDcgm, engine_process
from support.scrape import Scrape


def page(daemon: RunningDaemon) -> Scrape:
    return Scrape(daemon.get("/metrics")[1])


@contextmanager
def daemon_with(host: FakeHost, publish: str, beside: str = QUIET) -> Iterator[RunningDaemon]:
    host.configure(beside=beside)
    host.config.write_text(host.config.read_text().replace("[publish]\n", f"[publish]\n{publish}"))
    with host.daemon() as running:
        yield running


def test_instances_and_jobs_are_published_as_configured(tmp_path: Path) -> None:
    host, jobs = FakeHost(tmp_path, gpus=2), tmp_path / "jobs"
    host.fake.mig(0, 7, 0, "1g.10gb", 9728).mig(0, 8, 0, "1g.10gb", 9728)
    jobs.mkdir()
    (jobs / "0.8").write_text("4711\n")
    with daemon_with(host, f'mig_series = "both"\nhpc_job_mapping_dir = "{jobs}"\n') as daemon:
        name = "DCGM_FI_DEV_FB_USED"
        daemon.wait(lambda: page(daemon).value(name, GPU_I_ID="8", hpc_job="4711") is not None, "a job")
        labels = [(w["gpu"], w.get("GPU_I_ID"), w.get("hpc_job")) for w in page(daemon).labels(name)]
        assert labels == [("0", None, None), ("0", "7", None), ("0", "8", "4711"), ("1", None, None)]
        daemon.wait(lambda: page(daemon).values("DCGM_FI_PROF_SM_ACTIVE", GPU_I_ID="7"), "a rate of an instance")
        assert page(daemon).value("gpuwarden_hpc_job_mapping_up") == 1
        (jobs / "0.8").unlink()
        daemon.wait(lambda: page(daemon).values(name, hpc_job="4711") == [], "the end of the job")


@pytest.mark.slow
def test_before_hopper_profiling_and_memory_beyond_repair_come_from_dcgm(tmp_path: Path) -> None:
    host, dcgm, place = FakeHost(tmp_path, gpus=1), FakeDcgm(tmp_path, gpus=1), tmp_path / "nv-hostengine"
    host.fake.write(gpus=1, generation="ampere")
    with dcgm.change() as engine:
        engine["gpus"][0]["slot"] = f"0000{slots(1)[0]}".upper()
    dcgm.set(profiling=True)
    dcgm.field(0, 1004, 0.25)
    dcgm.field(0, 1507, 0)
    read = QUIET.replace("[collectors.dcgm]\nenabled = false\n", "")
    read += f'[collectors.dcgm]\ninterval = "1s"\nbindings = "{BINDINGS}"\naddress = "unix://{place}"\n'
    host.configure(beside=read)
    with engine_process(dcgm, place), host.daemon(more=dcgm.environment) as daemon:
        daemon.wait(lambda: page(daemon).value("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE") == 0.25, "a share from DCGM")
        assert page(daemon).value("DCGM_FI_DEV_MEMORY_UNREPAIRABLE_FLAG") == 0


@pytest.mark.slow
def test_connections_that_had_to_make_room_are_counted(tmp_path: Path) -> None:
    host = FakeHost(tmp_path, gpus=1)
    with host.daemon() as daemon:
        assert page(daemon).value("gpuwarden_http_turned_away_total") == 0
        idle_clients = [socket.create_connection(("127.0.0.1", daemon.port), timeout=60) for _ in range(300)]
        try:
            daemon.wait(lambda: (page(daemon).value("gpuwarden_http_turned_away_total") or 0) >= 40, "the idle clients")
        finally:
            for each in idle_clients:
                each.close()
