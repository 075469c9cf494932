"""Active tests in the status document as text: the one that runs, and the newest result of each GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuwarden.cli.text import clean, when

Document = dict[str, Any]
_GATE = {
    "clear": "no test is due",
    "waiting": "a test is due",
    "running": "the test is running",
    "person": "needs an operator",
    "impossible": "test_impossible, the node returns without a test",
}
"""States of the return gate, for people."""


def _lines(status: Document) -> Iterator[str]:
    """Yield nothing if no GPU was tested."""
    tests = status.get("tests") or {}
    if running := tests.get("running"):
        yield f"running: level {clean(running['level'])} on {len(running['gpus'])} GPUs, until {when(running['until'])} at the latest"
    if (gate := tests.get("return_gate")) and (gate["state"] != "clear" or gate["text"]):
        yield f"before the return (level {clean(gate['level'])}): {_GATE.get(gate['state'], clean(gate['state']))}{': ' if gate['text'] else ''}{clean(gate['text'])}"
    index = {gpu["pci_bus_id"]: gpu["index"] for gpu in status["gpus"]}
    newest = {result["pci_bus_id"]: result for result in tests.get("results", ())}
    same: dict[tuple[str, str, str], list[Document]] = {}
    for test in newest.values():
        same.setdefault((test["level"], test["result"], test["text"]), []).append(test)
    for (level, result, text), alike in same.items():
        slots = [result["pci_bus_id"] for result in alike]
        names = [clean(str(slot if index.get(slot) is None else index[slot])) for slot in slots]
        last = max(result["at"] for result in alike)
        why = f": {clean(text)}" if text else ""
        yield f"GPU {', '.join(names)}: {clean(result).replace('_', ' ')} (level {clean(level)}, {when(last)}){why}"


def sections(status: Document) -> Iterator[tuple[str, list[str]]]:
    yield "active tests", list(_lines(status))
