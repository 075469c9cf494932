"""Damages ledgers at random, opens each as the daemon does, and counts the outcomes.

    python benchmarks/damage_ledgers.py [--rounds 4000]

Not part of `make bench`: it measures no time. Exit status 1 if a ledger could not be opened, or lost a latch without a report.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1] / "tests"))

from support.ledger_damage import Reopened, latched, reopened, spoilt, written

BAD = ("could not be opened", "forgot a latch in silence")


def outcome(reopening: Reopened) -> str:
    if reopening.memory is None:
        return BAD[0]
    latch_kept = latched().key in reopening.state.tracks
    if reopening.error:
        return f"{'set aside' if 'moved aside' in reopening.error else 'kept, the loss reported'}, latch {'known' if latch_kept else 'gone'}"
    return "nothing that counts was damaged" if latch_kept else BAD[1]


async def campaign(rounds: int) -> Counter[str]:
    counted: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="gw-") as made:
        for running in (False, True):
            folder = Path(made) / str(running)
            folder.mkdir()
            await written(folder, running=running)
            for number in range(rounds // 2):
                copy, damage = spoilt(folder, number)
                try:
                    came = outcome(await reopened(copy))
                except Exception as error:  # noqa: BLE001 - counted
                    came = f"{BAD[0]}: {type(error).__name__} after {damage}"
                counted[came] += 1
                shutil.rmtree(copy)
    return counted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4000)
    counted = asyncio.run(campaign(parser.parse_args().rounds))
    for came, count in counted.most_common():
        print(f"{count:>6}  {came}")
    return int(any(came.startswith(BAD) for came in counted))


if __name__ == "__main__":
    sys.exit(main())
