"""IMEX, which lets GPUs of several nodes reach each other's memory over NVLink: where it matters, and what DCGM says of it.

DCGM cannot distinguish an IMEX that is down from one that is not wanted: it reports -3 on a single node without any
(NVIDIA/NVSentinel#1471), and on nodes whose IMEX runs in the pods of Kubernetes' DRA driver (NVIDIA/DCGM#308,
NVIDIA/aicr#2641). So it is judged only where both hold:

- *multi-node NVLink*: a GPU has a cluster UUID that is not zero, as NCCL's mnnvl.cc has it. The UUID is zero on single nodes with
  NVSwitches. The clique says nothing: it is a number within the cluster, of which 0 is one.
- *the host uses it*: nvidia-imex.service is enabled, configured to be watched, or has been started (a Slurm prolog may do that for
  one job); or DCGM had an answer from the daemon. Not a process in a container: that is the DRA driver's, which restarts it itself,
  and which DCGM does not reach.
"""

from __future__ import annotations

from gpuwarden.health.view import Sight
from gpuwarden_collectors.dcgm.facts import DcgmFacts
from gpuwarden_collectors.host_facts import ServicesFacts

UNIT = "nvidia-imex.service"
_STATES = range(7)
"""Of a daemon that answered, from INITIALIZING to SHUTTING_DOWN (DcgmImexManager.h of DCGM 4.6)."""
_READY, _UNAVAILABLE, _NOT_USED = 5, 7, (-1, -2)
"""-1 not installed, -2 not configured, -3 the command that asks failed."""


def multi_node(sight: Sight) -> bool | None:
    """True if a GPU belongs to an NVLink domain of several nodes; None while none answers."""
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
    """Description of what is wrong with IMEX by DCGM's readings; "" if nothing is."""
    daemon = facts.imex_daemon
    if facts.imex_domain in ("DOWN", "DEGRADED"):
        return f"the IMEX domain is {facts.imex_domain}"
    if daemon is None or daemon in (_READY, _UNAVAILABLE, *_NOT_USED):
        return ""
    return f"the IMEX daemon is in state {daemon}, not ready ({_READY})"
