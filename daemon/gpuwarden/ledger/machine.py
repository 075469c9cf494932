"""Which machine a ledger belongs to: it may have come with a cloned image, or with a disk from another machine."""

from __future__ import annotations

import json

from gpuwarden_collectors.host import MachineIdentity


def as_text(machine: MachineIdentity) -> str:
    return json.dumps({"dmi": machine.dmi, "machine_id": machine.machine_id, "instance": machine.instance})


def of_text(text: str) -> MachineIdentity:
    names = json.loads(text or "{}")
    return MachineIdentity(
        dmi=names.get("dmi", ""), machine_id=names.get("machine_id", ""), instance=names.get("instance", "")
    )


def same_machine(first: MachineIdentity, second: MachineIdentity) -> bool:
    """Return True if both are the same machine: equal DMI UUIDs, or equal machine ids if one has no DMI UUID, and equal
    instances. A pair of identifiers of which one is missing counts as equal.
    """
    boards = (first.dmi, second.dmi) if first.dmi and second.dmi else (first.machine_id, second.machine_id)
    return all(
        first == second or not first or not second for first, second in (boards, (first.instance, second.instance))
    )


def completed(machine: MachineIdentity, recorded: MachineIdentity) -> MachineIdentity:
    """The identifiers of `machine`, with missing ones taken from `recorded`, so that one failed read loses none."""
    return MachineIdentity(
        dmi=machine.dmi or recorded.dmi,
        machine_id=machine.machine_id or recorded.machine_id,
        instance=machine.instance or recorded.instance,
    )
