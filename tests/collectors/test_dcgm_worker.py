"""The DCGM reader in its real worker process: an engine that hangs, dies, is absent, or is of another version."""

from __future__ import annotations

import shutil
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuwarden_collectors.base import CollectorError, Observation, PassOutcome, SourceAbsent
from gpuwarden_collectors.dcgm.bindings import open_bindings
from gpuwarden_collectors.dcgm.errors import Misfit
from gpuwarden_collectors.dcgm.facts import NOT_ANSWERING, DcgmFacts
from gpuwarden_collectors.dcgm.options import DcgmOptions
from gpuwarden_collectors.worker.life import WorkerLimits
from gpuwarden_collectors.worker.worker import Worker
from support.dcgm import BINDINGS, FakeDcgm
from support.workers import ENVIRONMENT, Make, exited, pid_of, report, seen_when, workers

IMPATIENT = WorkerLimits(deadline=1.5, term_grace=0.5)
MOST_MEMORY_KIB = 40 * 1000


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    async with workers() as make:
        yield make


@pytest.fixture
def fake(tmp_path: Path) -> FakeDcgm:
    return FakeDcgm(tmp_path)


def dcgm(make: Make, fake: FakeDcgm, limits: WorkerLimits | None = None, **options: Any) -> Worker[DcgmFacts]:
    return make(
        DcgmOptions(**{"bindings": BINDINGS, "address": "unix:///engine"} | options),
        limits or WorkerLimits(deadline=30.0),
        reader="gpuwarden_collectors.dcgm.reader:DcgmReader",
        facts_type=DcgmFacts,
        environment=ENVIRONMENT | fake.environment,
    )


def facts_of(seen: Observation[DcgmFacts]) -> DcgmFacts:
    assert seen.facts is not None, seen.error
    return seen.facts


async def test_one_process_keeps_one_connection(make: Make, fake: FakeDcgm) -> None:
    worker = dcgm(make, fake)
    first, second = await worker.observe(), await worker.observe()
    assert pid_of(first) == pid_of(second)
    assert facts_of(first).watched_since == facts_of(second).watched_since
    assert list(fake.engine["clients"].values()) == [pid_of(first)]
    await worker.close()
    assert fake.engine["clients"] == {}


@pytest.mark.slow
async def test_a_hung_engine_costs_the_process_and_the_next_one_finds_it_well(make: Make, fake: FakeDcgm) -> None:
    worker = dcgm(make, fake, IMPATIENT)
    first = await seen_when(worker, lambda worker: worker.ever_answered)
    fake.set(hang=True)
    seen = await worker.observe()
    assert (seen.outcome, report(seen).missed) == (PassOutcome.TIMED_OUT, 1)
    await exited(pid_of(first))
    fake.set(hang=False)
    later = await seen_when(worker, lambda worker: worker.silent_since is None)
    assert pid_of(later) != pid_of(first)
    assert len(fake.engine["groups"]) == 1


async def test_a_library_that_crashes_is_a_failed_pass(make: Make, fake: FakeDcgm) -> None:
    worker = dcgm(make, fake)
    await worker.observe()
    fake.set(crash=True)
    seen = await worker.observe()
    assert (seen.outcome, report(seen).crashes) == (PassOutcome.FAILED, 1)
    fake.set(crash=False)
    assert facts_of(await worker.observe()).problems == ()


async def test_the_same_process_connects_to_a_restarted_engine(make: Make, fake: FakeDcgm) -> None:
    worker = dcgm(make, fake)
    first = await worker.observe()
    fake.restart()
    lost = await worker.observe()
    assert (lost.outcome, lost.error.startswith(f"{NOT_ANSWERING}cannot read DCGM at ")) == (PassOutcome.FAILED, True)
    again = await worker.observe()
    assert (len(facts_of(again).gpus), pid_of(again)) == (2, pid_of(first))


async def test_after_an_upgrade_a_new_process_loads_the_new_library(make: Make, fake: FakeDcgm) -> None:
    worker = dcgm(make, fake)
    first = await worker.observe()
    fake.fail("dcgmGetAllDevices", -12)
    assert (await worker.observe()).outcome is PassOutcome.FAILED
    await exited(pid_of(first))
    fake.fail("dcgmGetAllDevices", 0)
    again = await worker.observe()
    assert facts_of(again).problems == ()
    assert pid_of(again) != pid_of(first)


# --- Where there is none ------------------------------------------------------------------------------------------


