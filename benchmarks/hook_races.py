"""Attacks Slurm's scripts as the daemon's user could, and counts the effects. As root, in a separate folder.

    python benchmarks/hook_races.py [--rounds 10000] [--scripts FOLDER]

Each round is a prolog, a health check and an epilog. `--scripts`: other scripts than those of this tree, such as an earlier version's.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import fields
from pathlib import Path

from common import table
from support.hook_races import RaceHost, race
from support.slurm_hooks import SCRIPTS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--scripts", type=Path, default=SCRIPTS)
    parser.add_argument("--patience", type=float, default=20.0, help="seconds after which a script hangs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gw-", ignore_cleanup_errors=True) as folder:
        races = race(RaceHost(Path(folder)), options.rounds, scripts=options.scripts, patience=options.patience)
    rows = [(field.name, getattr(races, field.name)) for field in fields(races)]
    table("Slurm's scripts while the daemon's user swaps its files", ("what", "count"), rows)


if __name__ == "__main__":
    main()
