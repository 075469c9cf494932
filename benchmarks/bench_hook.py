"""The run time of the scripts that Slurm runs on each node and for each job, against a shell that does nothing.

Each runs in the interpreter of its first line, as under slurmd: by fork and exec, with an almost empty environment.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from common import percentile, spread, table
from gpuwarden.publish.files.healthy_mark import PERIOD

sys.path.insert(1, str(Path(__file__).parents[1] / "tests"))

from support.slurm_hooks import SCRIPTS, HookHost

TURNS = 7
RUNS = 300
LIMIT = 2.0
MEMORY = Path("/dev/shm")
"""Where the verdict of a real node is: in memory, as all of /run."""
MEASURES_FOR = 1800.0
"""Seconds, at most."""
JOB = {"SLURM_JOB_ID": "4711", "SLURM_JOB_UID": "1001", "SLURM_JOB_USER": "somebody", "SLURM_JOB_GPUS": "0,1,2,3"}


def script(name: str) -> list[str]:
    return ["/bin/sh", str(SCRIPTS / f"gpuwarden-slurm-{name}")]


def once(words: Sequence[str], environment: Mapping[str, str], nowhere: int) -> float:
    """Milliseconds from the fork to the exit that is waited for."""
    actions = [(os.POSIX_SPAWN_DUP2, nowhere, 1), (os.POSIX_SPAWN_DUP2, nowhere, 2)]
    began = time.perf_counter()
    pid = os.posix_spawn(words[0], list(words), dict(environment), file_actions=actions)
    _, status = os.waitpid(pid, 0)
    took = (time.perf_counter() - began) * 1e3
    if status:
        raise RuntimeError(f"{words} ended with {status}")
    return took


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="gw-", dir=MEMORY if MEMORY.is_dir() else None) as folder,
        tempfile.TemporaryDirectory(prefix="gw-", dir=MEMORY if MEMORY.is_dir() else None) as given_away,
        Path(os.devnull).open("w") as null,
    ):
        host = HookHost(Path(folder))
        host.verdict(gpus=dict.fromkeys(range(8), "healthy"), fresh_for=100_000)
        other = HookHost(Path(given_away))
        other.verdict(gpus=dict.fromkeys(range(8), "healthy"), fresh_for=100_000)
        marks(other)
        other.give_away()
        cases: dict[str, Callable[[], float]] = {
            "sh -c :": lambda: once(["/bin/sh", "-c", ":"], host.environment(), null.fileno()),
            "health check, node well": lambda: once(script("healthcheck"), host.environment(), null.fileno()),
            "prolog, node well": lambda: once(script("prolog"), host.environment(**JOB), null.fileno()),
        }
        if os.geteuid() == 0:
            cases |= {
                "health check, another user's": lambda: once(script("healthcheck"), other.environment(), null.fileno()),
                "prolog, another user's": lambda: once(script("prolog"), other.environment(**JOB), null.fileno()),
            }
        times = measured(cases)
    base = [statistics.median(turn) for turn in times["sh -c :"]]
    rows = []
    for name, turns in times.items():
        middles = [statistics.median(turn) for turn in turns]
        ratios = [middle / least for middle, least in zip(middles, base, strict=True)]
        late = [percentile(turn, 0.99) for turn in turns]
        wanted = "" if name == "sh -c :" else f"<= {LIMIT:g}"
        rows.append((name, spread(middles, 3), spread(late, 3), spread(ratios), wanted))
    table(
        f"Slurm's scripts while the node is well, each {RUNS} times in {TURNS} turns: median (least-most) of the turns",
        ("what", "p50, ms", "p99, ms", "against sh -c :", "wanted"),
        rows,
    )


def marks(host: HookHost) -> None:
    """Write the marks of a daemon that lives as long as the measurement takes."""
    for period in range(int(MEASURES_FOR // PERIOD)):
        host.mark_healthy(periods=period)


def measured(cases: Mapping[str, Callable[[], float]]) -> dict[str, list[list[float]]]:
    """Measure in turns, one after the other, so that other load affects all alike."""
    times: dict[str, list[list[float]]] = {name: [] for name in cases}
    for _ in range(TURNS):
        turn: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(RUNS):
            for name, case in cases.items():
                turn[name].append(case())
        for name, taken in turn.items():
            times[name].append(taken)
    return times


if __name__ == "__main__":
    main()
