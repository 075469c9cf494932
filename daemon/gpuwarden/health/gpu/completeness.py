"""Is the machine complete at first sight? By the type that its firmware names, and by the numbers of its modules.

What was ever seen and is gone is `gpu_missing`. This is for a GPU that nobody ever saw: it never came up on the bus of this boot,
nor of any before. A number of GPUs that the site configured is the only measure where there is one.
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
"""Numbers of modules on a baseboard for which the rule holds."""
PARTS_OF_A_BOARD = (1, 2, 4)
"""GPUs of a board that a guest may have by design: NVIDIA's fabric manager divides boards so, and numbers have gaps in them."""


def inventory_incomplete(state: State, sight: Sight) -> Detection:
    if not countable(sight):
        return NOTHING
    if sight.rules.expected_gpus is not None:
        return node_detection(())
    if sight.devices is None:  # what the bus has is not known, and whose GPUs are listed
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
    """The numbers of all modules in order; none unless all GPUs that belong here are listed, alike, and the machine's own."""
    listed = sight.gpus.values()
    numbers = sorted(facts.placement.module_id for facts in listed if facts.placement.module_id is not None)
    distinct = len(set(numbers)) == len(numbers) == len(sight.gpus) == seen_count
    alike = len({facts.name for facts in listed}) == 1
    owned = not state.given_up and not any(map(foreign, (sight.devices or {}).values()))
    return numbers if distinct and alike and owned else ()


def _gaps(modules: Sequence[int]) -> Sequence[int]:
    """Numbers between those of the modules, on a board that has so many places; none where a guest may have just these."""
    if not modules or len(modules) in PARTS_OF_A_BOARD or modules[-1] - modules[0] >= max(WHOLE_BOARDS):
        return ()
    if len(modules) < WHOLE_BOARDS[0] and modules[-1] - modules[0] >= WHOLE_BOARDS[0]:
        return ()
    return [number for number in range(modules[0], modules[-1]) if number not in modules]


def _text(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers))
