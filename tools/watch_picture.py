"""Makes the picture of `gpuwarden watch` in `docs/pictures` again, from real output:

    PYTHONPATH=tests python tools/watch_picture.py [--output FOLDER]

A daemon on simulated GPUs runs and loses one of them; `watch.svg` is what `gpuwarden watch` draws on a terminal then. No test
makes or needs it. `data-flow.svg` is made by `tools/diagram.py`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path

from support.commands import gpuwarden
from support.prometheus import wait
from support.simulated_nodes import SimulatedNode, simulated_node
from support.terminal import on_a_terminal

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
NODE = "gpu-node02"
COLUMNS, ROWS = 96, 27
CELL, LINE, SIZE, EDGE = 8.4, 18, 14, 14
"""Of the drawn terminal, in pixels: width of a character, height of a line, height of the letters, what is around them."""


def terminal(lines: Sequence[str], title: str) -> str:
    """Draw terminal lines as SVG. Each has an explicit width, so that columns align in any font."""
    width, height = COLUMNS * CELL + 2 * EDGE, (len(lines) + 2) * LINE + EDGE
    rows = [
        f'<text x="{EDGE}" y="{(number + 2.5) * LINE:g}" textLength="{len(line) * CELL:.1f}">{_kept(line)}</text>'
        for number, line in enumerate(lines)
        if line
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" '
        f'font-family="ui-monospace,DejaVu Sans Mono,Menlo,Consolas,monospace" font-size="{SIZE}">\n'
        f'<rect width="100%" height="100%" rx="8" fill="#1d1f21"/>\n'
        f'<text x="{EDGE}" y="{LINE * 1.2:g}" fill="#8a8f98">{escape(title)}</text>\n'
        '<g fill="#e6e6e6">\n' + "\n".join(rows) + "\n</g>\n</svg>\n"
    )


def _kept(line: str) -> str:
    """Return the text with spaces that SVG viewers do not collapse."""
    return escape(line).replace(" ", "\N{NO-BREAK SPACE}")


def watched(node: SimulatedNode) -> str:
    command = ("watch", "--run-dir", node.folder / "run")
    with on_a_terminal(*command, temporary=node.folder, columns=COLUMNS, rows=ROWS) as screen:
        lines = screen.wait_shows("is FAILURE: gpu_missing", "ends when")
    return terminal(lines, "$ gpuwarden watch")


def _exit_code(node: SimulatedNode) -> int:
    return gpuwarden("status", "--run-dir", node.folder / "run", temporary=node.folder).returncode


def make(output: Path) -> None:
    with tempfile.TemporaryDirectory() as name, simulated_node(NODE, Path(name) / NODE) as node:
        wait(lambda: _exit_code(node) == 0, "the first full pass", node.folder / "log")
        node.order("inject", "--gpu", "3", "lost")
        (output / "watch.svg").write_text(watched(node), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the picture of `gpuwarden watch`.")
    parser.add_argument("--output", default=FOLDER, type=Path, help="the folder to write to (default: docs/pictures)")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    make(output)


if __name__ == "__main__":
    main()