@contextmanager
def listening(path: Path) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        yield
    path.unlink()


async def test_a_running_engine_is_found_and_missed_when_it_is_gone(make: Make, fake: FakeDcgm, tmp_path: Path) -> None:
    path = tmp_path / "sock"
    worker = dcgm(make, fake, address="", probe=(f"unix://{tmp_path}/none", f"unix://{path}"))
    seen = await worker.observe()
    assert (seen.outcome, seen.error[:42]) == (PassOutcome.ABSENT, "no nv-hostengine of root or of this user l")
    with listening(path):
        assert facts_of(await worker.observe()).address == f"unix://{path}"
    fake.stop()
    assert (await worker.observe()).outcome is PassOutcome.FAILED
    seen = await worker.observe()
    assert (seen.outcome, seen.error.startswith(f"{NOT_ANSWERING}the nv-hostengine that was ")) == (
        PassOutcome.FAILED,
        True,
    )


async def test_an_engine_inside_the_worker_only_where_it_is_wanted_and_in_a_new_process_each_time(
    make: Make, fake: FakeDcgm
) -> None:
    worker = dcgm(make, fake, address="", probe=(), embedded=True)
    first = await worker.observe()
    assert facts_of(first).address == "embedded"
    fake.restart()
    assert (await worker.observe()).outcome is PassOutcome.FAILED
    await exited(pid_of(first))
    again = await worker.observe()
    assert facts_of(again).address == "embedded"
    assert pid_of(again) != pid_of(first)


def test_without_bindings_dcgm_is_absent(tmp_path: Path) -> None:
    with pytest.raises(SourceAbsent, match="DCGM is not installed"):
        open_bindings("", installed=(tmp_path / "4", tmp_path / "3"))


def test_configured_bindings_that_are_not_there_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(CollectorError, match=r"collectors\.dcgm\.bindings\) has no pydcgm\.py") as error:
        open_bindings(str(tmp_path))
    assert not isinstance(error.value, SourceAbsent)


def test_bindings_of_dcgm_3_are_found_where_it_installs_them() -> None:
    assert str(open_bindings("", installed=(Path("/nowhere"), Path(BINDINGS))).folder) == BINDINGS


# --- Other bindings ------------------------------------------------------------------------------------------------


def bindings_with(folder: Path, old: str, new: str, files: str, source: str = BINDINGS) -> str:
    """Copy the bindings of `source` with one thing changed, and return their folder."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for path in folder.glob(files):
        path.write_text(path.read_text().replace(old, new))
    return str(folder)


async def test_the_response_of_dcgm_3_is_read_too(make: Make, fake: FakeDcgm, tmp_path: Path) -> None:
    older = bindings_with(tmp_path / "a", "HealthResponse_v5", "HealthResponse_v4", "*.py")
    older = bindings_with(tmp_path / "b", "HealthResponse_version5", "HealthResponse_version4", "*.py", older)
    fake.xid(0, 79)
    (reported,) = facts_of(await dcgm(make, fake, bindings=older).observe()).incidents
    assert reported.xid == 79


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("def dcgmHealthGet(", "def dcgmHealthAsk(", "lack dcgm_agent.dcgmHealthGet: DCGM 3.1 or newer is needed"),
        ("import ctypes", "import ctypes of another time", "cannot be imported: SyntaxError: "),
        ("import ctypes", "import no_such_module", "cannot be imported: ModuleNotFoundError: "),
    ],
)
async def test_unusable_bindings_are_reported(make: Make, tmp_path: Path, old: str, new: str, error: str) -> None:
    folder = bindings_with(tmp_path / "odd", old, new, "dcgm_agent.py")
    seen = await dcgm(make, FakeDcgm(tmp_path), bindings=folder).observe()
    assert seen.outcome is PassOutcome.FAILED
    assert error in seen.error


def test_what_a_misfit_is_for_the_daemon() -> None:
    assert issubclass(Misfit, CollectorError)
    assert not issubclass(Misfit, SourceAbsent)


async def test_a_worker_with_16_gpus_stays_below_40_mb(make: Make, tmp_path: Path) -> None:
    worker = dcgm(make, FakeDcgm(tmp_path, gpus=16))
    for _ in range(5):
        seen = await worker.observe()
    rollup = Path(f"/proc/{pid_of(seen)}/smaps_rollup").read_text()
    pss = int(rollup.partition("Pss:")[2].split()[0])
    assert pss < MOST_MEMORY_KIB
