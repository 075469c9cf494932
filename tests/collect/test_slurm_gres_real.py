"""Slurm's numbers of GPUs are those of a real slurmd, however gres.conf is written."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.slurm.jobs import JobsReader
from gpuwarden_collectors.slurm.jobs_gres import conf_text, expanded, gpu_lines, in_order, kinds_of
from support.slurm import SLURM_PARTS, Slurm, require_slurm, running
from support.slurm_rig_hooks import Rig
from support.whole_lines import whole_lines

pytestmark = [*SLURM_PARTS, pytest.mark.slow]
TYPED = "gpu:b:1,gpu:a:2,gpu:c:1"
TYPES = {"a": (3, 0), "b": (1,), "c": (2,)}
"""The devices of each type, in the order of gres.conf, which is another than slurm.conf's."""


class TypedSlurm(Slurm):
    """A Slurm whose node has GPUs of several types."""

    def configure(self, more: str | None = None) -> None:
        super().configure(more)
        self.conf.write_text(self.conf.read_text().replace(f"Gres=gpu:{self.gpus}", f"Gres={TYPED}"))

    def plug(self, gpus: int) -> None:
        devices = ((kind, device) for kind, numbers in TYPES.items() for device in numbers)
        lines = (f"Name=gpu Type={kind} File={self.folder}/dev/nvidia{device}\n" for kind, device in devices)
        (self.folder / "gres.conf").write_text("".join(lines))


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    require_slurm()
    with tempfile.TemporaryDirectory(prefix="gw-slurm-", ignore_cleanup_errors=True) as folder:
        rig = Rig(TypedSlurm(Path(folder), nodes=1))
        rig.slurm.more = rig.prepare()
        with running(rig.slurm):
            yield rig


def test_a_job_is_on_the_device_of_the_type_that_it_was_given(rig: Rig) -> None:
    slurm = rig.slurm
    jobs = {kind: slurm.submit("sleep 600", f"--gres=gpu:{kind}:{len(TYPES[kind])}") for kind in TYPES}
    for job in jobs.values():
        note = rig.notes("n1") / str(job)
        slurm.wait(lambda note=note: "started=" in whole_lines(note), f"the prolog of job {job}")  # type: ignore[misc]
    asked: list[str] = []

    def ask(words: tuple[str, ...]) -> str:
        asked.append(words[0])
        return subprocess.run(words, env=slurm.environment, stdout=subprocess.PIPE, text=True, check=True).stdout

    def clock() -> Stamp:
        return Stamp(time.clock_gettime(time.CLOCK_BOOTTIME), time.time())

    reader = JobsReader(Path("/proc"), rig.notes("n1"), slurm.conf, node="n1", pids=tuple, ask=ask, clock=clock)
    facts = [reader.read() for _ in range(3)][-1]
    numbered = {job.id: tuple(facts.minors[index] for index in job.gpus) for job in facts.jobs}
    assert numbered == {job: tuple(TYPES[kind]) for kind, job in jobs.items()}
    devices = {job.id: tuple(facts.minors[index] for index in job.gpus) for job in facts.jobs}
    assert devices == {job: tuple(TYPES[kind]) for kind, job in jobs.items()}
    assert asked == ["sinfo"], "it is asked once a day"
    slurm.clear()


WRITTEN: Mapping[str, tuple[str, str]] = {
    "one line": ("gpu:4", "Name=gpu File=D/nvidia[3,1],D/nvidia0,D/nvidia2\n"),
    "types in another order": ("gpu:b:2,gpu:a:2", "".join(f"Name=gpu Type={t} File=D/nvidia{n}\n" for t, n in ("a3", "b1", "a0", "b2"))),
    "a type that slurm.conf has not": ("gpu:a:2", "Name=gpu Type=b File=D/nvidia[0-1]\nName=gpu Type=a File=D/nvidia[2-3]\n"),
    "types that slurm.conf does not name": ("gpu:4", "Name=gpu Type=b File=D/nvidia[2-3]\nName=gpu Type=a File=D/nvidia[0-1]\n"),
    "included": ("gpu:4", "Include more.conf\nName=gpu File=D/nvidia0\n"),
    "in quotes": ("gpu:4", 'name=gpu file="D/nvidia[3,1,0,2]" # "\n'),
    "lines without NodeName": ("gpu:4", "NodeName=n[1-2] Name=gpu File=D/nvidia[3,1]\nName=gpu File=D/nvidia0,D/nvidia2\n"),
    "parts of a GPU": ("gpu:4", "Name=gpu MultipleFiles=D/nvidia3,D/cap1\nName=gpu MultipleFiles=D/nvidia3,D/cap2\nName=gpu File=D/nvidia[0-1]\n"),
}  # fmt: skip
MORE = "Name=gpu File=D/nvidia3\nName=gpu File=D/nvidia[1-2]\n"


@pytest.mark.parametrize("name", WRITTEN)
def test_gres_conf_is_read_as_slurmd_reads_it(rig: Rig, tmp_path: Path, name: str) -> None:
    gres, text = WRITTEN[name]
    devices = f"{rig.folder}/dev"
    (tmp_path / "slurm.conf").write_text(rig.slurm.conf.read_text().replace(f"Gres={TYPED}", f"Gres={gres}"))
    (tmp_path / "gres.conf").write_text(text.replace("D/", f"{devices}/"))
    (tmp_path / "more.conf").write_text(MORE.replace("D/", f"{devices}/"))
    (tmp_path / "cgroup.conf").write_text(f"{rig.slurm.cgroup}\n")
    for part in ("cap1", "cap2"):
        Path(devices, part).touch()
    printed = rig.slurm.command("slurmd", "-G", "-N", "n1", more={"SLURM_CONF": str(tmp_path / "slurm.conf")})
    by_slurmd = re.findall(rf"Gres Name=gpu .*File=({devices}\S+)", printed)
    assert by_slurmd, printed
    lines = in_order(gpu_lines(conf_text(tmp_path / "gres.conf"), "n1"), kinds_of(gres))
    ours = [file for line in lines for file in line.files]
    assert ours == [
        file for files in by_slurmd for file in (expanded(files)[:1] if "/cap" in files else expanded(files))
    ]
