"""Checks readings after a repair: every GPU answers, none waits for a remap, every NVLink ever seen is active. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpuwarden.health.model import Pin, Verdict
from gpuwarden_collectors.facts import GpuAnswer, GpuFacts, NvmlFacts

_SHOWN = 3


def unwell(verdict: Verdict, facts: NvmlFacts | None, pins: Mapping[str, Pin]) -> str:
    """Return which readings are bad; "" if none are."""
    if facts is None:
        return "the GPUs could not be read"
    if facts.problem is not None:
        return f"the GPUs cannot be read: {facts.problem_text or facts.problem.value}"
    by_slot = {gpu.slot: gpu for gpu in facts.gpus}
    texts = [
        f"GPU {gpu.slot}: {text}"
        for gpu in verdict.gpus
        if gpu.expected and (text := _of_gpu(by_slot.get(gpu.slot), pins.get(gpu.slot)))
    ]
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return "; ".join(texts[:_SHOWN]) + more


def _of_gpu(facts: GpuFacts | None, pin: Pin | None) -> str:
    if facts is None:
        return "it is missing"
    if facts.answer is not GpuAnswer.OK:
        return f"it answers {facts.answer}"
    if facts.readings.remapped_rows_failure:
        return "a row could not be remapped"
    if facts.readings.remapped_rows_pending:
        return "a row waits to be remapped"
    down = [] if pin is None or facts.readings.mig_mode else list(_down(facts, pin.links))
    return f"NVLink {', '.join(map(str, down))} is down" if down else ""


def _down(facts: GpuFacts, links: int) -> Iterator[int]:
    """Yield the links that were active once and are not now."""
    active = {link.link for link in facts.links if link.active}
    return (number for number in range(links.bit_length()) if links >> number & 1 and number not in active)


def expected(verdict: Verdict) -> int:
    return sum(gpu.expected for gpu in verdict.gpus)
