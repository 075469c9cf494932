r"""The fake `libnvidia-ml.so.1`: compiled from tests/support/fake_nvml, controlled through a file.

    fake = FakeNvml.build(tmp_path).write(gpus=8)
    subprocess.Popen(command, env={**os.environ, **fake.environment})
    fake.reading(3, "temperature", 95).xid(3, 79)

A process that has the library loaded sees a change of the file at its next call; no file at all is a healthy node of
eight H100. The file is text, one directive a line, empty lines and lines that open with `#` aside; a line that is no
directive ends the process with a message on stderr. GPU is a number from 0 to 15 that stays with the board whatever
NVML's index of it is, or `*`; CALL an exported name such as nvmlDeviceGetTemperature, or `*`; READING and LINK_READING
a row of readings.def; VALUE a number or `none` (not supported); numbers may be hexadecimal.

    gpus N                               0 to 16 GPUs; 8 unless given
    generation NAME                      hopper (unless given), blackwell, ampere, volta
    frozen                               time is frozen: no reading moves
    prices                               a call burns the CPU time that it costs on an H100 (prices.def)
    set GPU READING VALUE
    link GPU LINK LINK_READING VALUE     LINK is a number or `*`
    text GPU NAME VALUE                  a TEXT row of readings.def; the rest of the line, \xNN for any byte
    error GPU CALL CODE [once=PATH]      CODE an nvmlReturn (0: none after all); CALL may be field:ID, for one field value
    slow GPU CALL MICROSECONDS [once=PATH]
    hang GPU CALL [once=PATH]            until the file changes and no longer has it
    hang_hard GPU CALL [once=PATH]       the same, and the process ignores SIGTERM meanwhile
    crash GPU CALL [once=PATH]           SIGSEGV
    vanish GPU                           gone from the enumeration, handles to it are lost
    renew GPU                            its handles are others than before
    mig GPU GI CI PROFILE MEMORY_MIB     an instance; seen while `set GPU mig_mode 1`
    process GPU PID BYTES|none [GI CI]
    graphics GPU PID BYTES|none          a process of the list of graphics processes
    mps GPU PID BYTES|none               one of the list of MPS clients
    contexts FOLDER                      each file GPU.PID in it is a process, as long as PID runs (the fake libcuda makes them)
    xid SEQUENCE GPU NUMBER [GI CI]      once to each event set older than the line; SEQUENCE grows, from 1

Of two lines that contradict each other the later one wins. A fault with `*` for GPU also strikes calls that are about
no GPU, as nvmlInitWithFlags. With once=PATH it strikes only the call that creates this file: one call of one process.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self

SOURCES = Path(__file__).parent / "fake_nvml"
BUILDS = Path(__file__).parents[2] / ".build" / "fake_nvml"
LIBRARY_NAME = "libnvidia-ml.so.1"
CONTROL_VARIABLE = "FAKE_NVML_CONTROL"
COMPILER = "gcc"
FLAGS = (
    *("-std=gnu11", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread"),
    *(f"-Wl,-soname,{LIBRARY_NAME}", "-Wl,-z,defs", "-Wall", "-Wextra", "-Werror"),
)

Gpu = int | Literal["*"]
Value = int | Literal["none"]
Generation = Literal["hopper", "blackwell", "ampere", "volta"]


class FakeNvmlError(Exception):
    """A library cannot be built here, or was asked for something it does not know."""


def nvml_header() -> Path:
    """nvml.h of the installed package nvidia-nvml-dev, wherever this version of the package keeps it."""
    try:
        files = importlib.metadata.files("nvidia-nvml-dev") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "nvml.h":
            return Path(str(file.locate()))
    raise FakeNvmlError("nvml.h is missing: install the development dependencies, of which nvidia-nvml-dev brings it")


def compiler() -> str:
    path = shutil.which(COMPILER)
    if path is None:
        raise FakeNvmlError(
            f"{COMPILER} is missing: the fake libraries are compiled by the tests (Debian: apt install gcc)"
        )
    return path


def build_library(builds: Path = BUILDS, *more: str) -> Path:
    """The compiled library, with `more` flags. Processes that build it at once do no harm."""
    return built(SOURCES, builds / LIBRARY_NAME, (*FLAGS, *more), nvml_header())


def built(sources: Path, library: Path, flags: Sequence[str], header: Path | None = None) -> Path:
    """`library` compiled from all files in C of a folder, beside which it is put in a folder named after what went into it."""
    command = compiler()
    inputs = [*([header] if header else []), *sorted(sources.iterdir())]
    version = subprocess.run([command, "--version"], capture_output=True, check=True).stdout
    content = b"".join([version, repr(flags).encode(), *(file.read_bytes() for file in inputs)])
    result = library.parent / hashlib.sha256(content).hexdigest()[:16] / library.name
    if not result.exists():
        result.parent.mkdir(parents=True, exist_ok=True)
        headers = ["-isystem", str(header.parent)] if header else []
        _compile([command, *flags, *headers, *map(str, sorted(sources.glob("*.c")))], result)
    return result


def _compile(command: Sequence[str], library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        output = Path(folder) / library.name
        done = subprocess.run([*command, "-o", str(output), "-ldl"], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise FakeNvmlError(f"{library.name} does not compile:\n{done.stderr}")
        output.replace(library)


def uuid_of(gpu: int) -> str:
    """Return the UUID of a GPU of a Hopper node by its number (text uuid of readings.def)."""
    return f"GPU-{0x1B + 0x0D * gpu:02x}3c9e1a-7d42-4b8f-a1c6-5e0f2d9b8a37"


def names(kind: Literal["READING", "LINK", "TEXT"]) -> frozenset[str]:
    """Return the names of this kind in readings.def."""
    return frozenset(re.findall(rf"^{kind}\((\w+),", (SOURCES / "readings.def").read_text(), re.MULTILINE))


class FakeNvml:
    """The library and the control file of one simulated node. Every method that changes the node does so at once."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.library = library
        self.control = folder / "control"
        self._exported = library.read_bytes()
        self._node: list[str] = []
        self._faults: list[str] = []
        self._xids = 0
        self._markers = 0

    @classmethod
    def build(cls, folder: Path) -> Self:
        """A healthy node of 8 H100 with its control file in `folder`. Raises FakeNvmlError without gcc or nvml.h."""
        return cls(build_library(), folder).write()

    def driver_ms(self) -> float:
        """Milliseconds of CPU that the calls of this process would have taken on an H100 (prices.def), burnt or not."""
        prices = ctypes.CDLL(str(self.library)).fakeNvmlPrices
        prices.restype = ctypes.c_longlong
        return int(prices()) / 1000.0

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables with which a process finds the library by its name, and the control file."""
        others = os.environ.get("LD_LIBRARY_PATH")
        path = os.pathsep.join([str(self.library.parent), *([others] if others else [])])
        return {CONTROL_VARIABLE: str(self.control), "LD_LIBRARY_PATH": path}

    def write(
        self, *, gpus: int = 8, generation: Generation = "hopper", frozen: bool = False, prices: bool = False
    ) -> Self:
        """Makes it this node, without faults."""
        flags = [name for name, wanted in (("frozen", frozen), ("prices", prices)) if wanted]
        self._node = [f"gpus {gpus}", f"generation {generation}", *flags]
        return self.clear()

    def clear(self) -> Self:
        """Ends every fault and hang, brings back every GPU and value, drops Xids that nobody fetched."""
        self._faults = []
        return self.add()

    def instead(self) -> Self:
        """Like `clear`, but together with the next change: a pass in between would find a node without a fault."""
        self._faults = []
        return self

    def add(self, *lines: str) -> Self:
        """Adds directives, all at once."""
        self._faults += lines
        fresh = self.control.with_suffix(".new")
        fresh.write_text("".join(f"{line}\n" for line in [*self._node, *self._faults]))
        # The kernel's own stamp moves in ticks of some milliseconds; two files within one tick would appear the same.
        os.utime(fresh, ns=(time.time_ns(), time.time_ns()))
        fresh.replace(self.control)
        return self

    def reading(self, gpu: Gpu, name: str, value: Value) -> Self:
        return self.add(f"set {gpu} {_known(name, 'READING')} {value}")

    def link(self, gpu: Gpu, link: int | Literal["*"], name: str, value: Value) -> Self:
        return self.add(f"link {gpu} {link} {_known(name, 'LINK')} {value}")

    def text(self, gpu: Gpu, name: str, value: str | bytes) -> Self:
        raw = value.encode() if isinstance(value, str) else value
        escaped = "".join(rf"\x{byte:02x}" for byte in raw)
        return self.add(f"text {gpu} {_known(name, 'TEXT')} {escaped}")

    def error(self, gpu: Gpu, call: str, code: int, *, once: bool = False) -> Self:
        return self.add(f"error {gpu} {self._call(call)} {code}{self._marker(once)}")

    def slow(self, gpu: Gpu, call: str, microseconds: int, *, once: bool = False) -> Self:
        return self.add(f"slow {gpu} {self._call(call)} {microseconds}{self._marker(once)}")

    def hang(self, gpu: Gpu, call: str, *, hard: bool = False, once: bool = False) -> Self:
        return self.add(f"{'hang_hard' if hard else 'hang'} {gpu} {self._call(call)}{self._marker(once)}")

    def crash(self, gpu: Gpu, call: str, *, once: bool = False) -> Self:
        return self.add(f"crash {gpu} {self._call(call)}{self._marker(once)}")

    def init_error(self, code: int) -> Self:
        """9: driver not loaded, 18: library and driver of different versions, 4: no permission."""
        return self.error("*", "nvmlInitWithFlags", code)

    def marks_init(self) -> Path:
        """Return the file that the next process to initialise the library makes."""
        self.slow("*", "nvmlInitWithFlags", 0, once=True)
        return Path(f"{self.control}.{self._markers}")

    def hangs_once(self, call: str) -> Path:
        """Return the file that the next process to make this call makes; the call hangs until `clear`."""
        self.hang("*", call, once=True)
        return Path(f"{self.control}.{self._markers}")

    def lost(self, gpu: Gpu, code: int = 15) -> Self:
        """Every call about the GPU fails; 15: GPU is lost, 16: reset required, 10: timeout, 999: unknown error."""
        return self.error(gpu, "*", code)

    def vanish(self, gpu: Gpu) -> Self:
        return self.add(f"vanish {gpu}")

    def renew(self, gpu: Gpu) -> Self:
        return self.add(f"renew {gpu}")

    def mig(self, gpu: Gpu, gpu_instance: int, compute_instance: int, profile: str, memory_mib: int) -> Self:
        """Turns MIG on and adds an instance."""
        return self.add(f"set {gpu} mig_mode 1", f"mig {gpu} {gpu_instance} {compute_instance} {profile} {memory_mib}")

    def process(self, gpu: Gpu, pid: int, memory: Value, instance: tuple[int, int] | None = None) -> Self:
        return self.add(f"process {gpu} {pid} {memory}{_instance(instance)}")

    def beside_control(self) -> Path:
        """A copy of the library that finds the control file without an environment."""
        return Path(shutil.copy(self.library, self.control.with_name(LIBRARY_NAME)))

    def xid(self, gpu: int, number: int, instance: tuple[int, int] | None = None) -> Self:
        self._xids += 1
        return self.add(f"xid {self._xids} {gpu} {number}{_instance(instance)}")

    def _call(self, name: str) -> str:
        is_exported = name == "*" or name.startswith("field:") or b"\0" + name.encode() + b"\0" in self._exported
        if not is_exported:
            raise FakeNvmlError(f"{name} is no entry point of the fake NVML library")
        return name

    def _marker(self, once: bool) -> str:
        if not once:
            return ""
        self._markers += 1
        return f" once={self.control}.{self._markers}"


def _known(name: str, kind: Literal["READING", "LINK", "TEXT"]) -> str:
    if name not in names(kind):
        raise FakeNvmlError(f"{name} is no {kind} row of readings.def")
    return name


def _instance(instance: tuple[int, int] | None) -> str:
    return "" if instance is None else f" {instance[0]} {instance[1]}"
