"""Inventory of the expected GPUs, and the presence of each one.

A GPU that was ever seen here, on the PCI bus or by NVML, is *pinned* by its slot. Pins are added automatically; only an
operator removes one (`gpuwarden inventory accept`), or the move or exchange of a board. A slot that was given up is
pinned again once NVML lists a GPU there. Each pass compares pins, PCI and NVML:

    NVML lists it, and PCI answers or cannot be read    present
    not on PCI, or configuration space 0xFFFFFFFF       gone: at once, or after two passes while NVML still answers
    not on PCI, while another slot has a GPU with an    unseen until NVML lists GPUs: a card that was added renumbers
    unknown board                                       the buses at boot, and NVML follows a minute after the bus
    NVML does not list it (or reports it as lost), and  unlisted: a driver reload, a reset or a MIG change looks like
    PCI answers or cannot be read                       this for up to 30 s; missing after that, if two passes saw it
    neither could be read                               unseen

If all GPUs are unlisted together, the driver is at fault: see `driver_not_loaded`. The same holds for an unknown error
of all GPUs: see `nvml_unavailable`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from functools import partial

from gpuwarden.health.event_data import read, write
from gpuwarden.health.events import Pinned
from gpuwarden.health.gpu.settings import odd_settings, settings_kept
from gpuwarden.health.host.learning import accept_host
from gpuwarden.health.machine_types import GPUS_OF
from gpuwarden.health.model import Event, EventKind, Evidence, Key, Pin, Severity, gpu
from gpuwarden.health.state import State, pin_event
from gpuwarden.health.view import Sight, foreign
from gpuwarden_collectors.dataclass import replace
from gpuwarden_collectors.facts import GpuAnswer, GpuFacts

SEVERAL = 2


class Presence(StrEnum):
    PRESENT = "present"
    UNLISTED = "unlisted"
    GONE = "gone"
    UNSEEN = "unseen"
    FOREIGN = "foreign"


def presence(slot: str, sight: Sight) -> tuple[Presence, str]:
    """Return the presence of the GPU in `slot`, and the reason."""
    bus = _on_bus(slot, sight)
    if bus is not None:
        return bus
    if sight.nvml is None:
        return Presence.UNSEEN, "NVML could not be read"
    facts = sight.gpus.get(slot)
    if facts is None:
        return Presence.UNLISTED, "NVML does not list it"
    return (Presence.UNLISTED, "NVML reports it as lost") if facts.answer is GpuAnswer.LOST else (Presence.PRESENT, "")


def _on_bus(slot: str, sight: Sight) -> tuple[Presence, str] | None:
    """Return the presence by the PCI bus alone; None if the GPU answers there, or if the bus could not be read."""
    if sight.devices is None:
        return None
    device = sight.devices.get(slot)
    if device is None:
        return Presence.GONE, "not on the PCI bus"
    if foreign(device):
        return Presence.FOREIGN, f"bound to {device.driver}"
    return (Presence.GONE, "its PCI configuration space reads 0xFFFFFFFF") if device.responds is False else None


def answers_nvml(slot: str, sight: Sight) -> bool:
    """Return True if NVML returned valid readings for this GPU in its last fresh pass."""
    facts = sight.gpus.get(slot)
    return facts is not None and facts.answer is GpuAnswer.OK


def presences(state: State, sight: Sight) -> Mapping[str, tuple[Presence, str]]:
    where = {slot: presence(slot, sight) for slot in state.pins}
    off_bus = [slot for slot in where if _off_bus(slot, sight)]
    if off_bus and (sight.nvml is None or not sight.nvml.gpus):
        unseen = (Presence.UNSEEN, "not on the PCI bus in its slot; NVML has not named a GPU in another slot yet")
        where |= dict.fromkeys(off_bus[: _unnamed(state, sight)], unseen)
    return where


def driver_silent(state: State, sight: Sight) -> bool:
    """Return True if NVML was read and lists no GPU, although the PCI bus (or, if unread, the pins) has some."""
    if sight.view.nvml.outcome is None or (sight.nvml is None and not absent(sight)):
        return False
    if sight.nvml is not None and sight.nvml.gpus:  # even a lost GPU, or one without an address, proves a loaded driver
        return False
    return any(where is Presence.UNLISTED or where is Presence.UNSEEN for where, _ in presences(state, sight).values())


def all_unknown(state: State, sight: Sight) -> bool:
    """Return True if every GPU answers with an unknown error, the bus has all, and no kernel line finding explains it.

    Then the driver, or access to it, fails: several GPUs do not break in one pass without a log line.
    """
    if sight.nvml is None or len(sight.nvml.gpus) < SEVERAL:
        return False
    if any(facts.answer is not GpuAnswer.UNKNOWN for facts in sight.nvml.gpus):
        return False
    gone = any(where is Presence.GONE for where, _ in presences(state, sight).values())
    return not gone and not any(
        track.raised and track.severity is Severity.FAILURE and track.key in state.records
        for track in state.tracks.values()
    )


def absent(sight: Sight) -> bool:
    """Return True if the NVML library is not installed on this host."""
    latest = sight.view.nvml.latest
    return latest is not None and latest.outcome.value == "absent"


def expected_count(state: State, sight: Sight) -> tuple[int | None, str]:
    """Return the expected number of GPUs and its source: `configured`, `machine_type`, `learned`; or ``(None, "")``."""
    if sight.rules.expected_gpus is not None:
        return sight.rules.expected_gpus, "configured"
    if (of_type := expected_of_type(state, sight)) is not None:
        return of_type, "machine_type"
    learned = known_count(state, sight)
    return (learned, "learned") if learned else (None, "")


def expected_of_type(state: State, sight: Sight) -> int | None:
    """Return the number of GPUs of this machine type, without those of other owners and those that an operator gave up.

    None if the type is unknown, or the bus cannot be read: a container may have only some of the GPUs.
    """
    of_type = GPUS_OF.get(sight.rules.machine_type)
    if of_type is None or sight.devices is None:
        return None
    return max(0, of_type - sum(map(foreign, sight.devices.values())) - len(state.given_up))


def countable(sight: Sight) -> bool:
    """Return True if all present GPUs can be known: from the bus once NVML has answered or failed, or from NVML."""
    listed = sight.nvml is not None and sight.nvml.problem is None
    return listed or (sight.devices is not None and sight.view.nvml.outcome is not None)


def known_count(state: State, sight: Sight) -> int:
    """Return how many GPUs of this node were ever seen here, without those of other owners."""
    devices = sight.devices or {}
    return sum([not foreign(devices.get(slot)) for slot in state.pins])


def _active_links(facts: GpuFacts) -> int:
    return sum([1 << link.link for link in facts.links if link.active])


def _pin(facts: GpuFacts, links: int) -> Pin:
    licensed = facts.readings.vgpu_license == 1
    return Pin(slot=facts.slot, uuid=facts.uuid, name=facts.name, serial=facts.serial, links=links, licensed=licensed)


def _newly_licensed(pin: Pin, facts: GpuFacts) -> bool:
    return facts.readings.vgpu_license == 1 and not pin.licensed


def learn(state: State, sight: Sight) -> Iterator[Event]:
    """Yield events for new GPUs, exchanged boards, and links or a vGPU licence that are active for the first time."""
    if sight.rules.expected_gpus == 0:
        return  # no GPU of this node is expected
    event = partial(pin_event, at=sight.now, boot_id=sight.view.boot_id)
    boards = _boards(state, sight)
    for slot, facts in sight.gpus.items():
        pin, links = state.pins.get(slot), _active_links(facts)
        if facts.answer is GpuAnswer.LOST:
            continue
        if pin is None:
            yield event(EventKind.GPU_PINNED, pin=_pin(facts, links))
        elif facts.uuid and pin.uuid and facts.uuid != pin.uuid:
            yield _replaced(event(EventKind.GPU_REPLACED, pin=_pin(facts, links)), _slot_of(pin.uuid, boards, sight))
        elif (facts.uuid and not pin.uuid) or links & ~pin.links or _newly_licensed(pin, facts):
            yield event(EventKind.GPU_PINNED, pin=_pin(facts, pin.links | links))
    yield from _moved(state, sight, boards)
    yield from _exchanged(state, sight)
    if sight.view.nvml.outcome is None:
        return  # NVML's first pass will give more details than the bus
    for slot, device in (sight.devices or {}).items():
        native = not foreign(device) and device.driver != "nouveau" and device.responds is not False
        if native and slot not in state.pins and slot not in sight.gpus and slot not in state.given_up:
            yield event(EventKind.GPU_PINNED, pin=Pin(slot=slot))


def _boards(state: State, sight: Sight) -> Mapping[str, Pin]:
    """Return the expected boards by slot. A board that is seen in the slot of another exchanges slots with it.

    A GPU that does not come up at boot can renumber the buses behind it: the others move up, and the last slot is
    assigned to the missing board. A board that was never here takes the slot permanently.
    """
    seen = _named(sight)
    boards = {slot: pin for slot, pin in state.pins.items() if pin.uuid}
    others = [slot for slot, uuid in seen.items() if slot in boards and boards[slot].uuid != uuid]
    for slot in others:
        left = next((old for old, pin in boards.items() if pin.uuid == seen[slot] != seen.get(old)), None)
        if left is not None:
            boards[slot], boards[left] = boards[left], boards[slot]
    for slot in others:
        if boards[slot].uuid != seen[slot]:
            del boards[slot]
    return boards


def _named(sight: Sight) -> Mapping[str, str]:
    """Return the UUIDs of the boards that NVML lists and has not lost, by slot."""
    return {slot: facts.uuid for slot, facts in sight.gpus.items() if facts.uuid and facts.answer is not GpuAnswer.LOST}


def _moved(state: State, sight: Sight, boards: Mapping[str, Pin]) -> Iterator[Event]:
    """Yield events for slots whose board is now in another slot.

    A slot is unpinned if it is no longer on the bus and its board answers elsewhere, since a new card can renumber the
    buses at boot. If the slot was assigned to another board, that board counts as missing there, unless the bus has an
    additional GPU whose board is not known yet.
    """
    here = {facts.uuid: facts.slot for facts in sight.gpus.values() if facts.answer is GpuAnswer.OK}
    left: list[str] = []
    for slot, board in boards.items():
        elsewhere = here.get(board.uuid, slot) != slot  # NVML's last pass may still list a GPU that the bus has lost
        if elsewhere and _off_bus(slot, sight):
            yield _unpinned(slot, sight, {"moved_to": here[board.uuid]})
        elif board is not state.pins[slot] and slot not in _named(sight):
            left.append(slot)
    unnamed = _unnamed(state, sight) if left else 0
    for slot in left:
        board, moved_to = boards[slot], _slot_of(state.pins[slot].uuid, boards, sight)
        if unnamed > 0 and _off_bus(slot, sight):
            unnamed -= 1
            yield _unpinned(slot, sight, {"moved_to": moved_to})
        else:
            pin = Pin(slot=slot, uuid=board.uuid, name=board.name, serial=board.serial)
            yield _replaced(pin_event(EventKind.GPU_REPLACED, sight.now, sight.view.boot_id, pin), moved_to)


def _exchanged(state: State, sight: Sight) -> Iterator[Event]:
    """Yield events for vacant slots after all boards were exchanged: no expected board is listed, and at least as many
    others answer. This happens if a baseboard was exchanged, a virtual machine started on other hardware, or the ledger
    came with the disk of another machine.
    """
    boards = {slot: pin.uuid for slot, pin in state.pins.items() if pin.uuid}
    listed = {facts.uuid for facts in sight.gpus.values()}
    others = [facts for facts in sight.answering if facts.uuid]
    if boards and listed.isdisjoint(boards.values()) and len(others) >= len(boards):
        for slot in boards:
            if _off_bus(slot, sight):
                yield _unpinned(slot, sight, {"exchanged": True})


def _off_bus(slot: str, sight: Sight) -> bool:
    return sight.devices is not None and slot not in sight.devices


def _slot_of(uuid: str, boards: Mapping[str, Pin], sight: Sight) -> str | None:
    """Return the slot in which this board is seen or expected; None if it is no longer expected."""
    places = {pin.uuid: slot for slot, pin in boards.items()} | {board: slot for slot, board in _named(sight).items()}
    return places.get(uuid)


def _unnamed(state: State, sight: Sight) -> int:
    """Return the number of GPUs on the bus whose board neither NVML nor a pin identifies."""
    named = _named(sight)
    own = [slot for slot, device in (sight.devices or {}).items() if not foreign(device) and slot not in state.given_up]
    return sum(slot not in named and not state.pins.get(slot, Pin(slot=slot)).uuid for slot in own)


def _replaced(event: Event, moved_to: str | None) -> Event:
    """Add the new slot of the previous board to the event; None if it is no longer expected."""
    return event if moved_to is None else replace(event, data={**event.data, "moved_to": moved_to})


def _unpinned(slot: str, sight: Sight, data: Evidence | None = None) -> Event:
    return Event(
        kind=EventKind.GPU_UNPINNED,
        at=sight.now,
        boot_id=sight.view.boot_id,
        key=Key("gpu", gpu(slot)),
        data=data or {},
    )


def accept(state: State, sight: Sight) -> list[Event]:
    """Return the events of `gpuwarden inventory accept`, which accepts the present hardware.

    Missing GPUs, and links and ports that are down, are no longer expected. Narrow PCIe links, and settings that differ
    from those of the siblings, are accepted.

    Raises ValueError while neither the PCI bus nor NVML can be read, since the inventory is unknown then.
    """
    if sight.nvml is None and sight.devices is None:
        raise ValueError("the inventory cannot be accepted now: neither NVML nor the PCI bus can be read")
    gone = [slot for slot, (where, _) in presences(state, sight).items() if where in (Presence.GONE, Presence.FOREIGN)]
    if sight.gpus:
        gone += [s for s, (where, _) in presences(state, sight).items() if where is Presence.UNLISTED]
    return [*(_unpinned(slot, sight) for slot in sorted(gone)), *_as_they_are(state, sight), *accept_host(state, sight)]


_LESS = {"links": "fewer_links", "pcie_width": "narrower"}
_ACCEPTED = {**_LESS, "settings": "other_settings", "licensed": "unlicensed"}


def accepted(events: Iterable[Event]) -> dict[str, list[str]]:
    """Return the slots of GPUs and the names of ports in these events of `accept`, by what was accepted."""
    result: dict[str, list[str]] = {"given_up": [], "slower": [], **{name: [] for name in _LESS.values()}}
    for event in events:
        if event.key is None:
            continue
        names = ["slower" if event.kind == EventKind.HOST_LEARNED else "given_up"]
        if event.kind == EventKind.GPU_PINNED:
            names = [_ACCEPTED[name] for name in (read(Pinned, event).accepted or "").split()]
        for name in names:
            result.setdefault(name, []).append(event.key.subject.slot or event.key.subject.part)
    return result


def _as_they_are(state: State, sight: Sight) -> Iterator[Event]:
    """Yield events that accept the present links, PCIe width, settings and licence of each GPU. With MIG enabled the
    expected links stay, since all links are off.
    """
    odd = odd_settings(sight)
    for facts in sight.answering:
        if (pin := state.pins.get(facts.slot)) is None:
            continue
        settings = settings_kept(pin.settings, facts.slot, odd)
        now = replace(
            pin,
            links=_links_kept(pin, facts),
            pcie_width=_width_kept(pin, facts),
            settings=settings,
            licensed=pin.licensed and facts.readings.vgpu_license != 0,
        )
        if now != pin:
            less = {
                "links": now.links != pin.links,
                "pcie_width": now.pcie_width not in (0, pin.pcie_width),
                "settings": now.settings != pin.settings,
                "licensed": now.licensed != pin.licensed,
            }
            event = pin_event(EventKind.GPU_PINNED, sight.now, sight.view.boot_id, now)
            names = " ".join(name for name, is_less in less.items() if is_less)
            licensed = False if less["licensed"] else now.licensed or None
            pinned = replace(read(Pinned, event), pcie_width=now.pcie_width, licensed=licensed, accepted=names)
            yield replace(event, data=write(pinned))


def _links_kept(pin: Pin, facts: GpuFacts) -> int:
    return pin.links if facts.readings.mig_mode else pin.links & _active_links(facts)


def _width_kept(pin: Pin, facts: GpuFacts) -> int:
    width, most = facts.readings.pcie_width, facts.readings.pcie_width_max
    if not width or not most:
        return pin.pcie_width
    return width if width < most else 0
