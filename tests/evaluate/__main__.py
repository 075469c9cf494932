"""`python -m evaluate`: measures the judge on faults, healthy nodes and stories of real ones, and prints tables. See `--help`.

Exits with 1 if a requirement is violated.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from evaluate.classes import CLASSES
from evaluate.fleet import measure_fleet
from evaluate.measure import measure_days, measure_fault
from evaluate.report import Results, document, report, violations
from stories.every import STORIES
from stories.story import measure_story

LONG_DAYS = 30.0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m evaluate", description=__doc__)
    parser.add_argument("--seed", type=int, default=20_260_101, help="of everything (default: %(default)s)")
    parser.add_argument("--times", type=int, default=1, help="how often each fault strikes (default: %(default)s)")
    parser.add_argument("--nodes", type=int, default=12, help="how many healthy nodes (default: %(default)s)")
    parser.add_argument(
        "--healthy", type=float, default=2.0, metavar="DAYS", help="days of each (default: %(default)s)"
    )
    parser.add_argument("--long", action="store_true", help=f"and one node for {LONG_DAYS:g} days")
    parser.add_argument(
        "--no-stories", action="store_true", help="no stories, which tests/health/test_stories.py has too"
    )
    parser.add_argument("--fault", metavar="NAME", help="this fault only, no healthy days, no stories")
    parser.add_argument("--output", type=Path, metavar="F", help="write the whole document there too")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one for each core)")
    options = parser.parse_args()
    if options.fault not in (None, *(fault.name for fault in CLASSES)):
        parser.error(f"there is no fault {options.fault!r}")
    return options


def main() -> int:
    options = _options()
    began = time.monotonic()
    results = _measured(options)
    sys.stdout.write("\n".join(report(results)) + "\n")
    if options.output is not None:
        options.output.write_text(document(results))
    sys.stderr.write(f"{time.monotonic() - began:.0f} s\n")
    return 1 if any(violations(results)) else 0


def _measured(options: argparse.Namespace) -> Results:
    chosen = [n for n, fault in enumerate(CLASSES) if options.fault in (None, fault.name)]
    seeds = range(options.seed, options.seed + options.times)
    nodes = range(options.seed, options.seed + (0 if options.fault else options.nodes))
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        # the longest first, so that no process is left with one at the end
        days = [pool.submit(measure_days, options.seed - 1, LONG_DAYS)] if options.long else []
        days += [pool.submit(measure_days, seed, options.healthy) for seed in nodes]
        faults = [pool.submit(measure_fault, number, seed) for number in chosen for seed in seeds]
        stories = [
            pool.submit(measure_story, story) for story in (() if options.fault or options.no_stories else STORIES)
        ]
        fleet = None if options.fault or not options.nodes else pool.submit(measure_fleet, options.seed)
        _progress([*days, *faults])
        healthy, struck = [day.result() for day in days], [fault.result() for fault in faults]
        detected = [story.result() for story in stories]
        return Results(options.seed, struck, healthy, None if fleet is None else fleet.result(), detected)


def _progress(work: Iterable[Future[Any]]) -> None:
    futures = list(work)
    for done, _ in enumerate(as_completed(futures), start=1):
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{done} of {len(futures)}")
    if sys.stderr.isatty():
        sys.stderr.write("\n")


if __name__ == "__main__":
    sys.exit(main())
