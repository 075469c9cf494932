"""A rank of a training as a process: counts its steps, saves the count on a notice, and goes on counting.

    python saving_rank.py FOLDER

Started again it begins where it saved. What it lives through goes to FOLDER/log.N, one JSON document a line; each signal
as it comes, also while it saves or talks to the daemon. It waits to be ended, as a training does that leaves its requeue to
the daemon.

    AGREE   a path: the ranks agree over a socket there, and answer for all of them; else each answers for itself
    TAKES   seconds that the save of each rank takes, such as 0,4.5
    AFTER   stay: it stays as it is, once saved, until it is killed; end: it exits with 75, "start me again", at the next signal, which comes with
            the requeue (who does not is killed by slurmd, no earlier than 5 s later, however short KillWait is); leave: at once
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from gpuwarden_job import REQUEUE, CheckpointGuard, Ranks, leave
from support.job_world import socket_ranks


def main() -> None:
    folder = Path(sys.argv[1])
    number = int(os.environ["SLURM_PROCID"])
    run = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    takes = float(os.environ.get("TAKES", "0,0").split(",")[number])
    saved = folder / f"saved.{number}"
    step = int(saved.read_text()) if saved.exists() else 0

    def report(event: str, **more: object) -> None:
        with (folder / f"log.{number}").open("a") as log:
            about = {"what": event, "at": time.time(), "node": os.environ["SLURMD_NODENAME"], "step": step, "run": run}
            log.write(json.dumps({**about, **more}) + "\n")

    def save() -> None:
        report("saves")
        time.sleep(takes)
        temporary = saved.with_suffix(f".{os.getpid()}")
        temporary.write_text(str(step))
        temporary.replace(saved)
        report("wrote")

    with CheckpointGuard(ranks=_ranks(number, run), poll=float(os.environ.get("POLL", "1"))) as guard:

        def also_report(caught: signal.Signals) -> None:
            counts = signal.getsignal(caught)
            assert callable(counts)

            def handle(_: int, frame: FrameType | None) -> None:
                counts(caught, frame)
                report("signal", signals=guard.signals, name=caught.name)

            signal.signal(caught, handle)

        also_report(signal.SIGTERM)
        also_report(signal.SIGUSR1)
        report("begins")
        while True:
            time.sleep(0.01)
            step += 1
            if (departure := guard.check(step)) is not None:
                save()
                report("saved", notice=departure.notice, accepted=guard.acknowledge(saved=True, step=step))
                _then(guard)


def _ranks(number: int, run: int) -> Ranks:
    if "AGREE" not in os.environ:
        return Ranks(rank=number)
    return socket_ranks(Path(f"{os.environ['AGREE']}.{run}"), number, int(os.environ["SLURM_NTASKS"]))


def _then(guard: CheckpointGuard) -> None:
    match os.environ.get("AFTER"):
        case "stay":
            while True:
                time.sleep(60)
        case "end":
            while guard.signals < 2:
                time.sleep(0.05)
            sys.exit(REQUEUE)
        case "leave":
            leave(guard)


if __name__ == "__main__":
    main()
