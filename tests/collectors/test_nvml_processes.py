"""The processes on a GPU as libraries of NVML list them, whose records are of two lengths."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from gpuwarden_collectors.active_test.others import Others
from gpuwarden_collectors.nvml.options import NvmlOptions
from gpuwarden_collectors.nvml.reader import NvmlReader
from support.fake_nvml_library import BUILDS, CONTROL_VARIABLE, FakeNvml, build_library, uuid_of

LIST = "nvmlDeviceGetComputeRunningProcesses"
LISTED = [(4711, 526 << 20), (4712, 6_498_025_472), (4713, (4 << 30) + (2 << 20)), (4714, 3 << 30), (4715, 1 << 20)]


@pytest.fixture(
    params=[(), ("-DLONG_PROCESS_RECORDS",), ("-DPROCESSES_V2",)],
    ids=["as nvml.h", "first drivers of R535", "before R510"],
)
def fake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    fake = FakeNvml(build_library(BUILDS, *request.param), tmp_path).write(gpus=2)
    monkeypatch.setenv(CONTROL_VARIABLE, str(fake.control))
    yield fake
    fake.clear()


def test_each_process_on_a_gpu_is_listed(fake: FakeNvml) -> None:
    reader = NvmlReader(NvmlOptions(library=str(fake.library)))
    assert reader.read().gpus[0].processes == ()
    for pid, memory in LISTED:
        fake.process(0, pid, memory)
    first, second = reader.read().gpus
    assert [process.pid for process in first.processes] == [pid for pid, _ in LISTED]
    assert {(process.gpu_instance, process.compute_instance) for process in first.processes} == {(None, None)}
    assert (second.processes, first.errors) == ((), ())
    reader.close()


@pytest.mark.parametrize("fake", [(), ("-DLONG_PROCESS_RECORDS",)], indirect=True)
def test_a_refused_list_of_processes_is_an_error_of_the_pass(fake: FakeNvml) -> None:
    reader = NvmlReader(NvmlOptions(library=str(fake.library)))
    fake.error(0, f"{LIST}_v3", 4)
    first, _ = reader.read().gpus
    assert [(error.call, error.code) for error in first.errors] == [(f"{LIST}_v3", 4)]
    reader.close()


def test_an_active_test_finds_its_own_process_behind_another_of_it(fake: FakeNvml, tmp_path: Path) -> None:
    """`check_view` raises Obstructed where its own process is not in the list."""
    pynvml.nvmlLib = pynvml.CDLL(str(fake.library))
    pynvml.nvmlInit()
    fake.process(0, os.getppid(), 1 << 30).process(0, os.getpid(), 1 << 30)
    others = Others(pynvml, uuid_of(0), os.getpid(), proc=str(tmp_path / "proc"))
    others.check_view(clock=iter((0.0, 6.0)).__next__)
    pynvml.nvmlShutdown()
