"""`python -m evaluate`: measures the judge on faults and on healthy nodes, and prints the table. See `--help`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any

from evaluate.classes import CLASSES
from evaluate.measure import measure_days, measure_fault
from evaluate.report import Results, report, violations
from evaluate.speed import MEASURES


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m evaluate", description=__doc__)
    parser.add_argument("--seed", type=int, default=20_260_101, help="of everything (default: %(default)s)")
    parser.add_argument("--times", type=int, default=5, help="how often each fault strikes (default: %(default)s)")
    parser.add_argument("--nodes", type=int, default=3, help="how many healthy nodes (default: %(default)s)")
    parser.add_argument(
        "--healthy", type=float, default=17.0, metavar="DAYS", help="days of each (default: %(default)s)"
    )
    parser.add_argument("--fault", metavar="NAME", help="this fault only, no healthy days")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one for each core)")
    return parser.parse_args()


def main() -> int:
    options = _options()
    chosen = [n for n, fault in enumerate(CLASSES) if options.fault in (None, fault.name)]
    seeds = range(options.seed, options.seed + options.times)
    nodes = range(options.seed, options.seed + (0 if options.fault else options.nodes))
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        days = [pool.submit(measure_days, seed, options.healthy) for seed in nodes]
        faults = [pool.submit(measure_fault, number, seed) for number in chosen for seed in seeds]
        _progress([*days, *faults])
        healthy, struck = [day.result() for day in days], [fault.result() for fault in faults]
    speed = [] if options.fault else [str(measure()) for measure in MEASURES]
    results = Results(options.seed, struck, healthy, speed)
    sys.stdout.write("\n".join(report(results)) + "\n")
    return 1 if any(violations(results)) else 0


def _progress(work: Iterable[Future[Any]]) -> None:
    futures = list(work)
    for done, _ in enumerate(as_completed(futures), start=1):
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{done} of {len(futures)}")
    if sys.stderr.isatty():
        sys.stderr.write("\n")


if __name__ == "__main__":
    sys.exit(main())
