"""Kills root's helper of repairs, -9, at a random moment of a random step, and checks what the next helper reports and restores.

    python benchmarks/kill_repairs.py [--rounds 200]

The GPUs are those of the compiled library, the programs those of the tests (`tests/support/repair_programs.sh`). It stops at a wrong state.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter
from pathlib import Path

from common import table
from support.repair_helper import RepairHost, helpers
from support.repair_kills import DOES, killed_after, took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    counts: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory(prefix="gw-") as folder, helpers() as made:
        host = RepairHost(Path(folder), made)
        seconds = {step: took(host, step) for step in DOES}
        for _ in range(options.rounds):
            step = chance.choice(list(DOES))
            counts[step, killed_after(host, step, chance.uniform(0.0, seconds[step]))] += 1
    rows = [(step, state, count) for (step, state), count in sorted(counts.items())]
    table(f"{options.rounds} helpers killed at a random moment", ("step", "its result", "times"), rows)


if __name__ == "__main__":
    main()
