"""A rank of a training as a process: counts its steps, saves the count when it is told to, and goes on counting.

    python saving_rank.py FOLDER

Started again it begins where it saved. What it lives through goes to FOLDER/log.N, one JSON document a line; each signal
as it comes, also while it saves or talks to the daemon. It waits to be ended, as a training does that leaves its requeue to
the daemon.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from gpuwarden_job import CheckpointGuard, Ranks


def main() -> None:
    folder = Path(sys.argv[1])
    number = int(os.environ["SLURM_PROCID"])
    saved = folder / f"saved.{number}"
    step = int(saved.read_text()) if saved.exists() else 0

    def say(what: str, **more: object) -> None:
        with (folder / f"log.{number}").open("a") as log:
            about = {"what": what, "at": time.time(), "node": os.environ["SLURMD_NODENAME"], "step": step}
            log.write(json.dumps({**about, **more}) + "\n")

    with CheckpointGuard(ranks=Ranks(rank=number), poll=float(os.environ.get("POLL", "1"))) as guard:

        def also_says(caught: signal.Signals) -> None:
            counts = signal.getsignal(caught)
            assert callable(counts)

            def hear(_: int, frame: FrameType | None) -> None:
                counts(caught, frame)
                say("signal", signals=guard.signals, name=caught.name)

            signal.signal(caught, hear)

        also_says(signal.SIGTERM)
        also_says(signal.SIGUSR1)
        say("begins")
        while True:
            time.sleep(0.01)
            step += 1
            if (told := guard.check(step)) is not None:
                temporary = saved.with_suffix(f".{os.getpid()}")
                temporary.write_text(str(step))
                temporary.replace(saved)
                say("saved", notice=told.notice, heard=guard.acknowledge(saved=True, step=step))


if __name__ == "__main__":
    main()
