"""Whether a ledger is this machine's: it may have come with a cloned image, or with a disk from another machine."""

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
    """Equal in the DMI UUID, or in the machine id where one has no DMI UUID; and in the instance where both have one.

    True if they have no name in common.
    """
    boards = (first.dmi, second.dmi) if first.dmi and second.dmi else (first.machine_id, second.machine_id)
    return all(
        first == second or not first or not second for first, second in (boards, (first.instance, second.instance))
    )


def completed(machine: MachineIdentity, recorded: MachineIdentity) -> MachineIdentity:
    """The names of `machine`, missing ones taken from `recorded`: a name that cannot be read once is not forgotten."""
    return MachineIdentity(
        dmi=machine.dmi or recorded.dmi,
        machine_id=machine.machine_id or recorded.machine_id,
        instance=machine.instance or recorded.instance,
    )
