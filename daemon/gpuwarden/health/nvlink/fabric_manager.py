"""Severity of a fabric manager unit that is down. GPUs on a host with NVSwitches cannot be used without it.

| unit | fabric manager process | GPUs | verdict |
|---|---|---|---|
| enabled, and dead | none | any state | a failure: GPUs stay registered when it dies (NVSentinel#883: for weeks) |
| enabled, and dead | one runs | any state | a warning: it runs elsewhere |
| enabled, and dead | hidden | any state | a warning; an existing failure stays a failure |
| restarts repeatedly | | | a failure |
| disabled, and stopped | one runs | any state | healthy: it runs in a container (gpu-operator) |
| disabled, and stopped | none, hidden | all registered | healthy |
| disabled, and failed | none, hidden | all registered | a warning |
| disabled, and dead | none | not registered, or driver too old to report it | a failure |
| disabled, and dead | hidden, or no GPU answers | not registered, or driver too old to report it | undecided |

Without an NVSwitch on the bus the unit is a warning at most. It is not required in a multi-node NVLink domain, where it
runs on the switches (NVSentinel#1275), nor where no GPU belongs to a fabric, since it then exits at once with an error.
A unit that is not installed is not judged; unregistered GPUs are `fabric_unhealthy`.
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

    `switches`: NVSwitches are on the bus. `used`: a GPU belongs to an NVLink fabric, with `multi_node` to one of
    several nodes. `completed`: every GPU that reports a fabric state is registered. `process`: a fabric manager process
    runs, in any container. `gpus`: a GPU answers.
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
    """Return True if it is not known whether the fabric manager is needed, or whether it runs."""
    if fabric.switches is None or (fabric.used is None and not fabric.switches):
        return True
    off = fabric.switches and service.active in _DEAD and not wanted(service)
    return bool(off) and not fabric.completed and (fabric.process is None or not (fabric.process or fabric.gpus))


def severity_down(service: ServiceFacts, fabric: Fabric, *, failed: bool) -> Severity | None:
    """Return the severity of a unit that is down, None if it is not needed. `failed`: it is a failure already."""
    if not fabric.switches:
        needed = fabric.used and not fabric.multi_node
        return Severity.WARNING if needed or service.configured else None
    if service.active not in _DEAD:
        return Severity.FAILURE
    if not wanted(service) and (fabric.process or fabric.completed):
        return Severity.WARNING if service.active == "failed" and not fabric.process else None
    elsewhere = fabric.process or (fabric.process is None and not failed)
    return Severity.WARNING if elsewhere else Severity.FAILURE
