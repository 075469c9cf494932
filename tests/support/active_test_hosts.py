"""A host on which `gpuwarden test` runs as a process: the fake library of NVML, and a stub in place of each GPU's worker."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from support.commands import environment
from support.daemons import PATIENCE, FakeHost, Json
from support.fake_cuda_library import FakeCuda
from support.fake_nvml_library import uuid_of
from support.needs import host_pid_namespace

SUPPORT = Path(__file__).parent
STUB = [sys.executable, str(SUPPORT / "stub_gpu_worker.py")]
MEASURED: Json = {
    "memory": {
        "total": 80 << 30, "free": 79 << 30, "tested": 79 << 30, "marches": 9, "mismatches": 0, "write": 3.18e12, "verify": 3.06e12,
    },
    "kernels": [
        {"kernel": "int8", "chunks": 20, "sms": 132, "cycles": 1689.0, "cycles_least": 1689.0, "cycles_most": 1689.0, "clock": 1850.0,
         "rate": 1.2e15},
    ],
    "pcie": {"to_device": 55e9, "to_host": 55e9},
    "temperature": 40, "temperature_most": 61, "kernels_version": 1,
}  # fmt: skip
PASSES: list[Json] = [{"write": {"phase": "int8", "of": 3}}, {"ask": "memory"}, {"write": {"measured": MEASURED}}]
"""A worker that finds nothing."""
LONG: list[Json] = [{"write": {"phase": "int8"}}, {"ask": "memory"}, {"write": {"phase": "memory"}}, {"sleep": 300}]
"""A worker that has not ended before it is ended."""
WRONG_ONCE: Json = {
    **MEASURED,
    "kernels": [{**MEASURED["kernels"][0], "deviations": [{"sm": 17, "chunks": 1, "warps": 1}], "deviating": 1}],
}


class ActiveHost(FakeHost):
    """`script`: what workers do, by UUID or "*". `worker`: the name of a process by which a worker that was left behind is found."""

    def __init__(self, folder: Path, gpus: int = 2) -> None:
        super().__init__(folder, gpus)
        self.stubs = folder / "stubs"
        self.stubs.mkdir()
        self.stubs.chmod(0o777)
        self.kubelet = folder / "kubelet"
        self.worker = f"gw-{hashlib.sha256(bytes(folder)).hexdigest()[:12]}"
        self.more: dict[str, str] = {}
        self._begun: list[subprocess.Popen[str]] = []
        self.script({"*": PASSES})

    def script(self, steps: Mapping[str, Any]) -> None:
        (self.stubs / "script.json").write_text(json.dumps(steps))

    @property
    def variables(self) -> dict[str, str]:
        return {
            **environment(self.folder, self.fake.environment), "ACTIVE_TEST_WORKER": json.dumps(STUB),
            "ACTIVE_TEST_KEEP": "STUB_FOLDER", "STUB_FOLDER": str(self.stubs), "ACTIVE_TEST_KUBELET": str(self.kubelet),
            "ACTIVE_TEST_NAME": self.worker, "SLURM_CONF": "/nonexistent/slurm.conf", "ACTIVE_TEST_NODE": f"gpuwarden-test{self.folder}"[:107], **self.more,
        }  # fmt: skip

    def argv(self, *words: str) -> list[str]:
        """Return the command line of `gpuwarden test` on this host."""
        return [sys.executable, str(SUPPORT / "active_test_command.py"), "test", "--config", str(self.config), *words]

    def begin(self, *words: str, **streams: Any) -> subprocess.Popen[str]:
        """Start `gpuwarden test`, and do not wait for its end."""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
        self._begun.append(
            subprocess.Popen(self.argv(*words), env=self.variables, stdin=subprocess.DEVNULL, text=True, **options)
        )
        return self._begun[-1]

    def end(self) -> None:
        """Nothing that it began is left, whatever state it is in."""
        for process in self._begun:
            if process.poll() is None:
                process.terminate()
            try:
                process.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()

    def test(self, *words: str) -> tuple[int, Json]:
        """Its exit code and its document."""
        return ended(self.begin("--json", *words))

    def alone(self, *words: str) -> tuple[int, Json]:
        """Run the test as on a host where nobody else is."""
        return self.test("--i-know-nobody-is-here", *words)

    def note(self, gpu: int, number: int = 0) -> Json:
        """Return the note that the worker of a GPU wrote."""
        note: Json = json.loads((self.stubs / f"{uuid_of(gpu)}.{number}").read_text())
        return note

    def forget_notes(self) -> None:
        """Remove all notes, so that scripts begin anew."""
        for note in self.stubs.glob("GPU-*"):
            note.unlink()

    def wait_note(self, gpu: int, number: int = 0) -> Json:
        wait((self.stubs / f"{uuid_of(gpu)}.{number}").exists, f"worker of GPU {gpu}")
        return self.note(gpu, number)

    @property
    def workers(self) -> list[str]:
        return sorted(path.name for path in self.stubs.glob("GPU-*.[0-9]"))


class CudaHost(ActiveHost):
    """Both libraries are the fake ones; workers are real."""

    def __init__(self, folder: Path, gpus: int = 2) -> None:
        host_pid_namespace()
        super().__init__(folder, gpus)
        self.cuda = FakeCuda(folder / "cuda", self.fake, gpus)
        self.fake.library = self.cuda.nvml_library
        self.configure()
        self.more = {
            "LD_LIBRARY_PATH": str(self.cuda.library.parent),
            "ACTIVE_TEST_KEEP": "LD_LIBRARY_PATH",
            "ACTIVE_TEST_WORKER": "",
        }


def ended(process: subprocess.Popen[str]) -> tuple[int, Json]:
    stdout, stderr = process.communicate(timeout=PATIENCE)
    assert stdout, f"exit code {process.returncode}: {stderr}"
    document: Json = json.loads(stdout)
    return process.returncode, document


def wait(condition: Callable[[], object], awaited: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited {PATIENCE:g} s in vain for {awaited}"
        time.sleep(0.01)


def gone(pid: int) -> bool:
    """Ended with all its threads, whether or not its parent knows."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1] == b"Z"
    except OSError:
        return True
