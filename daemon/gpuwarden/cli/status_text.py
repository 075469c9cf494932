"""The status document as text: the verdict, why, each GPU, each finding and how it ends, and what cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gpuwarden.cli.active_test_text import active_test_lines
from gpuwarden.cli.enforcement_text import enforcement_lines
from gpuwarden.cli.text import clean, table, when

Document = dict[str, Any]


def status_text(status: Document, width: int | None = None) -> Iterator[str]:
    """Where the columns of GPUs are wider than `width`, the least important are left out. Other lines are not cut."""
    if status.get("simulated"):
        yield "SIMULATED: these GPUs do not exist"
    yield from _headline(status)
    if status["gpus"]:
        yield ""
        yield from _gpus(status["gpus"], width)
    consequences = {one["cause"]: one["consequences"] for one in status.get("incidents", ())}
    for finding in sorted(status["findings"], key=_with_its_cause(status["findings"])):
        yield ""
        yield from _finding(finding)
        if names := consequences.get(finding["id"]):
            yield f"  consequences: {', '.join(map(clean, names))}"
    silenced = [f"{clean(f['id'])} (caused by {clean(f['silenced_by'])})" for f in status["silenced"]]
    errors = [*_unseen(status["collectors"]), *map(clean, status["trouble"])]
    enforcement = list(enforcement_lines(status))
    parts = (
        ("enforcement", enforcement),
        ("active tests", list(active_test_lines(status))),
        ("suppressed, as consequences of other findings", silenced),
        ("errors and missing sources", errors),
    )
    for title, lines in parts:
        if lines:
            yield from ("", f"{title}:", *(f"  {line}" for line in lines))


def _with_its_cause(findings: list[Document]) -> Callable[[Document], tuple[int, bool]]:
    """Orders findings so that each consequence is behind its cause. The daemon of an earlier version names none."""
    place = {finding["id"]: number for number, finding in enumerate(findings)}
    last = len(place)
    return lambda finding: (place.get(finding.get("caused_by") or finding["id"], last), bool(finding.get("caused_by")))


def _headline(status: Document) -> Iterator[str]:
    why = ", ".join(map(clean, status["reasons"]))
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
    "WHY": lambda gpu: ", ".join(map(clean, dict.fromkeys(gpu["reasons"]))),
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
    where = "" if finding["gpu"] is None else f"GPU {finding['gpu']}"
    slot = clean(finding["pci_bus_id"] or "")
    where_text = f"{where} ({slot})" if where and slot else where or slot or "this node"
    shadow = " (shadow: without effect on health)" if finding.get("shadow") else ""
    yield f"{str(finding['severity']).upper()}{shadow}: {clean(finding['title'])}: {where_text}"
    yield f"  id: {clean(finding['id'])}"
    if finding.get("caused_by"):
        yield f"  caused by: {clean(finding['caused_by'])}"
    count = f", {finding['count']} times" if finding["count"] > 1 else ""
    gone = "; latched: no longer observed; needs reset, reboot or ack" if finding["latched"] else ""
    yield f"  seen: from {when(finding['first_seen'])} to {when(finding['last_seen'])}{count}{gone}"
    shown = {name: value for name, value in finding["evidence"].items() if value not in ("", None)}
    evidence = ", ".join(f"{clean(name)} {clean(value)}" for name, value in shown.items())
    if evidence:
        yield f"  evidence: {evidence}"
    yield f"  to do: {clean(finding['to_do'])}"
    yield f"  ends when {clean(finding['ends_when'])}"
    yield f"  runbook: {clean(finding['runbook'])}"


def _unseen(collectors: list[Document]) -> Iterator[str]:
    """Sources that are absent or not read yet; those that fail are in the daemon's own list of errors."""
    for collector in collectors:
        name, error = clean(collector["name"]), clean(collector["error"])
        if collector["outcome"] is None:
            yield f"{name}: not read yet"
        elif collector["outcome"] == "absent":
            yield f"{name}: not on this host{f': {error}' if error else ''}"
