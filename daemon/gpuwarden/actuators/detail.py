"""The current failures with their evidence, as one line: details that do not fit into the reason of an exclusion."""

from __future__ import annotations

from gpuwarden.health.model import Finding, Severity, Verdict
from gpuwarden.publish.evidence_text import evidence_text


def detail(verdict: Verdict) -> str:
    """Text about the findings that exclude the node, or ""."""
    return "; ".join(_text(f) for f in verdict.findings if f.severity is Severity.FAILURE and not f.shadow)


def _text(finding: Finding) -> str:
    evidence = evidence_text(finding.evidence)
    return f"{finding.title.rstrip('.')} ({finding.key})" + (f": {evidence}" if evidence else "")
