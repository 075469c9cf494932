"""A host with a return gate: the daemon, and its service as systemd runs it, a process for each connection to a socket."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from ctypes.util import find_library
from pathlib import Path
from typing import Any

from support.active_test_hosts import ActiveHost
from support.daemons import Json, RunningDaemon
from support.fake_cuda_library import LIBRARY_NAME, FakeCuda
from support.needs import host_pid_namespace

TESTS = Path(__file__).parents[1]
PTX_COMPILER = "libnvidia-ptxjitcompiler.so.1"
BAD = 1
GATE = "[test]\nenabled = true\nreturn_gate = true\n"
SOON = '[policy]\nrestore_passes = 2\nrestore_after = "0s"\nlook_often = "5s"\n'


class GateSocket:
    """What `gpuwarden-test.socket` with its unit does: each connection is the standard input of a new process."""

    def __init__(self, path: Path, config: Path, variables: Mapping[str, str]) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self._command = [sys.executable, "-m", "support.gate_service_command", str(config)]
        self._variables = variables
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen()
        self._serving = threading.Thread(target=self._serve, daemon=True)
        self._serving.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                with connection:
                    descriptor = connection.fileno()
                    self.processes.append(
                        subprocess.Popen(self._command, stdin=descriptor, env=dict(self._variables), cwd=TESTS)
                    )

    def close(self) -> None:
        """End it with all of its processes, also the one that is just being started."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._serving.join()
        self._socket.close()
        for process in self.processes:
            process.kill()
            process.wait()


class GatedHost(ActiveHost):
    """Two GPUs; a file is its actuator unless `scheduler` names another one. Workers are stubs, or real on a fake `libcuda` after `with_cuda`."""

    def __init__(self, folder: Path, gpus: int = 2, scheduler: str = "") -> None:
        host_pid_namespace()
        super().__init__(folder, gpus)
        self.socket_path = folder / "test.sock"
        self.marker = folder / "out"
        scheduler = scheduler or f'[breaker]\nuncounted = "allow"\n[file]\npath = "{self.marker}"\n'
        self.gated = f'{SOON}{scheduler}{GATE}gate_socket = "{self.socket_path}"\n'
        self.libraries = folder / "libraries"
        self.libraries.mkdir()
        some = f"/lib/x86_64-linux-gnu/{find_library('m')}"
        for name in (LIBRARY_NAME, PTX_COMPILER):  # that they can be loaded is all that is asked of them
            shutil.copy(some, self.libraries / name)
        self.more = {"LD_LIBRARY_PATH": str(self.libraries), "ACTIVE_TEST_KEEP": "STUB_FOLDER LD_LIBRARY_PATH"}
        self.service: GateSocket | None = None
        self.configure(self.gated)

    def with_cuda(self) -> FakeCuda:
        """Add a fake CUDA whose memory has room for the 2 GiB that a test leaves where no scheduler keeps work away."""
        cuda = FakeCuda(self.folder / "cuda", self.fake, 2).add(f"memory {(2 << 30) + (160 << 20)}")
        shutil.copy(cuda.library, cuda.library.parent / PTX_COMPILER)
        self.fake.library = cuda.nvml_library
        self.configure(self.gated)
        self.more |= {"LD_LIBRARY_PATH": str(cuda.library.parent), "ACTIVE_TEST_WORKER": ""}
        return cuda

    def serve(self, **more: str) -> GateSocket:
        if self.service is not None:
            self.service.close()
            self.socket_path.unlink()
        self.service = GateSocket(self.socket_path, self.config, {**self.variables, **more})
        return self.service

    def end(self) -> None:
        super().end()
        if self.service is not None:
            self.service.close()

    def acting(self) -> Any:
        return self.daemon(more={"GPUWARDEN_MODE": "enforce"})

    def breaks(self) -> None:
        self.xid(BAD, 95)

    def is_mended(self) -> None:
        self.kernel_line("nvidia 0000:28:00.0: reset done")


def gate_of(daemon: RunningDaemon) -> Json:
    gate: Json = daemon.status()["tests"]["return_gate"]
    return gate


def gate_events(daemon: RunningDaemon) -> list[str]:
    """Return the events of the gate, `gate_ended` with its result, and the restoration. `gate_able` is left out."""
    events = json.loads(daemon.get("/v1/events?since=0")[1])["events"]
    return [
        f"{event['kind']} {event['data']['result']}" if event["kind"] == "gate_ended" else event["kind"]
        for event in events
        if event["kind"] in ("gate_wanted", "gate_begun", "gate_ended") or event["kind"] == "restored"
    ]
