"""What the daemon leaves for others: dcgm-exporter's job mapping, the mark for Slurm's prolog, the output of `gpuwarden slurm`."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gpuwarden.features.slurm.control import slurm_verbs
from gpuwarden.features.slurm.job_mapping import JobMapping, mapping
from gpuwarden.features.slurm.refuse_mark import AGAIN_AFTER, RefuseMark
from gpuwarden.health.model import Health
from gpuwarden.publish.metrics.exposition import Holder, Renderer
from gpuwarden.publish.snapshot import Enforced, Snapshot
from gpuwarden_collectors.facts import GpuProcess, MigInstance, Stamp
from gpuwarden_collectors.slurm.jobs_facts import Job, JobProcess, JobsFacts
from support.snapshots import UPTIME, at, snapshot

JOBS = JobsFacts(
    jobs=(
        Job(id=11, uid=1001, user="alice", gpus=(0, 1), started=5.0),
        Job(id=12, uid=1002, gpus=(1,), started=5.0),
        Job(id=13, uid=1002, gpus=(2,), started=5.0, ended=9.0),
    ),
    processes=(JobProcess(pid=71, uid=1001, job=11), JobProcess(pid=73, uid=1002, job=13, ended=9.0)),
)


def shown(jobs: JobsFacts | None = JOBS, *, mig: bool = False) -> Snapshot:
    base = snapshot(4)
    assert base.nvml is not None
    first, *others = base.nvml.gpus
    instances = tuple(MigInstance(gpu_instance=n, compute_instance=0) for n in (1, 2)) if mig else ()
    first = replace(
        first, mig=instances, processes=(GpuProcess(pid=71, gpu_instance=2 if mig else None), GpuProcess(pid=73))
    )
    return replace(base, jobs=jobs, nvml=replace(base.nvml, gpus=(first, *others)))


def test_each_gpu_with_jobs_has_a_file_with_a_job_a_line() -> None:
    assert mapping(shown()) == {"0": "11\n", "1": "11\n12\n"}
    assert mapping(shown(None)) == {}


def test_with_mig_only_a_process_shows_on_which_instance_a_job_is() -> None:
    """Numbers of Slurm's count instances then: 0 and 1 are both on the first GPU."""
    assert mapping(shown(mig=True)) == {"0.2": "11\n"}


async def test_the_folder_holds_exactly_these_files_and_others_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "mapping"
    folder.mkdir()
    for name in ("3", "7.1", "notes", "0.new"):
        (folder / name).write_text("99\n")
    keeper = JobMapping(folder, lambda: at(0))
    try:
        keeper.publish(shown())
        assert await keeper.flush(60)
        assert {path.name: path.read_text() for path in folder.iterdir()} == {
            "0": "11\n", "1": "11\n12\n", "notes": "99\n", "0.new": "99\n",
        }  # fmt: skip
        assert stat.S_IMODE((folder / "0").stat().st_mode) == 0o644
        before = (folder / "0").stat().st_ino
        keeper.publish(shown())
        assert await keeper.flush(60)
        assert (folder / "0").stat().st_ino == before, "what does not change is not written again"
    finally:
        assert keeper.close(60)
    assert sorted(path.name for path in folder.iterdir()) == ["0.new", "notes"], "no jobs are published any more"


async def test_a_folder_that_cannot_be_written_is_reported_until_it_can(tmp_path: Path) -> None:
    folder = tmp_path / "mapping"
    folder.write_text("in the way")
    keeper = JobMapping(folder, lambda: at(0))
    try:
        keeper.publish(shown())
        assert await keeper.flush(60)
        assert "slurm.job_mapping_dir" in keeper.error(at(0))
        folder.unlink()
        keeper.publish(shown())
        assert await keeper.flush(60)
        assert keeper.error(at(0)) == ""
    finally:
        keeper.close(60)


