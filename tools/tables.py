"""Writes the tables of `docs/` from the tables of the code: `make docs`. A test keeps both equal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from gpuwarden.durations import format_duration
from gpuwarden.health.condition import Condition
from gpuwarden.health.conditions import CONDITIONS
from gpuwarden.health.sxid_catalogue import SXIDS
from gpuwarden.health.xid_catalogue import XIDS
from gpuwarden.publish.dcgm_names import FIELDS, PREFIX
from gpuwarden.publish.metrics import METRICS

DOCS = Path(__file__).parents[1] / "docs"
MADE = "<!-- Made by `make docs` from the tables of the code; edit those. -->\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def conditions() -> str:
    rows = [
        (f"`{c.code}`", c.scope, c.severity.value, timing(c), c.latch.value, f"**{c.title}.** {c.why}", c.source)
        for c in CONDITIONS.values()
    ]
    return (
        "# Conditions\n\n"
        "Everything that can be wrong for a while. *Severity* is the worst it can have. *Rise*: how long it must be seen "
        "before it is a finding; *fall*: how long it must be looked for and not seen before the finding ends. A latched "
        "finding ends with what *latch* names, or with `gpuwarden ack`. `gpuwarden explain CODE` says the same.\n\n"
        + MADE
        + "\n"
        + table(("code", "of", "severity", "rise / fall", "latch", "what and why", "source"), rows)
    )


def timing(condition: Condition) -> str:
    return f"{format_duration(condition.rise)} / {format_duration(condition.fall)}"


def xids() -> str:
    rows = [
        (str(x.xid), x.meaning, x.klass.value, x.action, x.advice.value, x.note, x.provenance) for x in XIDS.values()
    ]
    switch = [(str(x.sxid), x.meaning, "failure" if x.fatal else "warning", x.note) for x in SXIDS.values()]
    return (
        "# Xids and SXids\n\n"
        "*record*: kept in the history, the GPU stays healthy. *warning*: reported. *failure*: the node is taken out. A number "
        "that is not here is a warning. `gpuwarden explain xid N` says the same.\n\n"
        + MADE
        + "\n"
        + table(("Xid", "meaning", "class", "vendor's action", "advice", "note", "where it comes from"), rows)
        + "\n## NVSwitch (SXid)\n\n"
        + table(("SXid", "meaning", "class", "note"), switch)
    )


def metrics() -> str:
    own = [(f"`{m.name}`", m.kind, ", ".join(m.labels), m.help) for m in METRICS]
    dcgm = [(f"`{PREFIX}{f.name}`", f.kind, f.help) for f in FIELDS]
    return (
        "# Metrics\n\n"
        "About 1,270 series for 8 H100, counted in a test. Series of a GPU end when the GPU is gone.\n\n"
        + MADE
        + "\n## Our own\n\n"
        + table(("name", "type", "labels", "meaning"), own)
        + "\n## GPU telemetry under the names of dcgm-exporter\n\n"
        "Labels, in this order: `gpu`, `UUID`, `pci_bus_id`, `device`, `modelName`, `Hostname` (or `hostname`: "
        "`publish.hostname_label`), `DCGM_FI_DRIVER_VERSION`. In OpenMetrics its counters are of type unknown, so that "
        "their names stay as they are.\n\n" + table(("name", "type", "meaning"), dcgm)
    )


PAGES = {"conditions.md": conditions, "xids.md": xids, "metrics.md": metrics}


def main() -> None:
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
