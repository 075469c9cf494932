"""docs/use/runbooks of findings: what each page says of a finding is made from the table of conditions, what to do is written by people.

Below a heading with the code of a condition the first paragraph is made anew; all else on a page is left as it is. The list of all
findings, with the alert and the page of each, is docs/use/runbooks/README.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from gpuwarden.base.durations import format_duration
from gpuwarden.features.repair.ladder import BY_ADVICE, LADDERS, SERVICES, Ladder, Rung
from gpuwarden.health.condition import Condition
from gpuwarden.health.conditions import CONDITIONS
from gpuwarden.health.model import Advice, Latch, Severity
from gpuwarden.health.runbooks import OWN, PAGES, page_of, place
from gpuwarden.health.to_do import TO_DO, of_xid
from gpuwarden.health.xid.catalogue import XIDS, Xid, XidClass
from gpuwarden.publish.returning import comes_back_when
from gpuwarden.publish.status import ENDS_WHEN
from prometheus_rules.runbooks import alert_of
from prose import wrapped

FOLDER = Path(__file__).parents[1] / "docs/use/runbooks"
SECTION = re.compile(r"^### (\w+)\n\n(?:(?:(?!- |#|```).+\n)+\n?)*", re.MULTILINE)
"""The heading of a finding, and the paragraphs and tables below it up to the first point."""
FIRST_POINT = re.compile(r"(?<=^## What to do\n\n)- .*\n(?:  .*\n)*(?:- Repaired: .*\n(?:  .*\n)*)?", re.MULTILINE)
"""The generated points of a page about one finding."""

UNUSED = "NVIDIA Xid catalogue: not in use"
"""The first words of the provenance of Xids that current GPUs do not report."""

Table = Callable[[Sequence[str], Iterable[Sequence[str]]], str]
"""Writes rows below their head."""

HEAD = """\
# Runbooks

What to do about an alert, for the operator on call. `Gpuwarden….md`: one page per alert. The other pages: one page per part of a node, with
a section for each finding. The URL in the alerts [GpuwardenNodeFailure](GpuwardenNodeFailure.md) and
[GpuwardenNodeWarning](GpuwardenNodeWarning.md) leads to that section.

```
gpuwarden status            # on the node: its findings, with evidence and advice
gpuwarden explain CODE      # one of them: what it means, where the rule comes from
```

*Alert*: the alert for a finding at its worst severity. If it is milder, in some cases or by the site's configuration, it alerts like any
other warning or failure. A check in shadow has no alert. Findings of [site checks](host.md#site-checks) and
[codes that only DCGM has](driver.md#codes-of-dcgm) come with the same two alerts.

"""


def summary(row: Condition) -> str:
    """Return one paragraph with all that the table has of a condition."""
    severity = f"{row.severity}{' at worst' * (row.severity is Severity.FAILURE)}{', in shadow' * row.shadow}"
    ends = f"{ENDS_WHEN[Latch.NONE]}{f', for {format_duration(row.fall)}' if row.fall else ''}"
    if row.latch is not Latch.NONE:
        ends = f"{ENDS_WHEN[row.latch]}; as a warning, when {ends}"
    ends = row.ends or ends
    back = comes_back_when(row.severity, row.advice)
    returns = f" *The node comes back when* {back}." if back else ""
    return f"**{row.title}** ({severity}). {row.why} *Ends when* {ends}.{returns}{_repair(row.code)}"


def _repair(code: str) -> str:
    """Return what gpuwarden may do by itself about a finding, if that has a ladder."""
    ladders: dict[Advice | None, Ladder] = {None: LADDERS.get(code, ())}
    if code in BY_ADVICE:
        ladders = {advice: BY_ADVICE[code][advice] for advice in BY_ADVICE[code]}
    if code == "service_down":
        services = ", ".join(name.removeprefix("nvidia-") for name in SERVICES if name != "dcgm")
        return f" *gpuwarden may* restart it, of {services} ([repair](../repair.md))."
    texts = [
        f"{f'on the advice {advice}: ' * (advice is not None)}{', then '.join(map(_step_text, steps))}"
        for advice, steps in ladders.items()
        if steps
    ]
    return f" *gpuwarden may* do this ([repair](../repair.md)): {'; '.join(texts)}." if texts else ""


def _step_text(rung: Rung) -> str:
    return rung.kind.value if rung.service is None else f"{rung.kind.value} {rung.service.value}"


def refreshed(text: str) -> str:
    """Return the page with its generated paragraphs."""
    return SECTION.sub(_section, text)


def _section(match: re.Match[str]) -> str:
    row = CONDITIONS.get(match[1])
    return match[0] if row is None else f"### {row.code}\n\n{section(row)}\n\n"


def section(row: Condition) -> str:
    """Return the begin of a finding's section, before its points: the action, the summary, and for Xids each number."""
    numbers = f"\n\n{_xids()}" if row.code == "xid" else ""
    return wrapped(f"{TO_DO[row.code]}{numbers}\n\n{summary(row)}\n").rstrip()


def _xids() -> str:
    """The numbers that become findings at once, the worst first; those with one text share a row."""
    rows: dict[tuple[str, str], list[Xid]] = {}
    for xid in XIDS.values():
        if xid.klass is not XidClass.RECORD and not xid.provenance.startswith(UNUSED):
            rows.setdefault((xid.klass.value, of_xid(xid.xid, xid.advice)), []).append(xid)
    lines = [
        f"| {', '.join(str(x.xid) for x in xids)} | {klass} | {_cell(text)} |"
        for (klass, text), xids in sorted(rows.items(), key=lambda row: (row[0][0] != XidClass.FAILURE, row[1][0].xid))
    ]
    return "\n".join(("| Xid | class | what to do |", "| --- | --- | --- |", *lines))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def overview(made: str, table: Table) -> str:
    """`made`: the note that the list is generated."""
    rows = [
        (
            f"`{row.code}`",
            row.title,
            alert_of(row.code, row.severity.value),
            f"[{page_of(row.code)}]({place(row.code)})",
        )
        for row in sorted(CONDITIONS.values(), key=lambda row: row.code)
    ]
    return HEAD + made + "\n" + table(("finding", "means", "alert", "what to do"), rows)


def pages(made: str, table: Table) -> Mapping[str, Callable[[], str]]:
    """Return the function that makes each page, by its file below docs/."""
    own = {f"use/runbooks/{page}.md": partial(_own_page, FOLDER / f"{page}.md", check) for check, page in OWN.items()}
    made_pages = own | {f"use/runbooks/{page.name}.md": partial(_page, FOLDER / f"{page.name}.md") for page in PAGES}
    return {"use/runbooks/README.md": partial(overview, made, table), **made_pages}


def _page(file: Path) -> str:
    return refreshed(file.read_text(encoding="utf-8"))


def _own_page(file: Path, check: str) -> str:
    """A page about one finding, whose first point is what to do."""
    row = CONDITIONS[check]
    back = comes_back_when(row.severity, row.advice)
    points = [TO_DO[check], *([f"Repaired: the node comes back when {back}."] if back else [])]
    made = "".join(f"- {point}\n" for point in points)
    return FIRST_POINT.sub(lambda _: made, file.read_text(encoding="utf-8"), count=1)
