"""How bad it is that the unit of the fabric manager is down, on a host with NVSwitches, whose GPUs cannot be used without it.

| its unit | a process of it | GPUs | verdict |
|---|---|---|---|
| enabled, and dead | none | whatever they say | a failure: GPUs stay registered when it dies (NVSentinel#883: for weeks) |
| enabled, and dead | one runs | whatever they say | a warning: it runs elsewhere |
| enabled, and dead | hidden | whatever they say | a warning; a failure that is known stays one |
| restarts again and again | | | a failure |
| disabled, and stopped | one runs | whatever they say | healthy: it runs in a container (gpu-operator) |
| disabled, and stopped | none, hidden | all registered | healthy |
| disabled, and failed | none, hidden | all registered | a warning |
| disabled, and dead | none | not registered, or too old to say | a failure |
| disabled, and dead | hidden, or no GPU answers | not registered, or too old to say | undecided |

Where no NVSwitch is on the bus it only warns; in an NVLink domain of several nodes it runs on the switches (NVSentinel#1275), and where no
GPU belongs to a fabric it ends at once, with an error: there it is not missed. A unit that is not installed is not judged: that GPUs are not registered is `fabric_unhealthy`.
"""

from __future__ import annotations

from typing import NamedTuple

from gpuwarden.health.model import Severity
from gpuwarden_collectors.host_facts import ServiceFacts

FABRIC_MANAGER = "nvidia-fabricmanager.service"
PROCESS = {True: "one runs", False: "none runs", None: "not all processes of the host are visible"}
_DEAD = ("failed", "inactive", "deactivating")


class Fabric(NamedTuple):
    """Facts that show whether the fabric manager is needed here, and whether it runs; None if not known.

    `switches`: there are NVSwitches on the bus. `used`: a GPU belongs to an NVLink fabric, and with `multi_node` to one of
    several nodes. `completed`: every GPU that says so is registered in it. `process`: a process of the fabric manager runs, in
    whatever container. `gpus`: a GPU answers.
    """

    switches: bool | None = None
    used: bool | None = None
    multi_node: bool | None = None
    completed: bool | None = None
    process: bool | None = None
    gpus: bool = True


def wanted(service: ServiceFacts) -> bool:
    return service.enabled or service.configured


def undecided(service: ServiceFacts, fabric: Fabric) -> bool:
    """True if it is not known whether the fabric manager is needed, or whether it runs."""
    if fabric.switches is None or (fabric.used is None and not fabric.switches):
        return True
    off = fabric.switches and service.active in _DEAD and not wanted(service)
    return bool(off) and not fabric.completed and (fabric.process is None or not (fabric.process or fabric.gpus))


def severity_down(service: ServiceFacts, fabric: Fabric, *, failed: bool) -> Severity | None:
    """Severity of a unit that is down and not undecided; None if it is not missed. `failed`: it is a failure already."""
    if not fabric.switches:
        needed = fabric.used and not fabric.multi_node
        return Severity.WARNING if needed or service.configured else None
    if service.active not in _DEAD:
        return Severity.FAILURE
    if not wanted(service) and (fabric.process or fabric.completed):
        return Severity.WARNING if service.active == "failed" and not fabric.process else None
    elsewhere = fabric.process or (fabric.process is None and not failed)
    return Severity.WARNING if elsewhere else Severity.FAILURE
