"""The pretended nv-hostengine of tests/support/fake_dcgm, and what may befall it.

    fake = FakeDcgm(tmp_path, gpus=2)
    with reading() as reader: ...         in a process with fake.environment

Every method acts at once, for all clients.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from gpuwarden_collectors.dcgm.facts import DcgmFacts, DcgmIncident, DcgmProblemKind
from gpuwarden_collectors.dcgm.options import DcgmOptions
from gpuwarden_collectors.dcgm.reader import DcgmReader
from gpuwarden_collectors.facts import Stamp
from support.fake_dcgm.fake_state import VARIABLE, State, a_gpu, healthy, sampled, state

BINDINGS = str(Path(__file__).with_name("fake_dcgm"))
ADDRESS = "unix:///engine"
ALL_SYSTEMS = 0xFFFFFFFF  # DCGM_HEALTH_WATCH_ALL
OK, INACCESSIBLE, LOST, DISABLED, DETACHED = 1, 3, 4, 6, 7  # dcgm_structs.h, DcgmEntityStatus_t


class FakeDcgm:
    def __init__(self, folder: Path, *, gpus: int = 2) -> None:
        self.path = folder / "dcgm"
        self.path.write_text(json.dumps(healthy(gpus)))

    @property
    def environment(self) -> dict[str, str]:
        return {VARIABLE: str(self.path)}

    @property
    def engine(self) -> State:
        """Return a copy of the engine's state."""
        now: State = json.loads(self.path.read_text())
        return now

    def change(self) -> AbstractContextManager[State]:
        return state(self.path)

    def set(self, **values: Any) -> None:
        with self.change() as engine:
            engine.update(values)

    def fail(self, call: str, code: int) -> None:
        """Let a call return this code from now on; 0 restores its usual answer."""
        with self.change() as engine:
            engine["codes"].pop(call, None)
            if code:
                engine["codes"][call] = code

    def field(self, gpu: int, field: int, value: float | str | None) -> None:
        """Set the value of a field. With None the engine has only a blank."""
        with self.change() as engine:
            engine["gpus"][gpu]["fields"][str(field)] = value

    def status(self, gpu: int, status: int) -> None:
        with self.change() as engine:
            engine["gpus"][gpu]["status"] = status

    def sample(self) -> None:
        """The engine asks for every field that is watched."""
        with self.change() as engine:
            sampled(engine)

    def add_gpu(self) -> None:
        with self.change() as engine:
            engine["gpus"].append(a_gpu(len(engine["gpus"])))

    def xid(self, gpu: int, xid: int) -> None:
        with self.change() as engine:
            engine["xids"].append([gpu, xid])
            engine["gpus"][gpu]["fields"]["230"] = xid
            engine["gpus"][gpu]["noted"] = time.time()

    def kernel_log_xid(self, gpu: int, xid: int) -> None:
        """Add an Xid that the engine read in the log and NVML did not report: it makes no incident. After Xid 119 the
        engine stops asking the driver.
        """
        with self.change() as engine:
            engine["gpus"][gpu]["fields"]["230"] = xid
            engine["gpus"][gpu]["noted"] = time.time()
            engine["blind"] = engine["blind"] or xid == 119

    def incident(self, code: int, text: str, *, health: int = 10, system: int = 0x10, of: tuple[int, int]) -> None:
        """`of` is the kind and id of the entity."""
        with self.change() as engine:
            engine["incidents"].append([system, health, code, text, *of])

    def clear_watches(self, mask: int = 0) -> None:
        """Set the watches of every group, as another client may do."""
        with self.change() as engine:
            for group in engine["groups"].values():
                group["mask"] = mask

    def restart(self) -> None:
        """Restart the engine: it loses its clients and all that it knows only for its own life."""
        with self.change() as engine:
            engine.update(running=True, xids=[], blind=False)
            engine.update(clients={}, groups={}, field_groups={}, watched=[], sampled=[])
            for gpu in engine["gpus"]:
                gpu["fields"].pop("230", None)

    def stop(self) -> None:
        self.restart()
        self.set(running=False)


_PROCESS = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); print(flush=True); sys.stdin.read()"


@contextmanager
def engine_process(fake: FakeDcgm, path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process in place of the engine that listens at `path`. To kill or stop it is to kill or stop the engine."""
    path.unlink(missing_ok=True)
    process = subprocess.Popen([sys.executable, "-c", _PROCESS, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        fake.restart()
        fake.set(pid=process.pid)
        yield process
    finally:
        process.kill()
        process.communicate()


def reader_of(**options: Any) -> DcgmReader:
    """Its clock goes on by one second at every read."""
    ticks = itertools.count()
    chosen = {"bindings": BINDINGS, "address": ADDRESS} | options
    return DcgmReader(DcgmOptions(**chosen), stamp=lambda: Stamp(float(next(ticks)), 0.0))


@contextmanager
def reading(**options: Any) -> Iterator[DcgmReader]:
    """Yield a connected reader, and close it afterwards."""
    reader = reader_of(**options)
    reader.connect()
    try:
        yield reader
    finally:
        reader.close()


def incident(facts: DcgmFacts) -> DcgmIncident:
    """Return the only incident; fail if there is another number."""
    (only,) = facts.incidents
    return only


def errors(facts: DcgmFacts) -> list[DcgmProblemKind]:
    return [problem.kind for problem in facts.problems]
