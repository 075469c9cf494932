"""The doctor shows whether an end of this machine would be noticed, in what time, and whether jobs would be notified of it."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gpuwarden.config.model import Config, load
from gpuwarden.config.sources import Sources
from gpuwarden.config.termination import TerminationOptions
from gpuwarden.doctor import jobs, termination
from gpuwarden.doctor.row import Grade, Row
from gpuwarden.features.evacuation.doctor import job_signals
from support.daemons import FakeHost
from support.logind import Logind, message_bus
from support.metadata import (
    PORTAL,
    AlibabaCloud,
    AwsCloud,
    AzureCloud,
    Fault,
    GcpCloud,
    Simulator,
    TencentCloud,
    reset,
    silence,
    status,
)

PATIENCE = 60.0
CLOUDS: dict[str, Callable[..., AwsCloud | AlibabaCloud | AzureCloud | GcpCloud | TencentCloud]] = {
    "aws": AwsCloud, "gcp": GcpCloud, "azure": AzureCloud, "alibaba": AlibabaCloud, "tencent": TencentCloud,
}  # fmt: skip
FIRMWARE = {"aws": "Amazon EC2", "nebius": "Nebius", "tencent": "Tencent Cloud"}


def configured(folder: Path, text: str, *, firmware: str = "") -> Config:
    """Return a configuration on a machine whose firmware names a cloud, or none."""
    dmi = folder / "sys/class/dmi/id"
    dmi.mkdir(parents=True, exist_ok=True)
    (dmi / "sys_vendor").write_text(FIRMWARE.get(firmware, "QEMU") + "\n")
    file = folder / "gpuwarden.toml"
    file.write_text(f'[paths]\nsysfs = "{folder}/sys"\n[run]\ndir = "{folder}/run"\n{text}')
    return load(Sources(file=file, required=True, environment={}))


# --- the shutdown


@contextmanager
def logind_with(folder: Path, delay: float) -> Iterator[Logind]:
    with message_bus(folder) as bus:
        logind = Logind(bus, delay=delay)
        try:
            yield logind
        finally:
            logind.end()


async def budget(folder: Path, *, sources: str = '["shutdown"]', hold: str = "4s", firmware: str = "") -> Row:
    text = f'[termination]\nsources = {sources}\n[termination.shutdown]\nbus = "{folder}/bus"\nhold = "{hold}"\n'
    (row,) = await termination.shutdown_budget(configured(folder, text, firmware=firmware), PATIENCE)
    return row


@pytest.mark.parametrize(
    ("delay", "hold", "begins", "to_do"),
    [
        (5.0, "4s", "4s: logind waits 5s, gpuwarden delays it 4s", ("InhibitDelayMaxSec=30", "hold = ")),
        (5.0, "29s", "5s: logind waits 5s", ("InhibitDelayMaxSec=30",)),
        (30.0, "4s", "4s: logind waits 30s", ("hold = ",)),
        (30.0, "29s", "29s: logind waits 30s", ()),
        (18_446_744_073_709.0, "29s", "29s: logind waits for ever", ()),
    ],
)
async def test_the_shorter_of_what_logind_and_gpuwarden_allow_is_the_budget(
    tmp_path: Path, delay: float, hold: str, begins: str, to_do: tuple[str, ...]
) -> None:
    with logind_with(tmp_path, delay) as logind:
        row = await budget(tmp_path, hold=hold)
    assert row.found.startswith(begins)
    assert row.grade is (Grade.WARN if to_do else Grade.OK)
    assert [phrase in row.to_do for phrase in ("InhibitDelayMaxSec=30", "hold = ")] == [
        phrase in to_do for phrase in ("InhibitDelayMaxSec=30", "hold = ")
    ]
    assert logind.asked == ["Get"], "no inhibitor is taken"


async def test_an_unused_logind_is_reported_and_its_delay_is_graded_where_it_is_the_only_source(tmp_path: Path) -> None:
    with logind_with(tmp_path, 5.0):
        for firmware, sources, grade in (
            ("", '["auto"]', Grade.OK), ("aws", '["auto"]', Grade.OK), ("nebius", "[]", Grade.OK),
            ("nebius", '["auto"]', Grade.WARN), ("nebius", '["aws"]', Grade.WARN),
        ):  # fmt: skip
            row = await budget(tmp_path, sources=sources, firmware=firmware)
            assert row.grade is grade, row
            assert ("the source shutdown is not used" in row.found) is ((firmware, sources) != ("nebius", '["auto"]'))


async def test_without_a_bus_the_budget_is_not_asked_for(tmp_path: Path) -> None:
    row = await budget(tmp_path)
    assert (row.grade, row.found) == (Grade.WARN, f"not read: there is no system bus at {tmp_path}/bus")
    assert (await budget(tmp_path, sources='["auto"]')).grade is Grade.OK


async def test_a_bus_without_logind_and_one_that_does_not_respond_are_distinguished_from_a_response(
    tmp_path: Path,
) -> None:
    with message_bus(tmp_path):
        row = await budget(tmp_path)
    assert (row.grade, "InhibitDelayMaxUSec" in row.to_do) == (Grade.FAIL, False)
    assert row.found.startswith("logind: Get: ")
    (tmp_path / "bus").unlink(missing_ok=True)
    with closing(socket.socket(socket.AF_UNIX)) as silent:
        silent.bind(str(tmp_path / "bus"))
        silent.listen()
        config = configured(tmp_path, f'[termination]\nsources = ["shutdown"]\nshutdown.bus = "{tmp_path}/bus"\n')
        (row,) = await termination.shutdown_budget(config, 0.3)
    assert (row.grade, "cannot be used" in row.found) == (Grade.FAIL, True)


# --- the metadata services


def section(*names: str, endpoint: str, timeout: str = "5s") -> str:
    tables = "".join(f'[termination.{name}]\nendpoint = "{endpoint}"\ntimeout = "{timeout}"\n' for name in names)
    return f"[termination]\nsources = {json.dumps(names)}\n{tables}"


@pytest.mark.parametrize("name", CLOUDS)
async def test_a_metadata_service_that_answers_is_asked_for_the_name_and_type_of_the_machine_and_nothing_else(
    tmp_path: Path, name: str
) -> None:
    async with Simulator(CLOUDS[name]()) as service:
        (row,) = await termination.metadata(configured(tmp_path, section(name, endpoint=service.endpoint)))
        assert (row.grade, row.to_do) == (Grade.OK, "")
        assert row.found.startswith(f"{name} answers at {service.endpoint}")
        assert service.asked("scheduledevents") == service.asked("spot") == service.asked("preempted") == 0
        paths = {request.path for request in service.requests if request.method == "GET"}
        assert len(paths) == (2 if name in ("azure", "gcp") else 1), (
            paths
        )  # only there the type is none of the firmware's
    assert ("not read" in row.found) is (name == "azure")


@pytest.mark.parametrize(
    ("fault", "why"),
    [(silence, "no answer within"), (reset, "cannot be confirmed"), (status(503), "503"), (PORTAL, "names no")],
)
async def test_one_that_does_not_answer_as_its_cloud_would_fails_with_the_reason(
    tmp_path: Path, fault: Fault, why: str
) -> None:
    async with Simulator(TencentCloud()) as service:
        service.always = fault
        config = configured(tmp_path, section("tencent", endpoint=service.endpoint, timeout="200ms"))
        if fault is not silence:
            config = configured(tmp_path, section("tencent", endpoint=service.endpoint))
        (row,) = await termination.metadata(config)
    assert (row.grade, why in row.found) == (Grade.FAIL, True), row
    assert "metadata.tencentyun.com" in row.to_do


async def test_each_source_is_a_row_and_a_silent_one_hides_no_other(tmp_path: Path) -> None:
    async with Simulator(AwsCloud()) as service, Simulator(GcpCloud()) as other:
        other.always = silence
        text = section("aws", "gcp", endpoint=service.endpoint).replace(
            f'[termination.gcp]\nendpoint = "{service.endpoint}"\ntimeout = "5s"',
            f'[termination.gcp]\nendpoint = "{other.endpoint}"\ntimeout = "200ms"',
        )
        rows = await termination.metadata(configured(tmp_path, text, firmware="aws"))
    assert [row.grade for row in rows] == [Grade.OK, Grade.FAIL]
    assert "the firmware names aws" in rows[1].to_do


@pytest.mark.parametrize(
    ("firmware", "text", "grade", "phrase"),
    [
        ("", "", Grade.OK, "names no known cloud"),
        ("nebius", "", Grade.OK, "nebius, which only shuts down"),
        ("aws", "[termination]\nsources = []\n", Grade.OK, "the firmware names aws"),
        ("aws", '[termination]\nsources = ["shutdown"]\n', Grade.WARN, "the firmware names aws"),
    ],
)
async def test_without_configured_sources_the_firmware_decides(
    tmp_path: Path, firmware: str, text: str, grade: Grade, phrase: str
) -> None:
    (row,) = await termination.metadata(configured(tmp_path, text, firmware=firmware))
    assert (row.grade, phrase in row.found) == (grade, True), row
    assert bool(row.to_do) is (grade is not Grade.OK)


# --- what jobs need


def job_socket_row(folder: Path) -> Row:
    (row,) = jobs.job_socket(configured(folder, ""))
    return row


def test_a_missing_job_socket_will_be_created_and_what_prevents_that_is_reported(tmp_path: Path) -> None:
    assert (job_socket_row(tmp_path).grade, (tmp_path / "run").exists()) == (Grade.OK, False)
    (tmp_path / "run").write_text("in the way")
    assert job_socket_row(tmp_path).grade is Grade.FAIL
    (tmp_path / "run").unlink()
    (tmp_path / "run").mkdir()
    (tmp_path / "run/job.sock").write_text("in the way")
    assert job_socket_row(tmp_path).found.endswith("job.sock exists and is not a socket")
    (tmp_path / "run/job.sock").unlink()
    with closing(socket.socket(socket.AF_UNIX)) as left:
        left.bind(str(tmp_path / "run/job.sock"))  # of a daemon that was killed
    assert job_socket_row(tmp_path).grade is Grade.OK


def test_a_run_directory_whose_path_no_socket_can_have_fails(tmp_path: Path) -> None:
    config = configured(tmp_path, "")
    (row,) = jobs.job_socket(replace(config, run=replace(config.run, dir=tmp_path / ("long" * 40))))
    assert (row.grade, "too long" in row.found) == (Grade.FAIL, True), row


async def test_a_stranger_on_the_job_socket_is_not_taken_for_the_daemon(tmp_path: Path) -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b'["hello"]\n')
        await writer.drain()
        writer.close()

    (tmp_path / "run").mkdir()
    async with await asyncio.start_unix_server(babble, tmp_path / "run/job.sock"):
        row = await asyncio.to_thread(job_socket_row, tmp_path)
    assert (row.grade, "unexpected answer" in row.found) == (Grade.FAIL, True), row


@pytest.mark.slow
def test_the_daemon_answers_jobs_and_users_must_be_able_to_reach_it(tmp_path: Path) -> None:
    host = FakeHost(tmp_path, 1)
    config = configured(tmp_path, "")
    host.configure()
    with host.daemon() as daemon:
        daemon.wait((host.run_dir / "job.sock").exists, "the job socket")
        daemon.wait_status("healthy")
        (row,) = jobs.job_socket(config)
        assert (row.grade, row.found) == (Grade.OK, f"{host.run_dir}/job.sock answers: healthy")
        host.run_dir.chmod(0o700)
        (row,) = jobs.job_socket(config)
        assert (row.grade, row.to_do) == (Grade.WARN, f"chmod o+x {host.run_dir}")


def test_a_kernel_without_pidfd_is_reported() -> None:
    config = Config(termination=TerminationOptions(sources=()))
    assert [row.grade for row in job_signals(config)] == [Grade.OK]
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        (row,) = job_signals(config)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert (row.grade, row.found.startswith("pidfd_open: ")) == (Grade.WARN, True)
