"""The table of the steps that repair a finding: at most two for each, the milder first. Pure.

The advice of a finding decides whether it is repaired at all, this table how. A finding that is not in it needs an
operator. A step is never chosen by similarity. The second step of a ladder follows only if the first was done and the
same failure of the same board is there within a day (`plan.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gpuwarden.features.repair.model import RANK, Service, StepKind
from gpuwarden.health.model import Advice, Finding

RETRIED = "came_back_after"
"""Evidence of a finding whose advice is stronger than usual, because a repair did not help."""


class Rung(NamedTuple):
    """A kind of step; for the restart of a service, also which service."""

    kind: StepKind
    service: Service | None = None


Ladder = tuple[Rung, ...]

_RESET, _RESET_ALL, _RELOAD, _REBOOT = map(
    Rung, (StepKind.RESET_GPU, StepKind.RESET_ALL, StepKind.RELOAD_DRIVER, StepKind.REBOOT)
)
RESET: Ladder = (_RESET, _REBOOT)
REBOOT: Ladder = (_REBOOT,)


def _restart(service: Service) -> Rung:
    return Rung(StepKind.RESTART_SERVICE, service)


LADDERS: Mapping[str, Ladder] = {
    "driver_unresponsive": REBOOT,  # nothing but a reboot ends calls that hang in the kernel
    "driver_slow": REBOOT,
    "driver_not_loaded": (_RELOAD,),  # a boot loads the same module, or lacks it as before
    "driver_library_mismatch": (_RELOAD, _REBOOT),
    "nvml_unavailable": REBOOT,  # its advice is a reboot once NVML has failed with unknown errors for ten minutes
    "gpu_unresponsive": RESET,
    "gpu_reset_required": RESET,
    "gpu_readings_lost": RESET,
    "gsp_not_answering": RESET,
    "ecc_uncorrectable": RESET,
    "row_remap_pending": RESET,
    "row_remap_overdue": RESET,
    "retired_pages": RESET,
    "gpu_repair_pending": REBOOT,
    "test_hung": REBOOT,
    "nvlink_down": (_RESET_ALL, _REBOOT),  # both ends of a link train again
    "fabric_unhealthy": (_restart(Service.FABRIC_MANAGER), _REBOOT),
    "sxid": REBOOT,
    "soft_lockup": REBOOT,
    "process_hung": REBOOT,
    "adapter_failed": REBOOT,
    "dcgm_unresponsive": (_restart(Service.DCGM),),
    "dcgm_impaired": (_restart(Service.DCGM),),
    "dcgm_disagrees": (_restart(Service.DCGM),),
}
"""By the code of a condition. Those of `BY_ADVICE` are not here."""

BY_ADVICE: Mapping[str, Mapping[Advice, Ladder]] = {
    "xid": {Advice.RESET_GPU: RESET, Advice.REBOOT: REBOOT},
    "gpu_recovery_action": {
        Advice.RESET_GPU: RESET,
        Advice.REBOOT: REBOOT,
        Advice.RESTART_SERVICE: (_restart(Service.IMEX),),  # "recover IMEX domain" alone has this advice
    },
}
"""By code, for conditions that have a table of advice of their own, such as Xids."""

SERVICES: Mapping[str, Ladder] = {
    "nvidia-fabricmanager": (_restart(Service.FABRIC_MANAGER), _REBOOT),
    "nvidia-persistenced": (_restart(Service.PERSISTENCE),),
    "nvidia-dcgm": (_restart(Service.DCGM),),
    "dcgm": (_restart(Service.DCGM),),
    "nvidia-imex": (_restart(Service.IMEX),),
}
"""For `service_down`, by the unit without its suffix. No other service is restarted."""

NOT_REPAIRED: Mapping[str, str] = {
    "mount_missing": "what a mount needs is outside this node",
    "mount_hung": "what a mount needs is outside this node",
}
"""Conditions whose advice is a step, but which need an operator."""

REPAIRED = frozenset({Advice.RESET_GPU, Advice.RESTART_SERVICE, Advice.REBOOT})
"""Advice that is a step. Any other advice needs an operator."""
OF_DOMAIN = frozenset({"fabric_unhealthy"})
"""Findings that concern an NVLink domain as a whole, whose controller is not on this node."""


def ladder(finding: Finding, domain: str = "") -> Ladder:
    """Return the steps for a finding, in order; empty if it needs an operator. `domain`: the node's NVLink domain."""
    if finding.advice not in REPAIRED or (domain and finding.key.code in OF_DOMAIN):
        return ()
    rungs = _of(finding)
    if finding.advice is Advice.REBOOT and RETRIED in finding.evidence:  # milder steps did not help
        return tuple(rung for rung in rungs if rung.kind is StepKind.REBOOT)
    return rungs


def _of(finding: Finding) -> Ladder:
    code = finding.key.code
    if code == "service_down":
        return SERVICES.get(finding.key.subject.part.removesuffix(".service"), ())
    if (by_advice := BY_ADVICE.get(code)) is not None:
        return by_advice.get(finding.advice, ())
    return LADDERS.get(code, ())


def why_none(finding: Finding, domain: str = "") -> str:
    """Return why a finding has no steps, for people."""
    code = finding.key.code
    if finding.advice not in REPAIRED:
        return f"its advice is {finding.advice}, which needs an operator"
    if domain and code in OF_DOMAIN:
        return f"it is of NVLink domain {domain}, which its controller repairs"
    return NOT_REPAIRED.get(code, "no step is known to repair it")


def strength(kind: StepKind) -> int:
    """Return the rank of a step: a stronger one does what the milder ones do."""
    return RANK[kind]
