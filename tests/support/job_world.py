"""Several ranks of one training job: as threads of a test, or as processes that agree over a Unix socket."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any, TypeVar

from gpuwarden_job import Ranks

ROOT = Path(__file__).parent.parent.parent
JOB = ROOT / "job"
EXAMPLES = JOB / "examples"
BOUND = 60.0  # s, for what takes a fraction of one
STARTED: list[subprocess.Popen[str]] = []
T = TypeVar("T")


class Part:
    """A value that is part of a training."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def together(size: int, run: Callable[[Ranks], T]) -> list[T]:
    """Return the results of `run` on each of `size` ranks. The first exception is raised when all have ended."""
    barrier, values = Barrier(size, timeout=BOUND), [0] * size

    def largest(rank: int, value: int) -> int:
        values[rank] = value
        barrier.wait()
        maximum = max(values)
        barrier.wait()
        return maximum

    def one(rank: int) -> T:
        return run(Ranks(rank, size, lambda value: largest(rank, value)))

    with ThreadPoolExecutor(size) as pool:
        return [future.result() for future in [pool.submit(one, rank) for rank in range(size)]]


def socket_ranks(path: Path, rank: int, size: int) -> Ranks:
    """Rank 0 listens and answers all; one whose peer dies waits for ever, as in a real collective."""
    number = struct.Struct("!q")
    if rank == 0:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen(size)
        peers = [listener.accept()[0] for _ in range(size - 1)]
    else:
        peers = [_connected(path)]

    def receive(peer: socket.socket) -> int:
        data = peer.recv(number.size, socket.MSG_WAITALL)
        while len(data) < number.size:
            time.sleep(1)  # a dead peer: a collective hangs then
        return int(number.unpack(data)[0])

    def largest(value: int) -> int:
        if rank == 0:
            maximum = max(value, *(receive(peer) for peer in peers))
            for peer in peers:
                peer.sendall(number.pack(maximum))
            return maximum
        peers[0].sendall(number.pack(value))
        return receive(peers[0])

    return Ranks(rank, size, largest)


def _connected(path: Path) -> socket.socket:
    until = time.monotonic() + BOUND
    while True:
        try:
            peer = socket.socket(socket.AF_UNIX)
            peer.connect(str(path))
        except OSError:
            peer.close()
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
        else:
            return peer


def environment(run_dir: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment without a scheduler or a daemon of this host, in which the package and these helpers can be imported."""
    foreign = ("GPUWARDEN_", "SLURM_", "DSTACK_", "RANK", "WORLD_SIZE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    paths = [str(JOB), str(ROOT / "tests"), kept.get("PYTHONPATH", "")]
    own = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "GPUWARDEN_RUN_DIR": str(run_dir)}
    return {**kept, **own, "PYTHONDONTWRITEBYTECODE": "1", **(more or {})}


def start(*words: str | Path, run_dir: Path, more: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """A process of Python, its output and faults in one pipe."""
    process = subprocess.Popen(
        [sys.executable, "-u", *map(str, words)],
        env=environment(run_dir, more), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    STARTED.append(process)
    return process


def ended(process: subprocess.Popen[str], within: float = BOUND) -> tuple[int, str]:
    try:
        output, _ = process.communicate(timeout=within)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        raise AssertionError(f"still running after {within:g} s: {output}") from None
    return process.returncode, output


def free_port() -> int:
    """Below those that outgoing connections take, so that nobody gets it by chance before it is listened on."""
    while True:
        port = random.randrange(20000, 32000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def until(holds: Callable[[], object], awaited: str, within: float = BOUND) -> None:
    bound = time.monotonic() + within
    while not holds():
        if time.monotonic() > bound:
            raise AssertionError(f"not within {within:g} s: {awaited}")
        time.sleep(0.02)


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def give_notice(run_dir: Path, **other: Any) -> None:
    """Write a notice as the daemon does: it is there as a whole or not at all."""
    content = {
        "act": True, "id": "n-1", "kind": "spot", "reason": "reclaimed", "deadline": None,
        "deadline_boottime": time.clock_gettime(time.CLOCK_BOOTTIME) + 120, "boot_id": boot_id(), **other,
    }  # fmt: skip
    run_dir.mkdir(exist_ok=True)
    fresh = run_dir / "notice.json.new"
    fresh.write_text(json.dumps(content))
    fresh.replace(run_dir / "notice.json")
