"""The real worker process of an active test, on the fake libcuda and the fake NVML."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gpuwarden_collectors.active_test.facts import GpuMeasured
from gpuwarden_collectors.codec import from_wire
from support.fake_cuda_library import FakeCuda
from support.needs import host_pid_namespace

SOON = 60.0  # seconds that anything here may take at most
MODULE = "gpuwarden_collectors.active_test.process"
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join(sys.path)}


def request(fake: FakeCuda, level: str = "gate", **others: Any) -> dict[str, Any]:
    """Return the request for a worker that tests the first GPU."""
    host_pid_namespace()
    return {
        "uuid": fake.uuids[0], "slot": "00000000:1b:00.0", "level": level, "parent": os.getpid(),
        "cuda_library": str(fake.library), "nvml_library": str(fake.nvml_library),
    } | others  # fmt: skip


def command(asked: object) -> list[str]:
    """Return the command that starts the worker."""
    return [sys.executable, "-m", MODULE, asked if isinstance(asked, str) else json.dumps(asked)]


class ActiveWorker:
    """One that runs, and may start. `lines`: all that it wrote so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []
        with suppress(BrokenPipeError):  # it ended at once
            self.answer("go")

    def read(self) -> dict[str, Any]:
        """The next line; empty at the end."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            return {}
        if json.loads(line) == {"asks": "start"}:  # answered already
            return self.read()
        self.lines.append(json.loads(line))
        return self.lines[-1]

    def until(self, **wanted: object) -> dict[str, Any]:
        """The next line with these values. Raises EOFError if the worker ends before."""
        while line := self.read():
            if wanted.items() <= line.items():
                return line
        raise EOFError

    def answer(self, line: str) -> None:
        """Write one line to the worker's stdin."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def measured(self, memory: str = "all") -> GpuMeasured:
        """Read until the worker ends, and return its measurement. `memory` answers its question for memory."""
        while line := self.read():
            if "asks" in line:
                self.answer(memory if line["asks"] == "memory" else "go")
            if "measured" in line:
                assert self.read() == {}
                assert self.process.wait(SOON) == 0
                facts: GpuMeasured = from_wire(GpuMeasured, line["measured"])
                return facts
        raise EOFError(f"the worker ended with {self.process.wait(SOON)} and measured nothing")

    @property
    def phases(self) -> list[str]:
        """Return the phases that began, each once."""
        return list(dict.fromkeys(line["phase"] for line in self.lines if "phase" in line))


@contextmanager
def active_worker(asked: object, cache: Path, **environment: str) -> Iterator[ActiveWorker]:
    """Starts it; it is gone at the end. `cache`: the folder that the workers of a test share."""
    process = subprocess.Popen(
        command(asked), env=ENVIRONMENT | {"CUDA_CACHE_PATH": str(cache)} | environment,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        try:
            yield ActiveWorker(process)
        finally:
            process.kill()


def run(fake: FakeCuda, level: str = "gate", memory: str = "all", **others: Any) -> GpuMeasured:
    """Run one test from begin to end, and return its measurement."""
    with active_worker(request(fake, level, **others), fake.contexts) as worker:
        return worker.measured(memory)
