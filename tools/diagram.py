"""Writes `docs/pictures/data-flow.svg`, the way of the data through the daemon, from the tables below: `make docs`.

The picture carries its own colours for light and dark pages and an opaque background, so that it is readable on both.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).parents[1] / "docs" / "pictures" / "data-flow.svg"
WIDTH, HEIGHT = 960, 440
PITCH, BOX = 44, 34
"""Pixels from one row to the next, and the height of a box of one row."""
TOP = 56

STYLE = """
  .page { fill: #ffffff; stroke: #d0d7de; } .head { fill: #57606a; } text { fill: #1f2328; } .small { fill: #57606a; font-size: 12px; }
  .source { fill: #ddf4ff; stroke: #54aeff; } .pure { fill: #dafbe1; stroke: #4ac26b; }
  .shell { fill: #f6f8fa; stroke: #8c959f; } .out { fill: #fff8c5; stroke: #d4a72c; }
  .arrow { stroke: #57606a; fill: none; stroke-width: 1.5; } .tip { fill: #57606a; }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117; stroke: #30363d; } .head { fill: #9198a1; } text { fill: #e6edf3; } .small { fill: #9198a1; }
    .source { fill: #0c2d4d; stroke: #1f6feb; } .pure { fill: #10301a; stroke: #2ea043; }
    .shell { fill: #161b22; stroke: #6e7681; } .out { fill: #35290a; stroke: #9e6a03; }
    .arrow { stroke: #9198a1; } .tip { fill: #9198a1; }
  }
"""


class Box(NamedTuple):
    """`x`, `width` in pixels, `row` from 0 with halves, `rows` high. `note`: a second line, smaller."""

    x: int
    width: int
    row: float
    title: str
    kind: str
    note: str = ""
    rows: float = 1

    @property
    def top(self) -> float:
        return TOP + self.row * PITCH

    @property
    def height(self) -> float:
        return BOX + (self.rows - 1) * PITCH

    @property
    def middle(self) -> float:
        return self.top + self.height / 2


SOURCES = [
    Box(24, 196, row, title, "source")
    for row, title in enumerate((
        "NVIDIA driver (NVML)", "DCGM", "kernel log: Xid, SXid, PCIe", "PCI bus", "InfiniBand, disks, memory",
        "processes, services, jobs", "site checks", "cloud: termination notice",
    ))
]  # fmt: skip
COLLECT = Box(268, 128, 0, "collectors", "shell", "deadline for each", 7)
JUDGE = Box(444, 148, 0, "health: judge", "pure", "conditions, latches", 2)
POLICY = Box(444, 148, 2.5, "policy", "pure", "exclusion, breaker", 2)
EVACUATION = Box(444, 148, 6.5, "evacuation", "shell", "save, then requeue", 2)
LEDGER = Box(444, 148, 5, "ledger: every event", "shell")
PUBLISH = Box(640, 116, 0, "publish", "shell", "snapshot", 2)
ACTUATE = Box(640, 116, 2.5, "actuators", "shell", "read, write, verify", 2)
SIGNAL = Box(640, 116, 6.5, "signals", "shell", "to ranks, once", 2)
OUT = [
    Box(804, 132, row, title, "out")
    for row, title in (
        (0, "Prometheus"), (1, "heartbeat, status"), (2.5, "Slurm, dstack"), (3.5, "Kubernetes"), (4.5, "file, program"),
        (6.5, "training jobs"), (7.5, "Slurm: requeue"),
    )
]  # fmt: skip
BOXES = [*SOURCES, COLLECT, JUDGE, POLICY, EVACUATION, LEDGER, PUBLISH, ACTUATE, SIGNAL, *OUT]
HEADS = ((24, "reads"), (444, "decides"), (804, "acts and reports"))


def across(source: Box, target: Box, at: float | None = None) -> str:
    """An arrow from the right side of one box to the left side of another, at the height of the smaller box."""
    y = at if at is not None else (source if source.height <= target.height else target).middle
    return _arrow(((source.x + source.width, y), (target.x, y)))


def down(source: Box, target: Box, x: float, *, both: bool = False) -> str:
    return _arrow(((x, source.top + source.height), (x, target.top)), both=both)


def _arrow(points: tuple[tuple[float, float], ...], *, both: bool = False) -> str:
    path = "M" + " L".join(f"{x:g} {y:g}" for x, y in points)
    start = ' marker-start="url(#tip)"' if both else ""
    return f'<path class="arrow" d="{path}" marker-end="url(#tip)"{start}/>'


def arrows() -> Iterator[str]:
    yield from (across(source, COLLECT) for source in SOURCES[:7])
    yield across(SOURCES[7], EVACUATION, SOURCES[7].middle)
    yield across(COLLECT, JUDGE)
    yield down(JUDGE, POLICY, 518)
    yield across(JUDGE, PUBLISH)
    yield across(POLICY, ACTUATE)
    yield down(POLICY, LEDGER, 518, both=True)
    yield down(LEDGER, EVACUATION, 518, both=True)
    yield across(EVACUATION, SIGNAL)
    yield from (across(PUBLISH, box, box.middle) for box in OUT[:2])
    yield from (across(ACTUATE, box, box.middle) for box in OUT[2:4])
    x = ACTUATE.x + ACTUATE.width / 2
    yield _arrow(((x, ACTUATE.top + ACTUATE.height), (x, OUT[4].middle), (OUT[4].x, OUT[4].middle)))
    yield from (across(SIGNAL, box, box.middle) for box in OUT[5:])


def drawn(box: Box) -> str:
    x, y = box.x + box.width / 2, box.middle + (-3 if box.note else 5)
    note = f'<text class="small" x="{x:g}" y="{y + 16:g}">{escape(box.note)}</text>' if box.note else ""
    return (
        f'<rect class="{box.kind}" x="{box.x}" y="{box.top:g}" width="{box.width}" height="{box.height:g}" rx="5"/>'
        f'<text x="{x:g}" y="{y:g}">{escape(box.title)}</text>{note}'
    )


def picture() -> str:
    heads = (f'<text class="head" x="{x}" y="36" text-anchor="start">{text}</text>' for x, text in HEADS)
    body = "\n".join((*heads, *arrows(), *map(drawn, BOXES)))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="system-ui,Segoe UI,Helvetica,Arial,sans-serif" font-size="14" text-anchor="middle" role="img" '
        'aria-label="Sources are read by collectors; the judge classifies; policy decides; actuators, pages and signals carry out">\n'
        f"<style>{STYLE}</style>\n"
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse">'
        '<path class="tip" d="M0 0 L8 4 L0 8 z"/></marker></defs>\n'
        f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8"/>\n{body}\n</svg>\n'
    )


def main() -> None:
    FILE.write_text(picture(), encoding="utf-8")


if __name__ == "__main__":
    main()
