r"""The fake `libcuda.so.1`: compiled from tests/support/fake_cuda, controlled through a file that it reads once, at its first call.

    fake = FakeCuda.build(tmp_path, FakeNvml.build(tmp_path / "nvml").write(gpus=2))
    fake.add("wrong int8 17", "stuck 4096 3 1")

Memory kernels run on memory of the host, compute kernels give the results that are known of them; both take no time, but the GPU's clock
goes on as if they had. Every GPU is the same; by its UUID it is the one with this number of the fake NVML, which lists the contexts that are
made here. The file is text, one directive a line; a line that is no directive ends the process. CALL is a function of the library or the name
of a kernel, N counts from 1 and is 1 unless given, from the N-th call on.

    gpu UUID                              in the order of the fake NVML
    memory BYTES · context BYTES          of a GPU, and of it what a context takes; 32 MiB and 512 KiB
    largest BYTES                         of a single block
    sms N · capability MAJOR MINOR · shared_per_sm BYTES
    clock MHZ · write_speed · verify_speed · copy_speed · peer_speed BYTES_PER_SECOND
    checksum KERNEL SEED SUM              of one round
    contexts FOLDER
    log PATH                              a line for each block of 1 MiB and more: allocated or freed, bytes, second of the GPU
    no_peers
    integrated                            a GPU with the host's memory
    cover N                               blocks are put on the first N SMs only
    error CALL CODE [N]
    hang CALL [N]
    sleep CALL MICROSECONDS [N]
    flip OFFSET BIT                       once, in memory that was just written and is longer than OFFSET
    stuck OFFSET BIT VALUE                whenever memory was written
    flip_copy CALL OFFSET BIT [N]         in what a copy leaves; with N, of the N-th one alone
    wrong KERNEL|* SM|* FROM TO           one warp of it, in the kernel's chunks FROM to TO (not included), counted from 0
    slow KERNEL|* SM|* PERCENT [N]        more cycles; less than 0 is faster
    silent CALL [N]                       a compute kernel or a copy that ends well and has written nothing
    partner CALL N GPU PID                at the N-th call a process appears on a GPU
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Self

from gpuwarden_collectors.active_test.kernels.layout import CHECKSUMS
from support.fake_nvml_library import FakeNvml, built, uuid_of

SOURCES = Path(__file__).parent / "fake_cuda"
BUILDS = Path(__file__).parents[2] / ".build" / "fake_cuda"
LIBRARY_NAME = "libcuda.so.1"
MEMORY = 32 << 20
FLAGS = (
    *("-std=gnu11", "-O2", "-shared", "-fPIC", "-fvisibility=hidden"),
    *(f"-Wl,-soname,{LIBRARY_NAME}", "-Wl,-z,defs", "-Wall", "-Wextra", "-Werror"),
)


def build_library(builds: Path = BUILDS) -> Path:
    """Build the fake CUDA library, and return its path."""
    return built(SOURCES, builds / LIBRARY_NAME, FLAGS)


class FakeCuda:
    """The library and its control file. Both fakes keep theirs beside the library, and need nothing of the environment."""

    def __init__(self, folder: Path, nvml: FakeNvml, gpus: int) -> None:
        folder.mkdir(exist_ok=True)
        self.nvml = nvml
        self.library = Path(shutil.copy(build_library(), folder / LIBRARY_NAME))
        self.nvml_library = nvml.beside_control()
        self.contexts = folder / "contexts"
        self.contexts.mkdir()
        self.uuids = tuple(uuid_of(gpu) for gpu in range(gpus))
        self._control = folder / "control"
        nvml.add(f"contexts {self.contexts}")
        self._lines = [
            *(f"gpu {uuid}" for uuid in self.uuids),
            f"contexts {self.contexts}",
            *(
                f"checksum {kernel} {seed} {value}"
                for kernel, sums in CHECKSUMS.items()
                for seed, value in sums.items()
            ),
        ]
        self._healthy = len(self._lines)
        self.add()

    @classmethod
    def build(cls, folder: Path, *, gpus: int = 1) -> Self:
        """Build that many healthy H100 of 32 MiB, and the fake NVML of the same node."""
        (folder / "nvml").mkdir()
        return cls(folder / "cuda", FakeNvml.build(folder / "nvml").write(gpus=gpus), gpus)

    def add(self, *lines: str) -> Self:
        """Adds directives, for processes that have not called the library yet."""
        self._lines += lines
        self._control.write_text("".join(f"{line}\n" for line in self._lines))
        return self

    def mend(self) -> Self:
        """Ends every fault, for processes that have not called the library yet."""
        del self._lines[self._healthy :]
        return self.add()

    def holders(self, gpu: int = 0) -> set[int]:
        """Processes that made a context there and did not release it, whether they run or not."""
        contexts = (name.name.split(".") for name in self.contexts.iterdir())
        return {int(pid) for number, pid in contexts if int(number) == gpu}