class Marks:
    """The mark of one state directory, on a clock of the test's."""

    def __init__(self, folder: Path) -> None:
        self.state_dir = folder / "state"
        self.file = folder / "state-slurm/refuse"
        self.now = 1000.0

    def clock(self) -> Stamp:
        return Stamp(self.now, self.now)

    @contextmanager
    def mark(self, *, wanted: bool) -> Iterator[RefuseMark]:
        mark = RefuseMark(self.state_dir, self.clock, wanted=wanted)
        try:
            yield mark
        finally:
            assert mark.close(60)

    async def error_of(self, mark: RefuseMark) -> str:
        """After the next check of the mark."""
        self.now += AGAIN_AFTER
        mark.tend()
        assert await mark.flush(60)
        return mark.error(self.clock())


@pytest.fixture
def marks(tmp_path: Path) -> Marks:
    return Marks(tmp_path)


async def test_the_mark_for_the_prolog_is_there_while_it_is_wanted_and_stays_when_the_daemon_ends(marks: Marks) -> None:
    with marks.mark(wanted=True) as mark:
        assert await marks.error_of(mark) == ""
        assert marks.file.is_file()
        marks.file.unlink()
        assert await marks.error_of(mark) == ""
        assert marks.file.is_file(), "somebody removed it"
    assert marks.file.is_file()
    with marks.mark(wanted=False) as mark:
        assert await marks.error_of(mark) == ""
        assert not marks.file.exists()
        assert await marks.error_of(mark) == ""


async def test_a_mark_that_cannot_be_written_is_reported_and_written_as_soon_as_it_can_be(marks: Marks) -> None:
    marks.file.parent.write_text("in the way")
    with marks.mark(wanted=True) as mark:
        error = await marks.error_of(mark)
        assert error.startswith(f"cannot write {marks.file}: ")
        assert "jobs start while this node's health is unknown" in error
        marks.file.parent.unlink()
        assert await marks.error_of(mark) == ""
        assert marks.file.is_file()


async def test_a_mark_that_cannot_be_removed_is_reported(marks: Marks) -> None:
    marks.file.mkdir(parents=True)
    with marks.mark(wanted=False) as mark:
        assert "jobs are still refused" in await marks.error_of(mark)
        marks.file.rmdir()
        assert await marks.error_of(mark) == ""


def holder(snapshot: Snapshot) -> Holder:
    return Holder(Renderer(), snapshot)


@pytest.mark.parametrize(
    ("health", "excluded", "mode", "answer"),
    [
        (Health.HEALTHY, (), "enforce", "healthy: nothing to do"),
        (Health.FAILURE, (("slurm", "failure"),), "enforce", "failure: ; excluded by slurm:failure"),
        (Health.FAILURE, (), "observe", "failure: ; mode is observe"),
        (Health.FAILURE, (), "enforce", "failure: ; the daemon is acting on it"),
    ],
)
async def test_the_health_check_gets_the_state_of_the_node(
    health: Health, excluded: tuple[tuple[str, str], ...], mode: str, answer: str
) -> None:
    base = snapshot(1, health=health)
    shown = holder(replace(base, enforced=Enforced(excluded=excluded), service=replace(base.service, mode=mode)))
    asked: list[str] = []
    verbs = slurm_verbs(shown, lambda: asked.append("read"), lambda: asked.append("hook"), lambda: at(UPTIME))
    assert await verbs["slurm_healthcheck"]({}, None) == answer  # type: ignore[arg-type]
    assert asked == ["hook"]
    await verbs["look"]({}, None)  # type: ignore[arg-type]
    assert asked == ["hook", "read"]


async def test_who_is_on_which_gpu_can_be_asked() -> None:
    verbs = slurm_verbs(holder(shown()), lambda: None, lambda: None, lambda: at(UPTIME))
    document = await verbs["slurm_jobs"]({}, None)  # type: ignore[arg-type]
    assert document["known"]
    jobs = [[(job["job"], job["pids"], job["ended"]) for job in gpu["jobs"]] for gpu in document["gpus"]]
    assert jobs == [[(11, [71], False), (13, [73], True)], [(11, [], False), (12, [], False)], [], []]
    unread = slurm_verbs(holder(shown(None)), lambda: None, lambda: None, lambda: at(UPTIME))
    assert await unread["slurm_jobs"]({}, None) == {"known": False, "gpus": []}  # type: ignore[arg-type]
