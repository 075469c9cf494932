"""Detects GPUs that were never seen, by the machine type that the firmware reports, or by module numbers.

A GPU that was seen before and is gone is `gpu_missing`. This covers a GPU that never came up on the bus, in this boot
or any earlier one. If the site configured a number of GPUs, only that number counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuwarden.health.detection import NOTHING, Detection, node_detection
from gpuwarden.health.inventory import countable, expected_of_type, known_count
from gpuwarden.health.machine_types import VERSION, name_of
from gpuwarden.health.model import NODE, Evidence, Key, Sighting
from gpuwarden.health.state import State
from gpuwarden.health.view import Sight, foreign

CODE = "inventory_incomplete"
WHOLE_BOARDS = (4, 8)
"""Sizes of baseboards, in modules, to which the rule applies."""
PARTS_OF_A_BOARD = (1, 2, 4)
"""GPUs that a guest may have by design: partitions of NVIDIA's fabric manager, with gaps in the numbers."""


def inventory_incomplete(state: State, sight: Sight) -> Detection:
    if not countable(sight):
        return NOTHING
    if sight.rules.expected_gpus is not None:
        return node_detection(())
    if sight.devices is None:  # devices on the bus, and the owners of the listed GPUs, are unknown
        return NOTHING
    return node_detection(_found(state, sight))


def _found(state: State, sight: Sight) -> Iterator[Sighting]:
    rise, seen_count = sight.rules.missing_grace, known_count(state, sight)
    of_type = expected_of_type(state, sight)
    evidence: Evidence
    if of_type is not None:
        if seen_count < of_type:
            machine = name_of(sight.rules.machine_type)
            why = f"{seen_count} of the {of_type} GPUs of the machine type {machine} were ever seen here"
            evidence = {"why": why, "expected": of_type, "known": seen_count, "machine_type": machine, "table": VERSION}
            yield Sighting(Key(CODE, NODE), evidence, rise=rise)
        return
    modules = _modules(state, sight, seen_count)
    if gaps := _gaps(modules):
        why = f"modules {_text(modules)} of the baseboard were seen, and {_text(gaps)} never"
        evidence = {"why": why, "known": seen_count, "modules": _text(modules), "never_seen": _text(gaps)}
        yield Sighting(Key(CODE, NODE), evidence, rise=rise)


def _modules(state: State, sight: Sight, seen_count: int) -> Sequence[int]:
    """Return the sorted module numbers; none unless all expected GPUs are listed, alike, and not passed through."""
    listed = sight.gpus.values()
    numbers = sorted(facts.placement.module_id for facts in listed if facts.placement.module_id is not None)
    distinct = len(set(numbers)) == len(numbers) == len(sight.gpus) == seen_count
    alike = len({facts.name for facts in listed}) == 1
    owned = not state.given_up and not any(map(foreign, (sight.devices or {}).values()))
    return numbers if distinct and alike and owned else ()


def _gaps(modules: Sequence[int]) -> Sequence[int]:
    """Return the gaps in the module numbers of a board; none if a guest may have exactly these modules."""
    if not modules or len(modules) in PARTS_OF_A_BOARD or modules[-1] - modules[0] >= max(WHOLE_BOARDS):
        return ()
    if len(modules) < WHOLE_BOARDS[0] and modules[-1] - modules[0] >= WHOLE_BOARDS[0]:
        return ()
    return [number for number in range(modules[0], modules[-1]) if number not in modules]


def _text(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers))
