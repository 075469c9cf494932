"""Writes the dashboards for Grafana from the tables of `grafana_dashboards`: `make docs`. A test keeps both equal.

python tools/dashboards.py --output /var/lib/grafana/dashboards/gpuwarden
"""

from __future__ import annotations

import argparse
from pathlib import Path

from grafana_dashboards import fleet, node, terminations
from grafana_dashboards.build import document

FOLDER = Path(__file__).parents[1] / "grafana" / "dashboards"
PAGES = {"fleet.json": fleet.PAGE, "node.json": node.PAGE, "terminations.json": terminations.PAGE}


def write(folder: Path) -> None:
    """Write all dashboards into `folder`. Raises OSError."""
    for name, page in PAGES.items():
        (folder / name).write_text(document(page), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes the dashboards for Grafana.")
    parser.add_argument(
        "--output", default=FOLDER, type=Path, help="the folder to write to (default: grafana/dashboards)"
    )
    write(parser.parse_args().output)


if __name__ == "__main__":
    main()
