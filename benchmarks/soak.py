"""A day of a busy node in half an hour: does the daemon grow?

Passes, scrapes, faults, drains and undrains, reloads, orders and announcements come 50 times as fast as by default; see
`soak_host.py`. After the warm-up it must not grow: no 2 MiB of memory, no descriptor, no thread, no task, and no line of the
kernel log may be missing; the node must have been drained and undrained. Nothing is asserted about time, so that it may run
beside whatever else: on a machine that is busy the day is shorter, and the table shows the number of passes. Passes warm it
up: after too few of them, or if something has grown, it continues with the same daemon, twice at most: bounded memory is full
by then, and a leak has grown further. What is counted is judged from PASSES_LEAST["descriptors"] passes on, memory needs more:
if there are still too few, the last line names what was not judged.

Memory is PSS. Mapped files in it are divided among all programs that map them and change with other Pythons, so growth is
measured of our own part only (Pss_Anon, Pss_Shmem and SwapPss of smaps_rollup).

Half of the passes warm it up: what the daemon keeps is bounded (the last 500 events, counters of an hour, label texts), and at a
few events a second its bounds are reached after some minutes. Of memory the medians of two windows are compared; of counts
the minima, since short-lived items (a connection, a command of Slurm's) are no growth, and a leak raises the minimum, too.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import median

from common import scrape, spread, table, wait_for_all
from soak_host import GPUS, SPEED, SoakHost, stories, talk, tasks
from support.daemons import RunningDaemon, children

DAY = 24 * 60 / SPEED  # minutes
COUNTED = ("descriptors", "threads", "tasks")
REQUIRED = {"own": 2.0, **dict.fromkeys(COUNTED, 0.0)}  # MiB, and numbers: what may grow, by how much
WARM_UP = 1 / 2  # of the passes
PASSES_LEAST = {"own": 4_200, **dict.fromkeys(COUNTED, 600)}  # passes before each is judged
"""Half of them fill what is bounded: own memory by eighths of 4,774 passes was 39.8, 41.0, 41.8, 43.7, 44.1, 44.2, 44.0, 44.5 MiB, and of
2,697 passes 38.3, 39.7, 40.0, 41.2, 41.7, 41.9, 43.6, 43.6: the step near the 2,000th is the table of interned strings, which doubles once.
"""
PATIENT = 3  # times as long as was asked for, at most
WINDOW = 1 / 4  # of what is left: the first is compared with the last
SAMPLES_LEAST = 5
SCRAPE_EVERY, STORY_EVERY, SAMPLE_EVERY = 15.0 / SPEED, 150.0 / SPEED, 1.0
PATIENCE = 300.0
"""Seconds to wait for a response: long, since a daemon without CPU time does not grow."""
_PAGES = ("/metrics", "/heartbeat", "/v1/status", "/v1/gpus", "/v1/findings", "/v1/events?since=0")
_XIDS = re.compile(rb"^gpuwarden_xid_total\{.*\} (\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Sample:
    """A sample of the daemon; `worker`: of its worker, which is a new one after each hang and crash. MiB, and numbers."""

    pss: float
    own: float
    worker: float
    descriptors: int
    threads: int
    tasks: int


@dataclass
class Soak:
    host: SoakHost
    daemon: RunningDaemon
    done: Counter[str] = field(default_factory=Counter)
    samples: list[tuple[int, Sample]] = field(default_factory=list)
    passes: int = 0

    def run(self, seconds: float) -> None:
        begun, before, stories_left = time.monotonic(), self.sequence(), stories(self.host)
        next_story = next_sample = begun
        gpu, mended, end = 0, True, begun + seconds
        while (now := time.monotonic()) < begun + PATIENT * seconds:
            if now >= end:
                if grown(self.samples, self.passes) == []:
                    break
                end += seconds
            self.ask(self.done["scrapes"])
            self.passes = self.sequence() - before
            if now >= next_story:
                next_story = now + STORY_EVERY / 2
                if mended:
                    name, story = next(stories_left)
                    story(gpu)
                    self.done[name] += 1
                    self.order(sum(self.done[each] for each in self.done if " " in each))
                else:
                    self.host.mend(gpu)
                    gpu = (gpu + 1) % GPUS
                mended = not mended
            if now >= next_sample:
                next_sample = now + SAMPLE_EVERY
                self.samples.append((self.passes, sample(self.daemon, self.host)))
            time.sleep(SCRAPE_EVERY)
        self.host.mend(gpu)

    def sequence(self) -> int:
        return int(json.loads(self.daemon.get("/heartbeat", timeout=PATIENCE)[1])["sequence"])

    def ask(self, number: int) -> None:
        """Ask for metrics, a page and the job socket, as Prometheus, people and jobs do."""
        scrape(self.daemon.port, {"Accept-Encoding": "gzip" if number % 2 else "identity"}, PATIENCE)
        self.daemon.get(_PAGES[number % len(_PAGES)], timeout=PATIENCE)
        with suppress(OSError, ValueError):  # it closes idle connections, and this process may get no CPU time
            talk(self.host.run_dir / "job.sock", "status")
        self.done["scrapes"] += 1

    def order(self, number: int) -> None:
        """Send the orders of operators and programs. Many are refused, which exercises the daemon as well."""
        control = self.host.run_dir / "control.sock"
        self.host.configure_soak(12 + number % 5)
        for verb, arguments in (
            ("reload", {}), ("status", {}), ("events", {"limit": 500}), ("inventory", {}),
            ("exclude", {"reason": f"soak {number}"}), ("restore", {}),
            ("notify-termination", {"in": 3_600, "reason": "soak"}), ("notify-termination", {"cancel": True}),
        ):  # fmt: skip
            with suppress(OSError, ValueError):
                answered = talk(control, verb, **arguments)
                self.done["orders"] += 1
                self.done["orders refused"] += not answered
        for finding in json.loads(self.daemon.get("/v1/findings", timeout=PATIENCE)[1])["findings"]:
            with suppress(OSError, ValueError):
                self.done["acknowledged"] += talk(control, "ack", finding=finding["id"])


def sample(daemon: RunningDaemon, host: SoakHost) -> Sample:
    pid = daemon.process.pid
    worker = 0.0
    with suppress(OSError, IndexError):  # it may be gone at any moment
        worker = pss(children(pid)[0])["Pss"]
    sizes = pss(pid)
    return Sample(
        pss=sizes["Pss"], own=sizes["Pss_Anon"] + sizes["Pss_Shmem"] + sizes["SwapPss"], worker=worker,
        descriptors=len(list(Path(f"/proc/{pid}/fd").iterdir())), threads=len(list(Path(f"/proc/{pid}/task").iterdir())),
        tasks=tasks(daemon, host),
    )  # fmt: skip


def pss(pid: int) -> dict[str, float]:
    """Return the proportional memory of the process by kind, in MiB."""
    rows = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return {row[0].removesuffix(":"): int(row[1]) / 1024 for row in rows}


def windows(samples: Sequence[tuple[int, Sample]], passes: int) -> tuple[list[Sample], list[Sample]]:
    """After the warm-up: the first and the last."""
    warm = passes * WARM_UP
    length = (passes - warm) * WINDOW
    first = [sample for at, sample in samples if warm <= at < warm + length]
    return first, [sample for at, sample in samples if at >= passes - length]


def lines_missing(soak: Soak) -> int:
    """Return how many written kernel log lines were not counted, after the daemon had time to read them all."""

    def counted() -> int:
        return sum(map(int, _XIDS.findall(scrape(soak.daemon.port, {"Accept-Encoding": "identity"}, PATIENCE))))

    with suppress(AssertionError):
        soak.daemon.wait(lambda: counted() == soak.host.lines, "every line to be counted")
    return soak.host.lines - counted()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=DAY, help=f"how long (default: {DAY:g}, which is a day)")
    seconds = parser.parse_args().minutes * 60
    with tempfile.TemporaryDirectory(prefix="gw-", ignore_cleanup_errors=True) as folder:
        host = SoakHost(Path(folder))
        with host.daemon(more=host.variables()) as daemon:
            wait_for_all(daemon, GPUS, patience=PATIENCE)  # in CI the tests begin at the same time
            soak = Soak(host, daemon)
            soak.run(seconds)
            missing = lines_missing(soak)
            writes = host.writes()
            ledger = sum(file.stat().st_size for file in host.state_dir.iterdir() if file.is_file()) / 2**20
    faults = sum(soak.done[name] for name in soak.done if " " in name and name != "orders refused")
    print(
        f"{seconds / 60:g} min: {soak.passes} passes ({soak.passes * 5 / 3600:.1f} h at 5 s), {soak.done['scrapes']} scrapes, {faults} faults, "
        f"{host.lines} kernel lines ({missing} missing), {writes['drain']} drains, {writes['undrain']} undrains, "
        f"{soak.done['orders']} orders ({soak.done['orders refused']} refused), {soak.done['acknowledged']} acknowledgements, "
        f"ledger {ledger:.1f} MiB"
    )
    faulty = ["kernel lines missing"] * bool(missing) + [f"no {write}" for write, count in writes.items() if not count]
    return report(soak.samples, soak.passes, faulty)


def growth(name: str, first: Sequence[Sample], last: Sequence[Sample]) -> float:
    before, after = ([float(getattr(sample, name)) for sample in window] for window in (first, last))
    return min(after) - min(before) if name in COUNTED else median(after) - median(before)


def judged(samples: Sequence[tuple[int, Sample]], passes: int) -> list[str]:
    """Return the names of the requirements for which there are enough samples and passes."""
    enough = min(map(len, windows(samples, passes))) >= SAMPLES_LEAST
    return [name for name in REQUIRED if enough and passes >= PASSES_LEAST[name]]


def grown(samples: Sequence[tuple[int, Sample]], passes: int) -> list[str] | None:
    """Return the names of what has grown by more than allowed, or None if there was too little to judge anything by."""
    first, last = windows(samples, passes)
    names = judged(samples, passes)
    return [name for name in names if growth(name, first, last) > REQUIRED[name]] if names else None


def report(samples: Sequence[tuple[int, Sample]], passes: int, faulty: Sequence[str]) -> int:
    """Print the tables. `faulty`: what was wrong besides; without drains and undrains the soak is not one of them. Returns the exit code."""
    growing_names, names = grown(samples, passes) or [], judged(samples, passes)
    if left := [name for name in REQUIRED if name not in names]:
        print(f"NOT JUDGED after {passes} passes: {', '.join(left)}; the time was too short, or the machine too busy")
    failures = [*(f"{name} grew" for name in growing_names), *faulty]
    if failures:
        print(f"FAILED: {', '.join(failures)}")
    if not names:
        return int(bool(failures))
    first, last = windows(samples, passes)
    rows = []
    for name in [each.name for each in fields(Sample)]:
        before, after = ([float(getattr(sample, name)) for sample in window] for window in (first, last))
        most = f"<= {REQUIRED[name]:g}" if name in names else ""
        rows.append([name, spread(before), spread(after), f"{growth(name, first, last):+.2f}", most])
    table(
        f"Growth after a warm-up of {passes * WARM_UP:.0f} passes: median (least-most) of {len(first)} and {len(last)} samples; MiB",
        ("what", "first window", "last window", "growth", "required"),
        rows,
    )
    parts = [[sample.own for at, sample in samples if part <= at / passes * 8 < part + 1] for part in range(8)]
    print(f"own memory by eighths of the passes: {', '.join(f'{median(part):.1f}' for part in parts if part)} MiB")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
