"""The doctor on what `gpuwarden test` needs of a host, and who is in its way."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from gpuwarden.config.model import Config, Paths, load
from gpuwarden.config.sources import Sources
from gpuwarden.doctor.row import Grade
from gpuwarden.features.active_test import doctor as active_test
from support.daemons import FakeHost
from support.fake_cuda_library import build_library
from support.quick import first_quick


async def test_a_host_without_a_driver_has_nothing_to_test(tmp_path: Path) -> None:
    (row,) = await active_test.active_test(Config(paths=Paths(proc=tmp_path)))
    assert row.grade is Grade.OK


async def test_libraries_are_found_as_a_worker_finds_them() -> None:
    library = build_library()
    cuda, compiler = await active_test.libraries({"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(library.parent)})
    assert (cuda.grade, compiler.grade) == (Grade.OK, Grade.WARN)
    assert compiler.to_do.startswith("install the driver's package that has it (Debian: libnvidia-ptxjitcompiler1)")


async def test_no_library_is_loaded_into_the_doctor_itself() -> None:
    library = build_library()
    await active_test.libraries({"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(library.parent)})
    assert str(library) not in Path("/proc/self/maps").read_text()


def test_the_device_node_of_uvm_must_be_there_and_open_to_this_user(tmp_path: Path) -> None:
    node, absent = tmp_path / "nvidia-uvm", tmp_path / "nvidia-modprobe"
    assert "modprobe nvidia-uvm" in active_test.uvm(node, absent).to_do
    node.touch()
    assert active_test.uvm(node, absent).grade is Grade.OK


@pytest.mark.needs("root")
@pytest.mark.parametrize(("mode", "grade"), [(0o4755, Grade.OK), (0o755, Grade.WARN)])
def test_a_device_node_of_uvm_that_the_first_program_makes_is_not_missed(
    tmp_path: Path, mode: int, grade: Grade
) -> None:
    modprobe = tmp_path / "nvidia-modprobe"
    modprobe.touch()
    modprobe.chmod(mode)
    assert active_test.uvm(tmp_path / "nvidia-uvm", modprobe).grade is grade


@pytest.mark.parametrize(
    ("limit", "grade"), first_quick(1, [(4 << 30, "warn"), (128 << 30, "ok"), (resource.RLIM_INFINITY, "ok")])
)
def test_a_limit_of_the_address_space_is_named(limit: int, grade: str) -> None:
    """The test runs in a process of its own, since the limit could not be lifted again."""
    program = (
        "import resource, sys; from gpuwarden.features.active_test.doctor import address_space;"
        "n = int(sys.argv[1]); resource.setrlimit(resource.RLIMIT_AS, (n, n)); print(address_space().grade.value)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(limit)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == grade


async def test_a_worker_of_an_earlier_test_that_sleeps_in_the_driver_is_named(tmp_path: Path) -> None:
    assert (await active_test.workers(tmp_path)).grade is Grade.OK
    own, users = os.geteuid(), os.geteuid() + 4711
    for pid, name, state, uid in (
        (77, "gw-test", "D", own),
        (78, "gw-test", "S", own),
        (79, "train", "D", own),
        (80, "gw-test", "D", users),
    ):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} ({name}) {state} 1 {' '.join(['0'] * 48)}\n")
        (folder / "status").write_text(f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    row = await active_test.workers(tmp_path)
    assert (row.grade, row.found) == (Grade.WARN, "hang in the driver and cannot be killed: pid 77")
    assert "reboot" in row.to_do


async def test_who_is_on_the_gpus_is_named(tmp_path: Path) -> None:
    host = FakeHost(tmp_path, 2)
    host.fake.process(1, os.getpid(), 1 << 30)
    os.environ["FAKE_NVML_CONTROL"] = str(host.fake.control)
    try:
        (row,) = await active_test.gpus(load(Sources(file=host.config, required=True)))
    finally:
        del os.environ["FAKE_NVML_CONTROL"]
    assert row.grade is Grade.OK
    assert row.found.startswith(f"1 of 2 could be tested now: GPU 1: used by process {os.getpid()}")
