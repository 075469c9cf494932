"""Which alert a finding has, and the template of the address that leads from it to its runbook (`health/runbooks.py`).

Findings without an alert of their own come with `GpuwardenNodeFailure` or `GpuwardenNodeWarning`, whose address leads to the section of
the finding on the page of the part that is concerned.
"""

from __future__ import annotations

from gpuwarden.health.runbooks import OWN, OWN_FAILURES, OWN_WARNINGS, PAGES

NODE_FAILURE, NODE_WARNING = "GpuwardenNodeFailure", "GpuwardenNodeWarning"


def alert_of(check: str, severity: str) -> str:
    """Return the alert of a `warning` or `failure` finding: a site may have changed the severity of the table."""
    own, rest = (OWN_FAILURES, NODE_FAILURE) if severity == "failure" else (OWN_WARNINGS, NODE_WARNING)
    return own.get(check, rest)


def address() -> str:
    """Return the address of the section about a finding, below the folder of runbooks: a template of Prometheus for
    alerts with the label `check`.
    """
    pages = {page.name: "|".join((*page.checks, *page.families)) for page in PAGES}
    pages |= {alert: check for check, alert in OWN.items()}
    branches = "{{ else if ".join(f'match "^(?:{checks})$" $labels.check }}}}{name}' for name, checks in pages.items())
    return f"{{{{ if {branches}{{{{ else }}}}README{{{{ end }}}}.md#{{{{ $labels.check }}}}"
