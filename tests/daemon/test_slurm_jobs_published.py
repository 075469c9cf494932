"""What the daemon leaves for others: dcgm-exporter's job mapping, the settings of Slurm's scripts, the words of `gpuwarden slurm`."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from gpuwarden.config_slurm import SlurmOptions
from gpuwarden.health.model import Health
from gpuwarden.publish.exposition import Holder, Renderer
from gpuwarden.publish.hook_settings import own_command, settings_text, write_settings
from gpuwarden.publish.job_mapping import JobMapping, mapping
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden.verbs_slurm import slurm_verbs
from gpuwarden_collectors.facts import GpuProcess, MigInstance
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


def test_with_mig_only_a_process_says_on_which_instance_a_job_is() -> None:
    """Numbers of Slurm's count instances then: 0 and 1 are both on the first GPU."""
    assert mapping(shown(mig=True)) == {"0.2": "11\n"}


async def test_the_folder_holds_exactly_these_files_and_others_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "mapping"
    folder.mkdir()
    for name in ("3", "7.1", "notes", "0.new"):
        (folder / name).write_text("99\n")
    keeper = JobMapping(folder, lambda: 0.0)
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
    assert sorted(path.name for path in folder.iterdir()) == ["0.new", "notes"], "nobody's jobs are told any more"


async def test_a_folder_that_cannot_be_written_is_told_until_it_can(tmp_path: Path) -> None:
    folder = tmp_path / "mapping"
    folder.write_text("in the way")
    keeper = JobMapping(folder, lambda: 0.0)
    try:
        keeper.publish(shown())
        assert await keeper.flush(60)
        assert "slurm.job_mapping_dir" in keeper.trouble()
        folder.unlink()
        keeper.publish(shown())
        assert await keeper.flush(60)
        assert keeper.trouble() == ""
    finally:
        keeper.close(60)


def test_the_scripts_are_told_what_they_need_and_nothing_where_slurm_is_off(tmp_path: Path) -> None:
    options = SlurmOptions(enabled=True, on_stale="drain", drain_by="hook", conf=Path("/etc/x.conf"))
    text = settings_text(options, enabled=True, mode="enforce", config=Path("/a.toml"), command=Path("/bin/g"))
    assert text == (
        "format=1\nmode=enforce\non_stale=drain\ndrain_by=hook\ncommand=/bin/g\nconfig=/a.toml\nslurm_conf=/etc/x.conf\n"
    )
    off = settings_text(options, enabled=False, mode="enforce", config=None, command=Path("/bin/g\nmode=enforce"))
    assert off == "format=1\nmode=enforce\non_stale=ignore\ndrain_by=daemon\nslurm_conf=/etc/x.conf\n"
    write_settings(tmp_path, text)
    assert stat.S_IMODE((tmp_path / "slurm-hooks").stat().st_mode) == 0o600


def test_this_program_is_found_where_it_is_installed() -> None:
    command = own_command()
    assert command is not None
    assert command.is_absolute()
    assert os.access(command, os.X_OK)


class Service:
    def __init__(self, snapshot: Snapshot) -> None:
        self.holder = Holder(Renderer(), snapshot)
        self.looks = 0

    def look(self) -> None:
        self.looks += 1


@pytest.mark.parametrize(
    ("health", "excluded_by", "mode", "answer"),
    [
        (Health.HEALTHY, (), "enforce", "healthy: nothing to do"),
        (Health.FAILURE, ("slurm:failure",), "enforce", "failure: ; excluded by slurm:failure"),
        (Health.FAILURE, (), "observe", "failure: ; mode is observe"),
        (Health.FAILURE, (), "enforce", "failure: ; the daemon is at it"),
    ],
)
async def test_the_health_check_is_told_how_things_stand(
    health: Health, excluded_by: tuple[str, ...], mode: str, answer: str
) -> None:
    base = snapshot(1, health=health)
    service = Service(replace(base, excluded_by=excluded_by, service=replace(base.service, mode=mode)))
    asked: list[bool] = []
    verbs = slurm_verbs(service, lambda: asked.append(True), lambda: at(UPTIME))
    assert await verbs["slurm_healthcheck"]({}, None) == answer  # type: ignore[arg-type]
    assert asked == [True]
    await verbs["look"]({}, None)  # type: ignore[arg-type]
    assert service.looks == 1


async def test_who_is_on_which_gpu_can_be_asked() -> None:
    verbs = slurm_verbs(Service(shown()), lambda: None, lambda: at(UPTIME))
    document = await verbs["slurm_jobs"]({}, None)  # type: ignore[arg-type]
    assert document["known"]
    jobs = [[(job["job"], job["pids"], job["ended"]) for job in gpu["jobs"]] for gpu in document["gpus"]]
    assert jobs == [[(11, [71], False), (13, [73], True)], [(11, [], False), (12, [], False)], [], []]
    unread = slurm_verbs(Service(shown(None)), lambda: None, lambda: at(UPTIME))
    assert await unread["slurm_jobs"]({}, None) == {"known": False, "gpus": []}  # type: ignore[arg-type]
