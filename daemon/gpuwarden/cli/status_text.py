"""Formats the status document: verdict, reasons, GPUs, findings with their ends, and sources that cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gpuwarden.cli.enforcement_text import enforcement_lines
from gpuwarden.cli.text import clean, table, when
from gpuwarden.features import parts
from gpuwarden.publish.evidence_text import evidence_text

Document = dict[str, Any]


def status_text(status: Document, width: int | None = None, *, verbose: bool = False) -> Iterator[str]:
    """Yield the lines of the status. Omits the least important GPU columns that exceed `width`; does not cut other
    lines.

    `verbose`: include sources that this host lacks.
    """
    if status.get("simulated"):
        yield "SIMULATED: these GPUs do not exist"
    yield from _headline(status)
    if status["gpus"]:
        yield ""
        yield from _gpus(status["gpus"], width)
    for reason in status.get("unknown_because", ()):
        yield from ("", f"UNKNOWN: {_spoken(reason['reason'])}: {clean(reason['meaning'])}", *_guidance(reason))
    shown = {finding["id"] for finding in (*status["findings"], *status["silenced"])}
    consequences = {
        incident["cause"]: [name for name in incident["consequences"] if name not in shown]
        for incident in status.get("incidents", ())
    }
    for finding in sorted(status["findings"], key=_with_its_cause(status["findings"])):
        yield ""
        yield from _finding(finding)
        if names := consequences.get(finding["id"]):
            yield f"  also recorded: {', '.join(map(clean, names))}"
    silenced = [f"{clean(f['id'])} (caused by {clean(f['silenced_by'])})" for f in status["silenced"]]
    errors = [*_unseen(status["collectors"], absent=verbose), *map(clean, status["errors"])]
    enforcement = list(enforcement_lines(status))
    sections = (
        ("enforcement", enforcement),
        *(section for feature in parts("status_text").values() for section in feature.sections(status)),
        ("suppressed, as consequences of other findings", silenced),
        ("errors and missing sources", errors),
    )
    for title, lines in sections:
        if lines:
            yield from ("", f"{title}:", *(f"  {line}" for line in lines))


def _spoken(code: str) -> str:
    """Format a reason: `xid 79` for `xid.79`."""
    return clean(code).replace(".", " ", 1)


def _guidance(about: Document) -> Iterator[str]:
    """Yield the advice and the runbook of a finding or a reason."""
    yield f"  to do: {clean(about['to_do'])}"
    if about.get("ends_when"):
        yield f"  ends when {clean(about['ends_when'])}"
    yield f"  runbook: {clean(about['runbook'])}"


def _with_its_cause(findings: list[Document]) -> Callable[[Document], tuple[int, bool]]:
    """Return a sort key that places each consequence after its cause."""
    place = {finding["id"]: number for number, finding in enumerate(findings)}
    last = len(place)
    return lambda finding: (place.get(finding.get("caused_by") or finding["id"], last), bool(finding.get("caused_by")))


def _headline(status: Document) -> Iterator[str]:
    why = ", ".join(map(_spoken, status["reasons"]))
    yield f"{clean(status['node'])} is {str(status['status']).upper()}{f': {why}' if why else ''}"
    expected, source = status["expected"]["count"], status["expected"]["from"]
    count = (
        f"of {expected} GPUs present ({clean(source)})"
        if expected is not None
        else "GPUs present, expected number unknown"
    )
    age = status["age_seconds"]
    seen = "nothing observed yet" if age is None else f"observed {age:.0f} s ago"
    work = "may take work" if status["schedulable"] else "may not take work"
    yield f"{work}; {status['present']} {count}; {seen}; mode {clean(status['mode'])}"


def _reading(name: str, unit: str, per: float = 1) -> Callable[[Document], str]:
    def shown(gpu: Document) -> str:
        value = gpu.get("readings", {}).get(name)
        return "-" if value is None else f"{value / per:.0f} {unit}"

    return shown


_COLUMNS: dict[str, Callable[[Document], str]] = {
    "GPU": lambda gpu: "-" if gpu["index"] is None else str(gpu["index"]),
    "HEALTH": lambda gpu: clean(gpu["health"]),
    "PCI BUS ID": lambda gpu: clean(gpu["pci_bus_id"]),
    "NAME": lambda gpu: clean(gpu["name"]) or "-",
    "TEMP": _reading("temperature", "C"),
    "POWER": _reading("power_usage_mw", "W", 1000),
    "LOAD": _reading("utilization_gpu", "%"),
    "MEMORY": _reading("memory_used_bytes", "GiB", 1 << 30),
    "WHY": lambda gpu: ", ".join(map(_spoken, dict.fromkeys(gpu["reasons"]))),
}


_FIRST_LEFT_OUT = ("NAME", "MEMORY", "LOAD", "POWER", "TEMP", "PCI BUS ID")


def _gpus(gpus: list[Document], width: int | None) -> Iterator[str]:
    kept = dict(_COLUMNS)
    for least in (*_FIRST_LEFT_OUT, None):
        lines = list(table(list(kept), [[column(gpu) for column in kept.values()] for gpu in gpus]))
        if least is None or width is None or max(map(len, lines)) <= width:
            break
        del kept[least]
    yield from lines


def _finding(finding: Document) -> Iterator[str]:
    title, told = _title(finding)
    shadow = " (shadow: without effect on health)" if finding.get("shadow") else ""
    yield f"{str(finding['severity']).upper()}{shadow}: {title}: {_where(finding)}"
    yield f"  id: {clean(finding['id'])}"
    if finding.get("caused_by"):
        yield f"  caused by: {clean(finding['caused_by'])}"
    count = f", {finding['count']} times" if finding["count"] > 1 else ""
    gone = "; latched: no longer seen" if finding["latched"] else ""
    yield f"  seen: from {when(finding['first_seen'])} to {when(finding['last_seen'])}{count}{gone}"
    if evidence := evidence_text(finding["evidence"], without=told):
        yield f"  evidence: {evidence}"
    yield from _guidance(finding)


def _title(finding: Document) -> tuple[str, tuple[str, ...]]:
    """Return the title, and the keys of the evidence that it contains."""
    check, meaning = finding["check"], finding["evidence"].get("meaning")
    if check in _NUMBERED and meaning and finding["detail"]:
        return f"{_NUMBERED[check]} {clean(finding['detail'])}: {clean(meaning)}", (check, "meaning")
    return clean(finding["title"]), ("link",) if "link" in finding["detail"] else ()


_NUMBERED = {"xid": "Xid", "sxid": "SXid"}


def _where(finding: Document) -> str:
    gpu = "" if finding["gpu"] is None else f"GPU {finding['gpu']}"
    slot, detail = clean(finding["pci_bus_id"] or ""), clean(finding["detail"])
    device = f"{gpu} ({slot})" if gpu and slot else gpu or slot
    part = "" if finding["check"] in _NUMBERED else detail
    return ", ".join(filter(None, (device, part))) or "this node"


def _unseen(collectors: list[Document], *, absent: bool) -> Iterator[str]:
    """Yield sources that are not read yet, and with `absent` those that this host lacks; not those that fail."""
    for collector in collectors:
        name, error = clean(collector["name"]), clean(collector["error"])
        if collector["outcome"] is None:
            yield f"{name}: not read yet"
        elif absent and collector["outcome"] == "absent":
            yield f"{name}: not on this host{f': {error}' if error else ''}"
