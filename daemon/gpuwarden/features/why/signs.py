"""Signs: the touches that can have ended a job. One row for each kind, in the order in which they count within one
fault.

Pure. Which Xids mean hardware, and which a program causes, follows from class and action in `health/xid/catalogue.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from gpuwarden.features.why.follows import code_of, id_of, xid_number
from gpuwarden.features.why.model import LASTING, WORKING_FABRIC, Cause, Certainty, End, Epoch, Touch
from gpuwarden.health.xid.catalogue import Xid, XidClass, xid_row
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

WITHIN = 900.0
"""Seconds before its end for which what touched a job can have ended it: NCCL's watchdog ends ranks that wait after 600 s."""
WAITED = 2_700.0
"""Seconds before the end of a job within which a touch that makes ranks wait for ever can have ended it. Ranks give up after 1,800 s with Hugging Face
(`ddp_timeout`), DeepSpeed (`DEEPSPEED_TIMEOUT`) and PyTorch before 2.2; a watchdog that hangs itself in the driver is ended 480 s later
(`TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC`); and what waits first is the next collective, which a long step may come before.
"""
_WAITING = frozenset({"job_hung", "job_stalled"})
"""Findings whose begin is the time from which the job's ranks wait for each other."""
BOOT_TAKES = 1_800.0
"""Seconds added if the end is only known to be before a boot."""
LATE = 10.0
"""Seconds after its end in which its cause may still be reported: by a pass of the collectors, or the kernel's line."""
FIRST_MOMENTS = 30.0
"""Seconds after its begin in which an unknown process may be the previous job's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """A touch that can have ended the job."""

    touch: Touch
    order: int
    """Index of its row: within one fault the lowest is the cause."""
    cause: Cause
    certainty: Certainty
    template: str
    """As `causes.Rule.template`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A kind of sign. `certainty` applies if nothing names a process of the job; it is at most possible for a part that
    the job may not have used. With `own` it is certain if a process of the job is named.
    """

    name: str
    fits: Callable[[Touch, Epoch], bool]
    cause: Cause
    certainty: Certainty
    template: str
    source: str
    own: bool = False
    waits: bool = False
    """Ranks may wait for what this ended, for as long as `WAITED`, or since the job hangs."""


def _row(touch: Touch) -> Xid | None:
    number = xid_number(touch)
    return None if number is None else xid_row(number)


def _xid_fails(touch: Touch, _: Epoch) -> bool:
    row = _row(touch)
    return row is not None and row.klass is XidClass.FAILURE


def _xid_memory(touch: Touch, _: Epoch) -> bool:
    """Return True for an error of the GPU that ended one application and left the GPU working."""
    row = _row(touch)
    restarts = row is not None and row.klass is XidClass.WARNING and row.action == "RESTART_APP"
    return restarts and touch.detail != _IDLE


def _xid_link(touch: Touch, _: Epoch) -> bool:
    row = _row(touch)
    return row is not None and row.klass is not XidClass.FAILURE and row.action.startswith("WORKFLOW_NVLINK")


def _xid_own(touch: Touch, _: Epoch) -> bool:
    row = _row(touch)
    brings = row is not None and row.klass is XidClass.RECORD and row.action == "RESTART_APP"
    return brings or (touch.detail in _OWN and touch.what == "xid")


_IDLE = "8"
"""The driver waited too long for the GPU: for a long kernel of the program as well as for a GPU that stopped."""
_OWN = ("43", "137")
"""The vendor advises to ignore them, but they are errors of users (`health/xid/catalogue.py`, their notes)."""


def _about(kind: str, codes: Sequence[str]) -> Callable[[Touch, Epoch], bool]:
    def fits(touch: Touch, _: Epoch) -> bool:
        code = code_of(touch)
        return touch.what == kind and code.partition(".")[0] in codes and code not in WORKING_FABRIC

    return fits


def _found(*codes: str) -> Callable[[Touch, Epoch], bool]:
    return _about("finding", codes)


def _rising(*codes: str) -> Callable[[Touch, Epoch], bool]:
    return _about("rising", codes)


def _standing(*codes: str) -> Callable[[Touch, Epoch], bool]:
    return _about("standing", codes)


def _repeated(touch: Touch, _: Epoch) -> bool:
    return touch.what == "finding" and code_of(touch).startswith("xid.")


def _xid_idle(touch: Touch, _: Epoch) -> bool:
    return touch.what == "xid" and touch.detail == _IDLE


def _its_process(touch: Touch, epoch: Epoch) -> bool:
    named = touch.detail in (epoch.name, *epoch.also)
    return touch.what == "oom_node" and (named or (touch.pid is not None and touch.pid in epoch.pids))


_GPU = ("gpu_missing", "gpu_unresponsive", "gpu_reset_required", "gpu_recovery_action", "ecc_uncorrectable")
_DRIVER = ("driver_unresponsive", "driver_not_loaded")
_BETWEEN_NODES = ("infiniband_down", "adapter_failed")
_MOUNTS = ("mount_hung", "mount_read_only", "mount_missing")
_FABRIC = ("nvlink_down", "fabric_unhealthy", *_BETWEEN_NODES)
_HOST = (*_MOUNTS, "memory_ecc_uncorrectable", "nvme_failed")
_NO_GPU_WORKS = (*_DRIVER, "driver_library_mismatch")
_GPU_IS_OUT = ("gpu_missing", "gpu_unresponsive", "gpu_reset_required")
_NOT_INITIALISED = ("fabric_unhealthy",)
STANDING = frozenset((*_NO_GPU_WORKS, *_GPU_IS_OUT, *_NOT_INITIALISED))
"""Conditions with which a job fails when it starts."""
_OF_PROCESS = ("xid", "memory_error")
"""Touches that may name a process, of this job or of another one."""
_PERHAPS = ("service_down", "soft_lockup", "process_hung", "disk_full", "memory_low")
C = Certainty
ROWS: tuple[Row, ...] = (
    Row(
        name="xid_failure", fits=_xid_fails, cause=Cause.HARDWARE, certainty=C.LIKELY, waits=True, own=True,
        template="{gpu} failed: {meaning}{then}; run it again on other GPUs", source="NVIDIA Xid catalogue: reset, reboot or inspection",
    ),
    Row(
        name="gpu_failure", fits=_found(*_GPU), cause=Cause.HARDWARE, certainty=C.LIKELY, waits=True,
        template="{gpu} failed: {meaning}{then}; run it again on other GPUs", source="docs/reference/conditions.md; stories B04 to B06",
    ),
    Row(
        name="xid_memory", fits=_xid_memory, cause=Cause.HARDWARE, certainty=C.LIKELY, own=True,
        template="{gpu} had an error that ended{process}: {meaning}; run it again", source="NVIDIA Xid catalogue, 94: story A08",
    ),
    Row(
        name="memory_limit", fits=lambda touch, _: touch.what == "oom_limit", cause=Cause.JOB, certainty=C.CERTAIN,
        template="It used more memory of the host than it may, and the kernel killed{process}; ask for more, or use less",
        source="the kernel's line names the control group of the job; Linux, cgroup-v2.rst, memory.max",
    ),
    Row(
        name="node_memory", fits=_its_process, cause=Cause.HOST, certainty=C.CERTAIN,
        template="The memory of the node was full, and the kernel killed{process}; run it again, or set memory limits for all jobs",
        source="the kernel's line names a process of the job; Linux, mm/oom_kill.c",
    ),
    Row(
        name="shared_memory", fits=lambda touch, _: touch.what == "oom_shared", cause=Cause.HOST, certainty=C.LIKELY,
        template="The memory that it shares with others was full, and the kernel killed{process}; run it again, or set memory limits for all jobs",
        source="the kernel's line names a process of the job, and the limit of a group above it; Kubernetes, node allocatable",
    ),
    Row(
        name="counted_memory", fits=lambda touch, _: touch.what == "oom_count", cause=Cause.JOB, certainty=C.LIKELY,
        template="Processes of it were killed for lack of host memory; ask for more, or use less",
        source="Linux, cgroup-v2.rst, memory.events; the kernel's line, which distinguishes its limit from a full node, was not read",
    ),
    Row(
        name="memory_error", fits=lambda touch, _: touch.what == "memory_error", cause=Cause.HOST, certainty=C.LIKELY, own=True,
        template="The memory of the node lost data, and the kernel ended{process}; run it again on another node",
        source="the kernel's line, which names the process; Linux, mm/memory-failure.c, arch/x86/mm/fault.c",
    ),
    Row(
        name="driver", fits=_found(*_DRIVER), cause=Cause.HOST, certainty=C.LIKELY, waits=True,
        template="{meaning}{then}; run it again on another node", source="docs/reference/conditions.md; Delta study (Xid 119/120)",
    ),
    Row(
        name="xid_link", fits=_xid_link, cause=Cause.FABRIC, certainty=C.LIKELY, waits=True,
        template="{gpu} lost work on its links: {meaning}{then}; run it again on other GPUs", source="NVIDIA Xid catalogue, 74 and 144 to 150; story A07",
    ),
    Row(
        name="fabric", fits=_found(*_FABRIC), cause=Cause.FABRIC, certainty=C.LIKELY, waits=True,
        template="The network between GPUs failed: {meaning}{then}; run it again on another node", source="docs/reference/conditions.md; story B06",
    ),
    Row(
        name="host", fits=_found(*_HOST), cause=Cause.HOST, certainty=C.LIKELY, template="The node failed: {meaning}{then}; run it again on another node",
        source="docs/reference/conditions.md",
    ),
    Row(
        name="repeated_xid", fits=_repeated, cause=Cause.HARDWARE, certainty=C.POSSIBLE,
        template="{gpu} is suspected, since other jobs had the same error there: {meaning}; run it again on other GPUs",
        source="health/xid/rules.py: one place of one GPU, by several jobs",
    ),
    Row(
        name="own_xid", fits=_xid_own, cause=Cause.JOB, certainty=C.LIKELY, own=True,
        template="Its own program caused an error on {gpu}: {meaning}; look for it there, as with compute-sanitizer",
        source="NVIDIA Xid catalogue: restart the application; stories A09, A10",
    ),
    Row(
        name="switch", fits=lambda touch, _: touch.what == "sxid", cause=Cause.FABRIC, certainty=C.POSSIBLE,
        template="A switch between the GPUs reported errors: {meaning}; run it again", source="NVIDIA, SXids; stories A34, A35",
    ),
    Row(
        name="perhaps_fabric", fits=_rising(*_FABRIC), cause=Cause.FABRIC, certainty=C.POSSIBLE,
        template="The network between GPUs was disturbed: {meaning}; run it again", source="seen for less than its time in docs/reference/conditions.md",
    ),
    Row(
        name="perhaps_host", fits=lambda touch, _: _found(*_PERHAPS)(touch, _) or _rising(*_HOST, *_DRIVER)(touch, _), cause=Cause.HOST,
        certainty=C.POSSIBLE, template="The node was disturbed: {meaning}; run it again on another node", source="docs/reference/conditions.md",
    ),
    Row(
        name="xid_idle", fits=_xid_idle, cause=Cause.HARDWARE, certainty=C.POSSIBLE,
        template="{gpu} was disturbed, or a kernel of its program took too long: {meaning}; run it again",
        source="NVIDIA, Xid errors, 8: driver, application, bus or temperature",
    ),
    Row(
        name="standing_driver", fits=_standing(*_NO_GPU_WORKS), cause=Cause.HOST, certainty=C.LIKELY,
        template="No GPU of this node worked when it began: {meaning}; run it again on another node",
        source="engine/override_text.py: no job can use any GPU of the node",
    ),
    Row(
        name="standing_gpu", fits=_standing(*_GPU_IS_OUT), cause=Cause.HARDWARE, certainty=C.POSSIBLE,
        template="{gpu} had failed before it began: {meaning}; run it again on other GPUs",
        source="engine/override_text.py: jobs that are given this GPU fail when they start",
    ),
    Row(
        name="standing_fabric", fits=_standing(*_NOT_INITIALISED), cause=Cause.FABRIC, certainty=C.POSSIBLE,
        template="The network between GPUs did not work when it began: {meaning}; run it again on another node",
        source="NVIDIA, fabric manager: CUDA answers `system not yet initialized`; story B06",
    ),
    Row(
        name="perhaps_gpu", fits=_rising("gpu_missing", "gpu_unresponsive", "gpu_reset_required"), cause=Cause.HARDWARE, certainty=C.POSSIBLE,
        template="{gpu} was disturbed: {meaning}; run it again", source="seen for less than its time in docs/reference/conditions.md",
    ),
)  # fmt: skip


def signs_of(
    epoch: Epoch, end: End, others: Collection[int] = frozenset(), denied: Collection[str] = frozenset()
) -> tuple[Sign, ...]:
    """Return what touched the job and can have ended it, in order of time.

    `others`: processes of other jobs. `denied`: ids of findings that other readings contradict.
    """
    ids = {id_of(touch) for touch in epoch.touches if _counts(touch, epoch, end)} - {""}
    repeated = {id_of(touch) for touch in epoch.touches if _repeated(touch, epoch)}
    signs = (
        sign
        for touch in epoch.touches
        if touch.follows not in ids - {id_of(touch)} and id_of(touch) not in denied and _counts(touch, epoch, end)
        if touch.what != "xid" or id_of(touch) not in repeated
        for sign in _signs(touch, epoch, end, others)
    )
    return tuple(sorted(signs, key=lambda sign: sign.touch.at.boottime))


def _signs(touch: Touch, epoch: Epoch, end: End, others: Collection[int]) -> Iterator[Sign]:
    order, row = _row_of(touch, epoch)
    if row is None or (row.cause is Cause.HARDWARE and not touch.slot):
        return
    certainty = _certainty(row, touch, epoch, others)
    if certainty is Certainty.LIKELY and (_perhaps_after(touch, epoch, end) or _perhaps_unused(touch, end)):
        certainty = Certainty.POSSIBLE
    if certainty is not None:
        certainty = certainty if in_time(touch, end, epoch) or _before_hang(touch, epoch, end) else Certainty.POSSIBLE
        yield Sign(touch=touch, order=order, cause=row.cause, certainty=certainty, template=row.template)


def _row_of(touch: Touch, epoch: Epoch) -> tuple[int, Row | None]:
    return next(((n, row) for n, row in enumerate(ROWS) if row.fits(touch, epoch)), (0, None))


def _counts(touch: Touch, epoch: Epoch, end: End) -> bool:
    """Return True if the touch can have ended the job: it came shortly before the end, or before ranks began to wait."""
    if in_time(touch, end, epoch):
        return True
    row = _row_of(touch, epoch)[1]
    return row is not None and row.waits and (in_time(touch, end, epoch, WAITED) or _before_hang(touch, epoch, end))


def _before_hang(touch: Touch, epoch: Epoch, end: End) -> bool:
    """Return True if the job hung at its end, and the touch came shortly before the hang began."""
    hangs = (hang for hang in epoch.touches if code_of(hang) in _WAITING and in_time(hang, end, epoch))
    return any(in_time(touch, replace(end, at=hang.at), epoch) for hang in hangs)


def _certainty(row: Row, touch: Touch, epoch: Epoch, others: Collection[int]) -> Certainty | None:
    """Return how certain it is that this concerns the job; None if it concerns another job's process. A failing GPU
    concerns all that use it. In the first moments an unknown process may be the previous job's: it blames no hardware.
    """
    if row.own and touch.pid is not None and touch.pid in epoch.pids:
        return Certainty.CERTAIN
    if touch.what not in _OF_PROCESS or touch.pid is None or touch.pid in epoch.pids or _xid_fails(touch, epoch):
        return row.certainty
    if touch.pid in others:
        return None
    if touch.what == "memory_error":  # of a process without a GPU, such as one that loads data, or a service
        return Certainty.POSSIBLE
    if touch.at.boottime - epoch.began.boottime >= FIRST_MOMENTS:
        return row.certainty
    return Certainty.POSSIBLE if row.cause is Cause.JOB else None


def _perhaps_after(touch: Touch, epoch: Epoch, end: End) -> bool:
    """Return True if the job may have been over by then: its end was not observed, and no part of it is named."""
    named = touch.what not in ("xid", "sxid", "finding", "rising", "memory_error")
    return end.known_from == "restart" and not named and touch.at.boottime > _last_known(epoch).boottime


def _last_known(epoch: Epoch) -> Stamp:
    return epoch.used_at or epoch.began


def _perhaps_unused(touch: Touch, end: End) -> bool:
    """Return True for what the job may not have used: a mount, since no source lists those of a job; the network
    between nodes, unless it has several (one node may still read data over it). If it may have ended well, also disks
    and memory of the host.
    """
    code = code_of(touch).partition(".")[0]
    if end.may_be_well and (code in (*_HOST, *_BETWEEN_NODES) or touch.what == "memory_error"):
        return True
    return code in _MOUNTS or (code in _BETWEEN_NODES and (end.nodes is None or end.nodes == 1))


def in_time(touch: Touch, end: End, epoch: Epoch, within: float = WITHIN) -> bool:
    """Return True if the touch was in force at the end, or so shortly before that the job may have waited for it. An end
    that was not observed may have come at any time since the job was last known to run: a node may be off for days
    after a fault.
    """
    if end.known_from in ("boot", "restart") and touch.at.boottime > _last_known(epoch).boottime:
        return end.known_from == "boot" or touch.at.boottime <= end.at.boottime + LATE
    if end.known_from == "boot":
        ago = end.at.wall - (touch.until or touch.at).wall
        return (touch.what in LASTING and touch.until is None) or ago <= within + BOOT_TAKES
    if touch.at.boottime > end.at.boottime + LATE:
        return False
    if touch.what in LASTING:
        return touch.until is None or touch.until.boottime >= end.at.boottime - within
    return (touch.until or touch.at).boottime >= end.at.boottime - within
