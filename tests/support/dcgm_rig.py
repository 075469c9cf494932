"""The double of DCGM as a rig that the stories can run on (see dcgm_stories)."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from gpuwarden_collectors.dcgm.bindings import Bindings, open_bindings
from gpuwarden_collectors.dcgm.reader import DcgmReader
from support.dcgm import BINDINGS, DETACHED, DISABLED, LOST, OK, FakeDcgm, engine_process, reader_of

FP64_BLANK = 140737488355328.0  # DCGM_FP64_BLANK


class DoubleRig:
    """A rig for a process whose environment leads to the engine in `folder`. `hang_limit` is short: nobody must wait for 60 s."""

    hang_limit = 0.2

    def __init__(self, folder: Path) -> None:
        self.dcgm: Bindings = open_bindings(BINDINGS)
        self._folder = folder
        self._stack = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, gpus: int) -> None:
        """An engine with nothing but the modules that the open source has, as the recorded one was."""
        self.fake = FakeDcgm(self._folder, gpus=gpus)
        self.fake.set(unloaded=[3, 7, 9], profiling_code=-33, hang_limit=self.hang_limit)
        with self.fake.change() as engine:
            for gpu in engine["gpus"]:
                gpu["fields"].update({"84": 1, "170": 3, "174": 0x1AA})
        self._process = self._stack.enter_context(engine_process(self.fake, self._folder / "socket"))

    def client(self) -> Any:
        return self.dcgm.pydcgm.DcgmHandle(unixSocketPath="/engine").handle

    def reader(self, **options: Any) -> DcgmReader:
        return reader_of(**options)

    def lose(self, gpu: int) -> None:
        self.fake.status(gpu, LOST)

    def back(self, gpu: int) -> None:
        self.fake.status(gpu, OK)

    def detach(self) -> None:
        self._all(DETACHED)

    def attach(self) -> None:
        self._all(OK)

    def pause(self) -> None:
        self._all(DISABLED)

    def resume(self) -> None:
        self._all(OK)

    def _all(self, status: int) -> None:
        for gpu in range(len(self.fake.engine["gpus"])):
            self.fake.status(gpu, status)

    def sample(self) -> None:
        self.fake.sample()

    def xid(self, gpu: int, xid: int) -> None:
        self.fake.xid(gpu, xid)

    def kernel_log_xid(self, gpu: int, xid: int) -> None:
        self.fake.kernel_log_xid(gpu, xid)

    def field(self, gpu: int, field: int, value: float) -> None:
        self.fake.field(gpu, field, None if value == FP64_BLANK else value)

    def clear_watches(self, mask: int) -> None:
        self.fake.clear_watches(mask)

    def stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        os.waitid(os.P_PID, self._process.pid, os.WCONTINUED)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        self.kill()
        self._process = self._stack.enter_context(engine_process(self.fake, self._folder / "socket"))

    def measured(self, call: Callable[[], Any]) -> tuple[Any, float]:
        begun = time.monotonic()
        return call(), time.monotonic() - begun
