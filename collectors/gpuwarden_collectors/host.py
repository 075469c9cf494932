"""Identifies this boot and this machine. Nothing here raises: a value that cannot be read is "", with the reason.

An identity must survive reboots, reinstallation and updates, and must differ for a copy of the disk in another
machine. The firmware's system UUID meets both if the manufacturer set it; UUIDs that some boards ship on every unit
count as absent. /etc/machine-id is the fallback; it is copied with the disk, so on clouds the instance id is added to
distinguish copies. A machine id that a boot generates, or gets from an image, counts as absent, too.

Only root can read the UUID and the serial number. An unprivileged process therefore computes another identity than
the daemon: compare only names that both have.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.mount_table import in_memory

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ONE_DIGIT = re.compile(r"([0-9a-f])\1*")  # all zeros: "no id"; all Fs: "not set" (SMBIOS, system UUID)
_SHIPPED_TO_MANY = frozenset(
    """
    03000200-0400-0500-0006-000700080009 00020003-0004-0005-0006-000700080009 00010203-0405-0607-0809-0a0b0c0d0e0f
    12345678-1234-5678-90ab-cddeefaabbcc fefefefe-fefe-fefe-fefe-fefefefefefe""".split()
)
"""Placeholders of board makers, seen on many different machines."""
_MACHINE_ID = re.compile(r"[0-9a-f]{32}")
_CLOUDS = (  # firmware fields that name the instance; on Azure the system UUID itself is the VM id
    ("board_asset_tag", re.compile(r"i-[0-9a-f]{8,17}")),  # AWS Nitro, virtual and bare metal
    ("product_serial", re.compile(r"GoogleCloud-[0-9A-Fa-f]{32}")),  # Google Compute Engine
)
_INSTANCE = re.compile(r"(?!iid-datasource-none)[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
_TYPE = re.compile(r"[\x20-\x7e]{3,100}")
_LONGEST = 256  # characters
FIRST_PIDS = 0xEFFFFFFC
"""PROC_PID_INIT_INO of linux/proc_ns.h: the inode of the first PID namespace."""
_CONTAINER_VARIABLES = ("container", "KUBERNETES_SERVICE_HOST")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineIdentity:
    """The ids of one machine, each "" if unknown: the firmware's system UUID, /etc/machine-id, the cloud instance.

    `reasons` explain why an id that every machine should have is missing. `str()` is a stable text of the ids, as in
    `dmi:4c4c4544-…/instance:i-0af01c…`, with `machine-id:…` in place of a missing DMI UUID.
    """

    dmi: str = ""
    machine_id: str = ""
    instance: str = ""
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        machine = f"dmi:{self.dmi}" if self.dmi else self.machine_id and f"machine-id:{self.machine_id}"
        return "/".join(part for part in (machine, self.instance and f"instance:{self.instance}") if part)


def boot_id(proc: Path) -> str:
    """The kernel's random id of this boot; "" if /proc has none."""
    text, _ = _line(proc / "sys/kernel/random/boot_id")
    return text.lower() if _UUID.fullmatch(text.lower()) else ""


def contained(proc: Path, environment: Mapping[str, str] = os.environ) -> bool:
    """True if this process runs in a container or a pod, whose libraries and device files may differ from the host's.

    It checks the PID namespace in `proc`, and the variables that Kubernetes, Podman, systemd-nspawn and gpuwarden's
    image set.
    """
    if any(environment.get(name) for name in _CONTAINER_VARIABLES):
        return True
    try:
        return (proc / "self/ns/pid").stat().st_ino != FIRST_PIDS
    except OSError:
        return False


def identify(sysfs: Path, etc: Path, var_lib: Path, mountinfo: Path) -> MachineIdentity:
    """Reads the machine's identity without using the network.

    Reads `<sysfs>/class/dmi/id`, `<etc>/machine-id` and `<var_lib>/cloud/data/instance-id` (cloud-init). cloud-init's
    file has the lowest precedence: on a copied disk it names the original until cloud-init has run. Start a service
    that may run at a first boot after `cloud-init.service`. `mountinfo`: the mount table in which these paths are.
    """
    folder = sysfs / "class/dmi/id"
    dmi, no_dmi = _name(folder / "product_uuid", _is_system_uuid)
    machine_id, no_machine_id = _name(etc / "machine-id", _MACHINE_ID.fullmatch)
    if machine_id and (why := _transient(etc, mountinfo)):
        machine_id, no_machine_id = "", f"{etc}/machine-id names one boot: {why}"
    return MachineIdentity(
        dmi=dmi.lower(),
        machine_id=machine_id,
        instance=_instance(folder, var_lib),
        reasons=tuple(reason for reason in (no_dmi, no_machine_id) if reason),
    )


def machine_type(sysfs: Path) -> str:
    """`vendor/product` as the firmware names this machine, such as `Amazon EC2/p5.48xlarge`; "" where either is missing."""
    folder = sysfs / "class/dmi/id"
    vendor, product = (_line(folder / field)[0] for field in ("sys_vendor", "product_name"))
    text = f"{vendor}/{product}"
    return text if vendor and product and _TYPE.fullmatch(text) else ""


def _transient(etc: Path, mountinfo: Path) -> str:
    """Returns why the machine id is of this boot only, "" if it lasts.

    If the image has an empty file, as on diskless nodes, systemd generates an id in each boot (machine-id(5)). It
    mounts /run/machine-id over the file in /etc if the root is read-only, and writes the file if the root is in memory.
    """
    try:
        if (etc / "machine-id").samefile(etc.parent / "run/machine-id"):
            return "systemd could not keep it in a read-only root"
    except OSError:
        pass
    kind = in_memory(etc / "machine-id", mountinfo)
    return f"it is on {kind}, which a boot empties" if kind else ""


def _is_system_uuid(text: str) -> bool:
    uuid = text.lower()
    placeholder = uuid in _SHIPPED_TO_MANY or _ONE_DIGIT.fullmatch(uuid.replace("-", ""))
    return bool(_UUID.fullmatch(uuid)) and not placeholder


def _name(path: Path, is_one: Callable[[str], object]) -> tuple[str, str]:
    """Returns the file's text and "" if it is a valid id, else "" and the reason."""
    text, unreadable = _line(path)
    if is_one(text):
        return text, ""
    return "", unreadable or f"{path}: {text!r} does not name one machine"


def _instance(dmi: Path, var_lib: Path) -> str:
    for field, pattern in _CLOUDS:
        text, _ = _line(dmi / field)
        if pattern.fullmatch(text):
            return text
    text, _ = _line(var_lib / "cloud/data/instance-id")
    return text if _INSTANCE.fullmatch(text) else ""


def _line(path: Path) -> tuple[str, str]:
    """Returns the first line of a small file and "", or "" and why it could not be read."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.readline(_LONGEST).strip(), ""
    except OSError as error:
        return "", f"{path}: {error.strerror}"
