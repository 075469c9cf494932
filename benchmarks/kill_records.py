"""Kills the process that follows jobs and writes their records, with SIGKILL at random moments, and counts lost or duplicate records.

    python benchmarks/kill_records.py [--kills 200] [--seed 1]

A second of its run time has some minutes of jobs, of which one ends each 150 s: the kills strike before, at and after ends, in writes of the
ledger and in its start. Not part of `make bench`: it measures no time. Exit status 1 if a job has no record, or more than one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1] / "tests"))

from support.why_killed import killed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gw-") as folder:
        counted = killed(Path(folder), options.kills, options.seed)
    double = sum(count for records, count in counted.items() if records > 1)
    print(
        f"{options.kills} kills, {counted.total()} jobs that ended: {counted[0]} without a record, {double} with several"
    )
    return int(bool(counted[0] or double))


if __name__ == "__main__":
    sys.exit(main())
