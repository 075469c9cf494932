"""Lets jobs die on a real Slurm, runs `gpuwarden why` for each, and prints the cause that it named: see docs/use/why.md.

    python benchmarks/why_deaths.py [NAME ...] [--json FILE]
    PYTHONPATH=tests python -m support.newer_slurm python benchmarks/why_deaths.py    (with Slurm 24.11)

`NAME`: deaths whose name contains it; none: all. As root, three minutes on two cores. Not part of `make bench`: it measures no time.
Exit status 1 if fewer than 58 of 60 are right, or if hardware is accused falsely.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1] / "tests"))

from common import table
from features.why.death_campaign import Campaign, Verdict
from features.why.death_table import DEATHS
from support.slurm import missing_parts

RIGHT = 58 / 60


def row(verdict: Verdict) -> list[str]:
    answer = verdict.answer
    named = " ".join(str(answer[key]) for key in ("cause", "certainty", "code") if answer.get(key))
    judgement = "hardware falsely accused" if verdict.falsely else "; ".join(verdict.faults)
    return [verdict.death.name, " or ".join(verdict.death.expected), named or "nothing", judgement or "right"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="*")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if missing := missing_parts():
        print(f"Not run, since it takes a real Slurm: {'; '.join(missing)}")
        return 1
    chosen = [death for death in DEATHS if not options.name or any(name in death.name for name in options.name)]
    with tempfile.TemporaryDirectory(prefix="gw-why-", ignore_cleanup_errors=True) as folder:
        campaign = Campaign(chosen, Path(folder))
        campaign.run()
    right = sum(not verdict.faults for verdict in campaign.verdicts)
    falsely = sum(verdict.falsely for verdict in campaign.verdicts)
    table("Deaths of jobs", ("death", "expected", "named", "verdict"), [row(verdict) for verdict in campaign.verdicts])
    print(f"\nright: {right} of {len(chosen)}; hardware falsely accused: {falsely}")
    if options.json is not None:
        named = {verdict.death.name: verdict.document for verdict in campaign.verdicts}
        options.json.write_text(json.dumps(named, indent=1))
    return int(falsely > 0 or right < RIGHT * len(chosen))


if __name__ == "__main__":
    sys.exit(main())
