"""docs/runbooks of findings: what each page says of a finding is made from the table of conditions, what to do is written by people.

Below a heading with the code of a condition the first paragraph is made anew; all else on a page is left as it is. The list of all
findings, with the alert and the page of each, is docs/runbooks/README.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from gpuwarden.base.durations import format_duration
from gpuwarden.health.advice import ADVICE
from gpuwarden.health.condition import Condition
from gpuwarden.health.conditions import CONDITIONS
from gpuwarden.health.model import Latch, Severity
from gpuwarden.publish.status import ENDS_OF, ENDS_WHEN
from prometheus_rules.runbooks import OWN, PAGES, alert_of, page_of

FOLDER = Path(__file__).parents[1] / "docs" / "runbooks"
SECTION = re.compile(r"^### (\w+)\n\n(?:(?![-#`|]).+\n)*\n?", re.MULTILINE)
"""The heading of a finding, and the paragraph below it if there is one already."""

Table = Callable[[Sequence[str], Iterable[Sequence[str]]], str]
"""Writes rows below their head."""

HEAD = """\
# Runbooks

What to do about an alert, for the operator on call. `Gpuwarden….md`: a page for each alert. The others: a page for each part of a node, with a
section for each finding, to which the address in the alerts [GpuwardenNodeFailure](GpuwardenNodeFailure.md) and
[GpuwardenNodeWarning](GpuwardenNodeWarning.md) leads.

```
gpuwarden status            # on the node: its findings, with evidence and advice
gpuwarden explain CODE      # one of them: what it means, where the rule comes from
```

*Alert*: of a finding with this severity, the worst that it can have. One that is milder in a case, or by the configuration of the site, is a
warning or a failure like others. A check in shadow has no alert. Findings of [site checks](host.md#site-checks) and
[codes that only DCGM has](driver.md#codes-of-dcgm) come with the same two alerts.

"""


def summary(row: Condition) -> str:
    """What the table says of a condition, as one paragraph."""
    severity = f"{row.severity}{' at worst' * (row.severity is Severity.FAILURE)}{', in shadow' * row.shadow}"
    ends = f"{ENDS_WHEN[Latch.NONE]}{f', for {format_duration(row.fall)}' if row.fall else ''}"
    if row.latch is not Latch.NONE:
        ends = f"{ENDS_WHEN[row.latch]}; as a warning, when {ends}"
    ends = ENDS_OF.get(row.code) or ends
    return f"**{row.title}** ({severity}). {row.why} *To do*: {ADVICE[row.advice]}. *Ends when* {ends}."


def refreshed(text: str) -> str:
    """A page with the paragraphs that are made."""
    return SECTION.sub(_section, text)


def _section(found: re.Match[str]) -> str:
    row = CONDITIONS.get(found[1])
    return found[0] if row is None else f"### {row.code}\n\n{summary(row)}\n\n"


def overview(made: str, table: Table) -> str:
    """`made`: the note that the list is generated."""
    rows = [
        (f"`{row.code}`", row.title, alert_of(row.code, row.severity.value), f"[{page_of(row.code)}]({link(row.code)})")
        for row in sorted(CONDITIONS.values(), key=lambda row: row.code)
    ]
    return HEAD + made + "\n" + table(("finding", "means", "alert", "what to do"), rows)


def link(check: str) -> str:
    """From docs/runbooks."""
    page = page_of(check)
    return f"{page}.md" if check in OWN else f"{page}.md#{check}"


def pages(made: str, table: Table) -> Mapping[str, Callable[[], str]]:
    """By file below docs/, what makes it."""
    made_pages = {f"runbooks/{page.name}.md": partial(_page, FOLDER / f"{page.name}.md") for page in PAGES}
    return {"runbooks/README.md": partial(overview, made, table), **made_pages}


def _page(file: Path) -> str:
    return refreshed(file.read_text(encoding="utf-8"))
