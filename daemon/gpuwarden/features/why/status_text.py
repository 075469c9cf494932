"""Jobs in `gpuwarden status`: those that something touched, and the last ones that ended with a cause."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuwarden.cli.text import clean, when
from gpuwarden.features.why.text import CAUSES, touch_name

Document = dict[str, Any]
_ENDED_MOST = 4


def sections(status: Document) -> Iterator[tuple[str, list[str]]]:
    yield "why jobs ended, or what touches them (gpuwarden why JOB shows all)", list(_lines(status))


def _lines(status: Document) -> Iterator[str]:
    why = status.get("why") or {}
    index = {gpu["pci_bus_id"]: gpu["index"] for gpu in status["gpus"]}
    for job in why.get("running", ()):
        if (last := job["last_touch"]) is not None:
            more = f", and {job['touches'] - 1} before" if job["touches"] > 1 else ""
            text = touch_name(last["what"], last["detail"])
            state = "has ended" if job["ended"] else "runs"
            yield f"{clean(job['job'])} {state}: {_gpu(last, index)}{text} ({when(last['at'])}{more})"
    for job in why.get("ended", ())[-_ENDED_MOST:]:
        code = f", {clean(job['code'])}" if job["code"] else ""
        certain = "" if job["cause"] == "not_seen" else f", {clean(job['certainty'])}"
        cause = CAUSES.get(job["cause"], clean(job["cause"]))
        yield f"{clean(job['job'])} ended {when(job['ended'])}: {_gpu(job, index)}{cause}{code}{certain}"


def _gpu(document: Document, index: dict[str, int | None]) -> str:
    slot = document["pci_bus_id"]
    if not slot:
        return ""
    number = index.get(slot)
    return f"GPU {clean(slot) if number is None else number}: "
