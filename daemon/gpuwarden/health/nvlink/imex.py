"""Judges IMEX, which lets GPUs of several nodes access each other's memory over NVLink, by DCGM's readings.

DCGM cannot distinguish an IMEX that is down from one that is not used. It reports -3 on a single node without IMEX
(NVIDIA/NVSentinel#1471), and on nodes whose IMEX runs in pods of the Kubernetes DRA driver (NVIDIA/DCGM#308,
NVIDIA/aicr#2641). IMEX is therefore judged only if both conditions hold:

- *multi-node NVLink*: a GPU has a non-zero cluster UUID, the test of NCCL's mnnvl.cc. The UUID is zero on single nodes
  with NVSwitches. The clique is no criterion: it is a number within the cluster, and 0 is a valid one.
- *the host uses it*: nvidia-imex.service is enabled, configured to be watched, or was started (a Slurm prolog may start
  it for one job); or the daemon answered DCGM. An IMEX process in a container does not count: it belongs to the DRA
  driver, which restarts it, and DCGM cannot reach it.
"""

from __future__ import annotations

from gpuwarden.health.view import Sight
from gpuwarden_collectors.dcgm.facts import DcgmFacts
from gpuwarden_collectors.host_facts import ServicesFacts

UNIT = "nvidia-imex.service"
_STATES = range(7)
"""States of a daemon that answered, from INITIALIZING to SHUTTING_DOWN (DcgmImexManager.h of DCGM 4.6)."""
_READY, _UNAVAILABLE, _NOT_USED = 5, 7, (-1, -2)
"""-1: not installed. -2: not configured. -3: DCGM's query command failed."""


def multi_node(sight: Sight) -> bool | None:
    """Return True if a GPU belongs to a multi-node NVLink domain; None while NVML lists no GPU."""
    nvml = sight.view.nvml.facts
    if nvml is None or not nvml.gpus:
        return None
    return any(gpu.readings.fabric_in_cluster for gpu in nvml.gpus)


def imex_used(sight: Sight) -> bool:
    return multi_node(sight) is True and (_unit_used(sight) or _daemon_answered(sight))


def _unit_used(sight: Sight) -> bool:
    services = sight.view.seen(ServicesFacts).facts
    units = [] if services is None else [each for each in services.services if each.unit == UNIT]
    return any(unit.enabled or unit.configured or unit.active not in ("inactive", "") for unit in units)


def _daemon_answered(sight: Sight) -> bool:
    return sight.dcgm is not None and sight.dcgm.imex_daemon in _STATES


def imex_fault(facts: DcgmFacts) -> str:
    """Return a description of the IMEX fault in DCGM's readings; "" if there is none."""
    daemon = facts.imex_daemon
    if facts.imex_domain in ("DOWN", "DEGRADED"):
        return f"the IMEX domain is {facts.imex_domain}"
    if daemon is None or daemon in (_READY, _UNAVAILABLE, *_NOT_USED):
        return ""
    return f"the IMEX daemon is in state {daemon}, not ready ({_READY})"
