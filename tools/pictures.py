"""Makes the pictures of `docs/pictures` again, from real output, in about two minutes:

    PYTHONPATH=tests python tools/pictures.py [--output FOLDER]

Needs the packages of the group `dev`, and for Prometheus' page Debian's `prometheus` and `chromium`. Three daemons on simulated
GPUs run; one gets faults. `watch.svg` is what `gpuwarden watch` draws on a terminal then, `prometheus.png` the graph page of a
Prometheus that scraped them. No test makes or needs any of it.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from html import escape
from pathlib import Path

from support.prometheus import Server, program, prometheus, wait
from support.simulated_nodes import SimulatedNode, simulated_node
from support.terminal import on_a_terminal

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
NODES = ("gpu-node01", "gpu-node02", "gpu-node03")
COLUMNS, ROWS = 96, 27
GRAPH = 'max by (gpu) (DCGM_FI_DEV_GPU_TEMP{Hostname="gpu-node02"})'
PART = 30.0
"""Seconds of each part of the story: nothing wrong, a GPU is hot, the same GPU is lost."""
CELL, LINE, SIZE, EDGE = 8.4, 18, 14, 14
"""Of the drawn terminal, in pixels: width of a character, height of a line, height of the letters, what is around them."""


@contextmanager
def scraped(folder: Path) -> Iterator[tuple[SimulatedNode, Server]]:
    """The node that is to have faults, and the Prometheus that scrapes all each second."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(simulated_node(name, folder / name)) for name in NODES]
        targets = "".join(
            f"  - targets: ['127.0.0.1:{node.port}']\n    labels: {{instance: '{node.name}:9839'}}\n" for node in nodes
        )
        config = folder / "prometheus.yml"
        config.write_text(
            f"global:\n  scrape_interval: 1s\nscrape_configs:\n- job_name: gpuwarden\n  static_configs:\n{targets}"
        )
        server = stack.enter_context(prometheus(config, folder))
        server.wait_query(f"count(gpuwarden_node_health{{state='healthy'}} == 1) == {len(NODES)}")
        yield nodes[1], server


def terminal(lines: Sequence[str], title: str) -> str:
    """Lines of a terminal as SVG. Each is given its width, so that columns stand in whatever font there is."""
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
    """Spaces that no reader of SVG takes for one."""
    return escape(line).replace(" ", "\N{NO-BREAK SPACE}")


def watched(node: SimulatedNode) -> str:
    command = ("watch", "--run-dir", node.folder / "run")
    with on_a_terminal(*command, temporary=node.folder, columns=COLUMNS, rows=ROWS) as screen:
        lines = screen.wait_shows("is FAILURE: gpu_missing", "ends when")
    return terminal(lines, "$ gpuwarden watch")


def graph(server: Server, folder: Path) -> Path:
    """What a browser shows of Prometheus' own page."""
    parameters = {"g0.expr": GRAPH, "g0.tab": 0, "g0.range_input": f"{3 * PART:.0f}s", "g0.step_input": 1}
    picture = folder / "prometheus.png"
    subprocess.run(
        [
            program("chromium"), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1000,925",
            f"--user-data-dir={folder / 'browser'}", "--virtual-time-budget=20000", f"--screenshot={picture}",
            f"http://127.0.0.1:{server.port}/graph?{urllib.parse.urlencode(parameters)}",
        ],
        check=True, capture_output=True, timeout=180,
    )  # fmt: skip
    return picture


def make(output: Path) -> None:
    with tempfile.TemporaryDirectory() as name, scraped(Path(name)) as (node, server):
        time.sleep(PART)
        node.order("inject", "--gpu", "3", "overheat")
        time.sleep(PART)
        node.order("inject", "--gpu", "3", "lost")
        wait(lambda: server.query("gpuwarden_node_health{state='failure'} == 1"), "the failure", server.log)
        (output / "watch.svg").write_text(watched(node), encoding="utf-8")
        time.sleep(PART)
        (output / "prometheus.png").write_bytes(graph(server, Path(name)).read_bytes())


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the pictures of the documents.")
    parser.add_argument("--output", default=FOLDER, type=Path, help="the folder to write to (default: docs/pictures)")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    make(output)


if __name__ == "__main__":
    main()
