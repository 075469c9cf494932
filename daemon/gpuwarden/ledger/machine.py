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


def same_machine(one: MachineIdentity, other: MachineIdentity) -> bool:
    """Equal in the DMI UUID, or in the machine id where one has no DMI UUID; and in the instance where both have one.

    True if they have no name in common.
    """
    boards = (one.dmi, other.dmi) if one.dmi and other.dmi else (one.machine_id, other.machine_id)
    return all(one == two or not one or not two for one, two in (boards, (one.instance, other.instance)))


def completed(machine: MachineIdentity, known: MachineIdentity) -> MachineIdentity:
    """The names of `machine`, missing ones taken from `known`: a name that cannot be read once is not forgotten."""
    return MachineIdentity(
        dmi=machine.dmi or known.dmi,
        machine_id=machine.machine_id or known.machine_id,
        instance=machine.instance or known.instance,
    )
