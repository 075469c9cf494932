"""Why a job ended: one statement for each rule, and hardware is never accused without a sign that names the job's own GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.features.why.causes import Around, answer
from gpuwarden.features.why.follows import with_follows
from gpuwarden.features.why.model import Answer, Cause, Certainty, End, Epoch, Touch
from gpuwarden.features.why.sentences import Board
from gpuwarden.health.conditions import CONDITIONS
from gpuwarden.health.xid.catalogue import XIDS
from gpuwarden_collectors.facts import Stamp

GPU, OTHER_GPU = "0000:10:00.0", "0000:11:00.0"
OWN, OTHERS, UNKNOWN = 11, 99, 55
LENGTH = 7_200.0
AROUND = Around(boards={GPU: Board(0, "1650"), OTHER_GPU: Board(1, "1651")}, pids={OTHERS})
H, J, L, P, Y = Cause.HARDWARE, Cause.JOB, Certainty.LIKELY, Certainty.POSSIBLE, Certainty.CERTAIN


def at(second: float) -> Stamp:
    """An instant of the job; negative: before its end."""
    second = second if second >= 0 else LENGTH + second
    return Stamp(1_000.0 + second, 1_800_000_000.0 + second)


def xid(number: int, second: float = -5, pid: int | None = None, slot: str = GPU) -> Touch:
    return Touch(what="xid", detail=str(number), at=at(second), slot=slot, pid=pid)


def finding(key: str, second: float = -60, until: float | None = None, kind: str = "finding") -> Touch:
    slot = key.partition("@")[2].split("/")[1] if "@gpu/" in key or "@link/" in key else ""
    return Touch(what=kind, detail=key, at=at(second), until=None if until is None else at(until), slot=slot)


def touch(kind: str, detail: str = "", second: float = -5, pid: int | None = None) -> Touch:
    return Touch(what=kind, detail=detail, at=at(second), pid=pid)


@dataclass(frozen=True)
class Ends:
    """How a job of the table ended: fields of `End`."""

    state: str = ""
    exit_code: int | None = None
    signal: int | None = None
    by: str = ""
    known_from: str = "epilog"
    nodes: int | None = None
    failed_node: str = ""
    failed_here: bool = False
    step_failed: bool = False


FAILED = Ends("FAILED", 1)
WELL = Ends("COMPLETED", 0)
WENT_ON = Ends("COMPLETED", 0, step_failed=True)
"""`srun python train.py` failed, and the script's last command did not."""
TIMEOUT = Ends("TIMEOUT", 0, 15)


def why(ends: Ends, *touches: Touch, uid: int = 1001) -> Answer:
    slots = (GPU, OTHER_GPU)
    epoch = Epoch(
        name="slurm/7", began=at(0), boot_id="boot", uid=uid, user="ada", slots=slots, pids=(OWN,), touches=touches
    )
    epoch = replace(epoch, touches=with_follows(touches, {}))
    end = End(
        at=at(LENGTH), known_from=ends.known_from, state=ends.state, exit_code=ends.exit_code, signal=ends.signal, by=ends.by,
        nodes=ends.nodes, failed_node=ends.failed_node, failed_here=ends.failed_here, step_failed=ends.step_failed,
    )  # fmt: skip
    return answer(epoch, end, AROUND)


GONE = f"gpu_missing@gpu/{GPU}"
SILENT = replace(finding(f"gpu_unresponsive@gpu/{GPU}", -1), follows=GONE)
CALLED_OFF = (
    replace(touch("notice", "aws/stop", 90), until=at(600)),
    touch("signalled", "sent", 91),
    touch("saved", "saved", 99),
)
FOR_GPU = replace(touch("signalled", "sent", -50), slot=GPU)
REMAP = finding(f"row_remap_failed@gpu/{GPU}")
TABLE: dict[str, tuple[Ends, tuple[Touch, ...], Cause, Certainty, str]] = {
    # --- it ended well
    "exit code 0": (WELL, (), Cause.NONE, Y, ""),
    "well, beside a failing GPU": (WELL, (xid(79),), Cause.NONE, Y, ""),
    "well, but for a step that nothing explains": (WENT_ON, (finding(f"gpu_unresponsive@gpu/{GPU}", -9, kind="rising"),), Cause.NONE, Y, ""),
    "a container's exit code 0": (Ends(exit_code=0, known_from="cgroup"), (), Cause.NONE, Y, ""),
    # --- hardware
    "GPU lost": (FAILED, (xid(79),), H, L, "xid.79"),
    "GPU lost under its process": (FAILED, (xid(79, pid=OWN),), H, Y, "xid.79"),
    "GPU lost under its step, and its script went on": (WENT_ON, (xid(79, -600),), H, L, "xid.79"),
    "uncorrectable ECC": (FAILED, (xid(48), xid(63), xid(45, pid=OWN)), H, L, "xid.48"),
    "uncontained ECC": (FAILED, (xid(95),), H, L, "xid.95"),
    "GSP silent": (FAILED, (xid(119),), H, L, "xid.119"),
    "contained ECC of its process": (FAILED, (xid(94, pid=OWN),), H, Y, "xid.94"),
    "contained ECC of another job's process": (FAILED, (xid(94, pid=OTHERS),), J, L, ""),
    "GPU gone without a line": (FAILED, (finding(GONE, -20),), H, L, "gpu_missing"),
    "GPU gone, and its ranks met that": (FAILED, (xid(79, -20), xid(31, -18, OWN), xid(43, -17, OWN)), H, L, "xid.79"),
    "GPU gone an hour ago, still in force": (FAILED, (finding(GONE, -3600),), H, L, "gpu_missing"),
    "GPU silent, and found to be gone after its end": (FAILED, (SILENT, finding(GONE, LENGTH + 14)), H, L, "gpu_unresponsive"),
    "GPU gone and back an hour ago": (FAILED, (finding(GONE, -3600, until=-3500),), J, L, ""),
    "hang after a lost GPU, until the time limit": (TIMEOUT, (finding(GONE, -3600),), H, L, "gpu_missing"),
    "hang after a lost GPU, until an admin's end": (Ends("CANCELLED", 0, 15, "root"), (finding(GONE, -600),), H, L, "gpu_missing"),
    "the same error of other jobs at that place": (FAILED, (xid(31, -9), finding(f"xid.31@gpu/{GPU}", -8)), H, P, "xid.31"),
    "GPU slow for a moment": (FAILED, (finding(f"gpu_unresponsive@gpu/{GPU}", -9, kind="rising"),), H, P, "gpu_unresponsive"),
    "GPU failed, and ranks gave up after half an hour": (FAILED, (xid(119, -1_830),), H, P, "xid.119"),
    "GPU failed, ranks gave up, and their watchdog hung": (Ends("FAILED", 0, 6), (xid(119, -2_400, OWN),), H, P, "xid.119"),
    "GPU silent and back, and ranks gave up after half an hour": (FAILED, (finding(f"gpu_unresponsive@gpu/{GPU}", -1_900, until=-1_850),), H, P, "gpu_unresponsive"),
    "GPU failed, and it hung until its time limit": (TIMEOUT, (xid(119, -5_000), finding("job_hung@job/7", -4_950)), H, L, "xid.119"),
    "GPU failed, and it hung until somebody saw it": (Ends("CANCELLED", 0, 15, "ada"), (xid(119, -5_000, OWN), finding("job_hung@job/7", -4_950)), H, Y, "xid.119"),
    "GPU that the driver waited for too long": (FAILED, (xid(8, pid=OWN),), H, P, "xid.8"),
    # --- the memory of the host
    "memory of the node lost data of its process": (Ends("FAILED", 0, 7), (touch("memory_error", pid=OWN),), Cause.HOST, Y, "memory_error"),
    "memory of the node lost data of a process without a GPU": (FAILED, (touch("memory_error", pid=UNKNOWN),), Cause.HOST, P, "memory_error"),
    "memory of the node lost data of another job's process": (Ends("FAILED", 0, 7), (touch("memory_error", pid=OTHERS),), J, L, "FAILED"),
    "memory of the node lost data, and no line names a process": (Ends("FAILED", 0, 7), (touch("memory_error"),), Cause.HOST, L, "memory_error"),
    "memory of the node lost data of a process that is unknown, on a node that knows no more": (Ends(), (touch("memory_error"),), Cause.HOST, P, "memory_error"),
    # --- not hardware
    "GPU that the driver waited for too long, after a bad pointer": (FAILED, (xid(31, -9, OWN), xid(8, pid=OWN)), J, Y, "xid.31"),
    "GPU failed half an hour before its own error": (FAILED, (xid(95, -1_800), xid(31, pid=OWN)), J, Y, "xid.31"),
    "contained ECC half an hour before": (FAILED, (xid(94, -1_800, OWN),), J, L, ""),
    "GPU failed an hour before, and it hung for a while then": (FAILED, (xid(119, -5_000), finding("job_hung@job/7", -4_950, until=-3_000)), J, L, ""),
    "cancelled half an hour after its GPU failed": (Ends("CANCELLED", 0, 15, "ada"), (xid(119, -1_800),), Cause.SCHEDULER, Y, "CANCELLED"),
    "row remapped, it went on": (FAILED, (xid(63, -300),), J, L, ""),
    "high rate of corrected errors": (FAILED, (xid(92, -300), finding(f"ecc_correctable_rate@gpu/{GPU}")), J, L, ""),
    "hot GPU": (FAILED, (finding(f"thermal_slowdown@gpu/{GPU}"),), J, L, ""),
    "GPU lost hours before, reset, and it went on": (FAILED, (xid(95, 600),), J, L, ""),
    "GPU lost after its end": (Ends("FAILED", 1), (xid(79, LENGTH + 30),), J, L, ""),
    "time limit, with an error long before": (TIMEOUT, (xid(94, 60, OWN),), Cause.SCHEDULER, Y, "TIMEOUT"),
    # --- its own doing
    "bad pointer": (FAILED, (xid(31, pid=OWN),), J, Y, "xid.31"),
    "bad pointer, the line names nobody": (FAILED, (xid(13),), J, L, "xid.13"),
    "bad pointer, and the driver's clean-up": (FAILED, (xid(31, -9, OWN), xid(43, -8, OWN), xid(45, -7, OWN)), J, Y, "xid.31"),
    "bad pointer long before its end": (FAILED, (xid(31, 3, UNKNOWN),), J, L, ""),
    "bad pointer of another job": (FAILED, (xid(31, -3, OTHERS),), J, L, ""),
    "channel reset": (FAILED, (xid(43, pid=OWN),), J, Y, "xid.43"),
    "clean-up of killed processes": (Ends("FAILED", 0, 9), (xid(45, pid=OWN),), Cause.NOT_SEEN, P, "FAILED"),
    "own memory limit": (Ends("OUT_OF_MEMORY", 0, 9), (touch("oom_limit", "slurm/7", pid=12),), J, Y, "oom_limit"),
    "own memory limit, in the second of its end": (Ends("OUT_OF_MEMORY", 0, 9), (touch("oom_limit", "slurm/7", LENGTH + 0.9),), J, Y, "oom_limit"),
    "own memory limit, by Slurm's word": (Ends("OUT_OF_MEMORY", 0, 125), (), J, Y, "OUT_OF_MEMORY"),
    "own memory limit of a container": (Ends(exit_code=137, known_from="cgroup"), (touch("oom_limit", "slurm/7"),), J, Y, "oom_limit"),
    "exit code": (FAILED, (), J, L, "FAILED"),
    "segmentation fault": (Ends("FAILED", 0, 11), (), J, L, "FAILED"),
    "abort, by a shell's exit code": (Ends("FAILED", 134), (), J, L, "FAILED"),
    # --- host and fabric
    "memory of the node, its process": (Ends("FAILED", 0, 9), (touch("oom_node", "slurm/7"),), Cause.HOST, Y, "oom_node"),
    "memory of the node, by Slurm's word": (
        Ends("OUT_OF_MEMORY", 0, 9), (touch("oom_node", "slurm/7", pid=OWN),), Cause.HOST, Y, "oom_node",
    ),
    "memory of the node, another's process, and its own limit": (
        Ends("OUT_OF_MEMORY", 0, 9), (touch("oom_node", "slurm/8"), touch("oom_limit", "slurm/7", pid=OWN)), J, Y, "oom_limit",
    ),
    "a limit that it shares": (Ends("OUT_OF_MEMORY", 0, 9), (touch("oom_shared", "slurm/7", pid=OWN),), Cause.HOST, L, "oom_shared"),
    "memory of the node, another's process": (FAILED, (touch("oom_node", "slurm/8"),), J, L, ""),
    "file system hung": (FAILED, (finding("mount_hung@mount//data"),), Cause.HOST, P, "mount_hung"),
    "file system read-only": (FAILED, (finding("mount_read_only@mount//data"),), Cause.HOST, P, "mount_read_only"),
    "file system not mounted": (FAILED, (finding("mount_missing@mount//data"),), Cause.HOST, P, "mount_missing"),
    "file system hung, and cancelled": (Ends("CANCELLED", 0, 15, "root"), (finding("mount_hung@mount//data"),), Cause.SCHEDULER, Y, "CANCELLED"),
    "bad pointer beside a file system that hangs": (FAILED, (finding("mount_hung@mount//data"), xid(13)), J, L, "xid.13"),
    "driver hung": (FAILED, (finding("driver_unresponsive@node"),), Cause.HOST, L, "driver_unresponsive"),
    "GPU that left the fabric": (FAILED, (finding(f"fabric_unhealthy@gpu/{GPU}"),), Cause.FABRIC, L, "fabric_unhealthy"),
    "GPU of limited capacity in the fabric": (FAILED, (finding(f"fabric_unhealthy.limited_capacity@gpu/{GPU}"),), J, L, ""),
    "fabric without its global manager": (FAILED, (finding(f"fabric_unhealthy.no_manager@gpu/{GPU}"),), J, L, ""),
    "port down": (FAILED, (finding("infiniband_down@port/mlx5_0/1"),), Cause.FABRIC, P, "infiniband_down"),
    "port down, a job of one node": (Ends("FAILED", 1, nodes=1), (finding("infiniband_down@port/mlx5_0/1"),), Cause.FABRIC, P, "infiniband_down"),
    "port down, a job of two nodes": (Ends("FAILED", 1, nodes=2), (finding("infiniband_down@port/mlx5_0/1"),), Cause.FABRIC, L, "infiniband_down"),
    "port down and back, and ranks of two nodes gave up after half an hour": (
        Ends("FAILED", 1, nodes=2), (finding("infiniband_down@port/mlx5_0/1", -1_900, until=-1_850),), Cause.FABRIC, P, "infiniband_down",
    ),
    "NVLink error, and ranks gave up after half an hour": (FAILED, (xid(74, -1_830),), Cause.FABRIC, P, "xid.74"),
    "time limit of one node, port down": (
        Ends("TIMEOUT", 0, 15, nodes=1), (finding("infiniband_down@port/mlx5_0/1"),), Cause.SCHEDULER, Y, "TIMEOUT",
    ),
    "time limit of two nodes, port down": (
        Ends("TIMEOUT", 0, 15, nodes=2), (finding("infiniband_down@port/mlx5_0/1"),), Cause.FABRIC, L, "infiniband_down",
    ),
    "link down": (FAILED, (finding(f"nvlink_down@link/{GPU}/3"),), Cause.FABRIC, L, "nvlink_down"),
    "NVLink error": (FAILED, (xid(74), xid(45, -4, OWN)), Cause.FABRIC, L, "xid.74"),
    "switch error": (FAILED, (touch("sxid", "12028@switch/0000:05:00.0"),), Cause.FABRIC, P, "sxid.12028"),
    "port down for a moment": (FAILED, (finding("infiniband_down@port/mlx5_0/1", -9, kind="rising"),), Cause.FABRIC, P, "infiniband_down"),
    "certain before possible": (FAILED, (finding("disk_full@mount//", -800), xid(31, -2, OWN)), J, Y, "xid.31"),
    "node rebooted": (Ends(known_from="boot"), (touch("boot"),), Cause.HOST, Y, ""),
    "node rebooted since its GPU was lost": (Ends(known_from="boot"), (xid(79, -900),), H, L, "xid.79"),
    "slurmd down": (Ends("NODE_FAIL"), (finding("service_down@service/slurmd.service"),), Cause.HOST, P, "service_down"),
    # --- scheduler, notice, another node
    "time limit": (TIMEOUT, (), Cause.SCHEDULER, Y, "TIMEOUT"),
    "cancelled by its owner": (Ends("CANCELLED", 0, 15, "ada"), (), Cause.SCHEDULER, Y, "CANCELLED"),
    "cancelled by root": (Ends("CANCELLED", 0, 15, "root"), (), Cause.SCHEDULER, Y, "CANCELLED"),
    "cancelled after a hang": (Ends("CANCELLED", 0, 15, "root"), (finding("job_hung@job/7"),), Cause.SCHEDULER, Y, "CANCELLED"),
    "preempted": (Ends("PREEMPTED", 0, 15), (), Cause.SCHEDULER, Y, "PREEMPTED"),
    "told and saved": (WELL, (touch("notice", "aws/stop", -90), touch("signalled", "sent", -80), touch("saved", "saved", -9)), Cause.NOTICE, Y, "notice"),
    "told, nothing saved": (FAILED, (touch("notice", "aws/stop", -90), touch("signalled", "sent", -80)), Cause.NOTICE, Y, "notice"),
    "announced, not told": (Ends(known_from="boot"), (touch("notice", "aws/stop", -90),), Cause.NOTICE, L, "notice"),
    "announced, and called off": (FAILED, (replace(touch("notice", "aws/stop", -90), until=at(-60)),), J, L, ""),
    "announced for next week, its own exit code": (FAILED, (touch("announced", "aws/maintenance", 90),), J, L, ""),
    "announced for next week, and a boot": (Ends(known_from="boot"), (touch("announced", "aws/maintenance", 90),), Cause.NOTICE, L, "announced"),
    "announced for next week, and told at last": (FAILED, (touch("announced", "aws/maintenance", 90), touch("signalled", "sent", -80)), Cause.NOTICE, Y, "signalled"),
    "told, called off, its own error hours later": (FAILED, (*CALLED_OFF, xid(31, pid=OWN)), J, Y, "xid.31"),
    "told, called off, it ended well hours later": (WELL, CALLED_OFF, Cause.NONE, Y, ""),
    "told, called off, put back hours later": (Ends("REQUEUED"), CALLED_OFF, Cause.SCHEDULER, L, "REQUEUED"),
    "told, called off, it ends all the same": (FAILED, (replace(touch("notice", "aws/stop", -90), until=at(-60)), touch("signalled", "sent", -80)), Cause.NOTICE, Y, "notice"),
    "told long before, still announced": (FAILED, (*CALLED_OFF[1:], replace(CALLED_OFF[0], until=None)), Cause.NOTICE, Y, "notice"),
    "told since its GPU fails": (FAILED, (REMAP, FOR_GPU), H, L, "row_remap_failed"),
    "told since its GPU fails, by nothing that is known": (FAILED, (FOR_GPU,), H, L, "signalled"),
    "told since its GPU fails, and put back": (Ends("REQUEUED"), (REMAP, FOR_GPU, touch("requeued")), H, L, "row_remap_failed"),
    "deaf, and put back since its GPU fails": (Ends("REQUEUED"), (REMAP, replace(FOR_GPU, detail="unsent"), touch("requeued")), H, L, "row_remap_failed"),
    "told since its GPU fails, and it ended well": (WELL, (REMAP, FOR_GPU, touch("saved", "saved")), Cause.NONE, Y, ""),
    "told since a link of its GPU fails": (FAILED, (finding(f"nvlink_down@link/{GPU}/3"), FOR_GPU), Cause.FABRIC, L, "nvlink_down"),
    "told since its GPU fails, and its time limit": (TIMEOUT, (REMAP, FOR_GPU), Cause.SCHEDULER, Y, "TIMEOUT"),
    "told since its GPU fails, and its own error": (FAILED, (REMAP, FOR_GPU, xid(31, pid=OWN)), J, Y, "xid.31"),
    "deaf, while its GPU fails": (FAILED, (REMAP, replace(FOR_GPU, detail="unsent")), J, L, ""),
    "told for a notice that was called off, then since its GPU fails": (FAILED, (*CALLED_OFF, REMAP, FOR_GPU), H, L, "row_remap_failed"),
    "told since its GPU failed, an hour before its own error": (FAILED, (replace(FOR_GPU, at=at(-3600)), xid(31, pid=OWN)), J, Y, "xid.31"),
    "told since its GPU fails, while the machine ends": (FAILED, (touch("notice", "aws/stop", -90), REMAP, FOR_GPU), Cause.NOTICE, Y, "notice"),
    "another node": (Ends("NODE_FAIL"), (), Cause.OTHER_NODE, L, "NODE_FAIL"),
    "another node, which is named": (Ends("NODE_FAIL", nodes=2, failed_node="n7"), (), Cause.OTHER_NODE, L, "NODE_FAIL"),
    "this node, which is named": (Ends("NODE_FAIL", nodes=2, failed_node="n1", failed_here=True), (), Cause.HOST, L, "NODE_FAIL"),
    "this node, its only one": (Ends("NODE_FAIL", nodes=1), (), Cause.HOST, L, "NODE_FAIL"),
    "driver not loaded when it began": (FAILED, (touch("standing", "driver_not_loaded@node", -60),), Cause.HOST, L, "driver_not_loaded"),
    "libraries of the driver replaced before it began": (
        FAILED, (touch("standing", "driver_library_mismatch@node", -60),), Cause.HOST, L, "driver_library_mismatch",
    ),
    "fabric not ready when it began": (
        FAILED, (finding(f"fabric_unhealthy@gpu/{GPU}", -60, kind="standing"),), Cause.FABRIC, P, "fabric_unhealthy",
    ),
    "a GPU silent when it began, and its own bad pointer": (
        FAILED, (finding(f"gpu_unresponsive@gpu/{OTHER_GPU}", -60, kind="standing"), xid(31, pid=OWN)), J, Y, "xid.31",
    ),
    "put back, as after a lost node": (Ends("REQUEUED"), (), Cause.SCHEDULER, L, "REQUEUED"),
    "put back and held": (Ends("REQUEUE_HOLD"), (), Cause.SCHEDULER, Y, "REQUEUE_HOLD"),
    "put back and held since its GPU was lost": (Ends("REQUEUE_HOLD"), (finding(GONE),), H, L, "gpu_missing"),
    "put back since its GPU was lost": (Ends("REQUEUED"), (finding(GONE),), H, L, "gpu_missing"),
    "refused by the prolog, and put back": (Ends("REQUEUED", signal=54), (), Cause.SCHEDULER, Y, "REQUEUED"),
    "refused by the prolog, and cancelled": (Ends("CANCELLED", signal=54, by="0"), (), Cause.SCHEDULER, Y, "CANCELLED"),
    "refused by the prolog of another node": (Ends(signal=54, nodes=2), (), Cause.SCHEDULER, Y, ""),
    "put back for its exit code": (Ends("REQUEUED", 3), (), J, L, "REQUEUED"),
    "put back and held for its exit code": (Ends("REQUEUE_HOLD", 3), (), J, L, "REQUEUE_HOLD"),
    "put back for its exit code, after its own bad pointer": (Ends("REQUEUED", 1), (xid(31, pid=OWN),), J, Y, "xid.31"),
    "put back for its exit code, after its GPU was lost": (Ends("REQUEUED", 1), (finding(GONE),), H, L, "gpu_missing"),
    # --- another node may be the cause
    "aborted, one of two nodes": (Ends("FAILED", 134, nodes=2), (), Cause.NOT_SEEN, P, "FAILED"),
    "ended by srun, one of two nodes": (Ends(exit_code=143, nodes=2), (), Cause.NOT_SEEN, P, ""),
    "lost its other node, which no signal ended here": (Ends(signal=1, nodes=2), (), Cause.NOT_SEEN, P, ""),
    "exit code 1, one of two nodes": (Ends("FAILED", 1, nodes=2), (), J, P, "FAILED"),
    "a bad pointer, one of two nodes": (Ends("FAILED", 139, nodes=2), (), J, L, "FAILED"),
    "aborted, its only node": (Ends("FAILED", 134, nodes=1), (), J, L, "FAILED"),
    "aborted after its GPU was lost, one of two nodes": (Ends("FAILED", 134, nodes=2), (xid(79, -600),), H, L, "xid.79"),
    # --- a node that does not know how it ended, as the second of two
    "perhaps well, while a port was down": (Ends(nodes=2), (finding("infiniband_down@port/mlx5_0/1"),), Cause.FABRIC, P, "infiniband_down"),
    "perhaps well, while a disk failed": (Ends(nodes=2), (finding("nvme_failed@disk/nvme0"),), Cause.HOST, P, "nvme_failed"),
    "perhaps well, though its GPU was lost": (Ends(nodes=2), (finding(GONE),), H, L, "gpu_missing"),
    "its output could not be opened": (Ends("FAILED", signal=53), (), J, L, "FAILED"),
    # --- nothing seen
    "killed by whom": (Ends("FAILED", 0, 9), (), Cause.NOT_SEEN, P, "FAILED"),
    "killed, by a container's exit code": (Ends(exit_code=137, known_from="cgroup"), (), Cause.NOT_SEEN, P, ""),
    "gone": (Ends(known_from="processes"), (), Cause.NOT_SEEN, P, ""),
    "drained": (FAILED, (touch("excluded", "gpuwarden: failure"),), J, L, ""),
    "drained by others": (FAILED, (touch("excluded_by_others", "slurm"),), J, L, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_the_cause_is_named(name: str) -> None:
    ends, touches, cause, certainty, code = TABLE[name]
    answer = why(ends, *touches)
    assert (answer.cause, answer.certainty) == (cause, certainty), answer.sentence
    assert answer.code == (code or (ends.state if ends.state not in ("", "COMPLETED") else ""))
    assert answer.sentence.endswith(".")
    assert len(answer.sentence) <= 300


def test_the_sentence_names_the_board_and_what_to_do() -> None:
    lost = why(TIMEOUT, xid(79, -600))
    assert lost.sentence == (
        "GPU 0 (serial 1650) failed: GPU has fallen off the bus (Xid 79), and in the end its time limit ended it; run it again on other GPUs."
    )
    assert (lost.slot, lost.serial) == (GPU, "1650")
    assert why(FAILED, xid(31, pid=OWN)).sentence == (
        "Its own program caused an error on GPU 0 (serial 1650): MMU page fault (Xid 31); look for it there, as with compute-sanitizer."
    )
    assert why(Ends("CANCELLED", by="root"), finding("job_hung@job/7")).sentence == (
        "It was cancelled by root, after its ranks had waited for each other."
    )
    assert why(Ends("CANCELLED", by="1001")).sentence == "It was cancelled by its owner."
    assert why(Ends("CANCELLED", by="0")).sentence == "It was cancelled by root."
    assert why(Ends("CANCELLED", by="1002")).sentence == "It was cancelled by uid 1002."
    assert why(Ends("CANCELLED")).sentence == "It was cancelled."
    assert "as ranks are when another rank fails" in why(Ends(signal=1, nodes=2)).sentence
    assert why(Ends("FAILED", 134, nodes=8)).sentence == (
        "It was ended by SIGABRT, as ranks are when another rank fails, possibly on another node; read its own output, and ask the other nodes."
    )
    assert why(Ends(nodes=2), finding("infiniband_down@port/mlx5_0/1")).sentence == (
        "Unless it ended well, which is unknown on this node: The network between GPUs failed: "
        "An InfiniBand or RoCE port is down (infiniband_down): mlx5_0/1; run it again on another node."
    )
    assert why(Ends("FAILED", signal=53)).sentence == (
        "Slurm could not open its output or input file, and did not start it; look whether the folders of --output and --error are there, "
        "and its user may write to them."
    )
    assert why(Ends("REQUEUE_HOLD")).sentence == (
        "It was put back into the queue and is held there; it runs again once it is released (scontrol release)."
    )
    assert why(Ends("CANCELLED", signal=54, by="0")).sentence == (
        "It was not started: the prolog failed on one of its nodes, and in the end it was cancelled; "
        "gpuwarden's refuses a node or GPU that has failed."
    )
    assert why(Ends("REQUEUED", 3)).sentence == (
        "It ended with exit code 3, for which Slurm put it back into the queue (RequeueExit), and nothing that this node saw explains it; "
        "read its own output."
    )
    assert why(Ends(known_from="cgroup")).sentence == "Nothing that this node saw ended it; read its own output."


def test_braces_in_what_others_name_are_only_text() -> None:
    assert "{gpu} {0}" in why(FAILED, finding("mount_hung@mount//{gpu} {0}")).sentence
    assert "{by}" in why(Ends("CANCELLED", by="{by}")).sentence


# --- any touches

TIMES = st.one_of(st.integers(0, int(LENGTH)), st.integers(-120, -1), st.integers(int(LENGTH), int(LENGTH) + 60)).map(
    float
)
ANY = st.one_of(
    st.builds(xid, st.sampled_from(sorted(XIDS)), TIMES, st.sampled_from([None, OWN, OTHERS, UNKNOWN]), st.sampled_from([GPU, OTHER_GPU])),
    st.builds(
        lambda code, of, second, kind: finding(f"{code}@{of}", second, kind=kind), st.sampled_from(sorted(CONDITIONS)),
        st.sampled_from([f"gpu/{GPU}", "node", f"link/{OTHER_GPU}/1", "port/mlx5_0/1", "mount//x"]), TIMES, st.sampled_from(["finding", "rising"]),
    ),
    st.builds(touch, st.sampled_from(["oom_limit", "oom_node", "notice", "signalled", "saved", "requeued", "excluded", "excluded_by_others", "boot", "?"]),
              st.sampled_from(["", "slurm/7", "slurm/8", "sent", "saved", "{x}"]), TIMES, st.sampled_from([None, OWN, OTHERS])),
)  # fmt: skip
ENDS = st.builds(
    Ends, st.sampled_from(["", "COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "PREEMPTED", "NODE_FAIL", "OUT_OF_MEMORY", "NEW"]),
    st.sampled_from([None, 0, 1, 137, 255, -1, 1 << 40]), st.sampled_from([None, 0, 9, 11, 99]), st.sampled_from(["", "root", "ada", "1001"]),
    st.sampled_from(["epilog", "cgroup", "boot", "restart", "processes"]),
)  # fmt: skip


@settings(deadline=None, max_examples=400)
@given(ends=ENDS, touches=st.lists(ANY, max_size=12))
def test_hardware_is_only_accused_by_what_names_a_gpu_of_the_job_in_its_time(ends: Ends, touches: list[Touch]) -> None:
    answer = why(ends, *touches)
    assert 0 < len(answer.sentence) <= 300
    assert answer.sentence.isprintable()
    if answer.cause is not Cause.HARDWARE:
        return
    accusing = [touch for touch in touches if touch.slot == answer.slot and touch.what in ("xid", "finding", "rising")]
    assert answer.slot
    assert any(touch.at <= at(LENGTH + 10) or ends.known_from == "boot" for touch in accusing)
    assert any(
        touch.what != "xid" or XIDS[int(touch.detail)].klass != "record" or answer.certainty is P for touch in accusing
    )


@settings(deadline=None, max_examples=200)
@given(ends=ENDS, touches=st.lists(ANY, max_size=8))
def test_a_program_s_own_errors_and_warnings_alone_accuse_no_hardware(ends: Ends, touches: list[Touch]) -> None:
    mild = [
        touch
        for touch in touches
        if touch.what == "xid" and (XIDS[int(touch.detail)].klass == "record" or int(touch.detail) in (63, 92))
    ]
    assert why(ends, *mild).cause is not Cause.HARDWARE


@pytest.mark.parametrize(
    ("second", "pid", "certainty"), [(-600, None, P), (-600, OWN, Y), (-3700, None, None), (-300, None, P)]
)
def test_what_came_when_the_job_may_have_been_over_is_only_possible(
    second: float, pid: int | None, certainty: Certainty | None
) -> None:
    """The daemon was away when the job ended, which it knows to have run until an hour before it was back."""
    epoch = Epoch(
        name="slurm/7", began=at(0), boot_id="boot", slots=(GPU,), pids=(OWN,), touches=(xid(119, second, pid),), used_at=at(-3600)
    )  # fmt: skip
    gone = answer(epoch, End(at=at(LENGTH), known_from="restart"), AROUND)
    seen = answer(epoch, End(at=at(LENGTH), known_from="cgroup"), AROUND)
    if certainty is None:
        assert (gone.cause, seen.cause) == (Cause.NOT_SEEN, Cause.NOT_SEEN), "the job outlived it"
    else:
        assert (gone.cause, gone.certainty) == (H, certainty)
        assert seen.certainty is (Y if pid == OWN else L)


def test_what_came_while_the_daemon_was_away_for_hours_is_possible_and_certain_of_its_own_process() -> None:
    for pid, certainty in ((None, P), (OWN, Y)):
        epoch = Epoch(
            name="container/7", began=at(0), boot_id="boot", slots=(GPU,), pids=(OWN,), touches=(xid(119, 1_900, pid),), used_at=at(1_800)
        )  # fmt: skip
        gone = answer(epoch, End(at=at(LENGTH), known_from="restart"), AROUND)
        assert (gone.cause, gone.certainty, gone.code) == (H, certainty, "xid.119")


def test_what_was_in_force_while_the_job_was_known_to_run_stays_likely_after_a_restart() -> None:
    epoch = Epoch(
        name="slurm/7", began=at(0), boot_id="boot", slots=(GPU,), touches=(finding(GONE, -3700),), used_at=at(-3600)
    )
    assert answer(epoch, End(at=at(LENGTH), known_from="restart"), AROUND).certainty is L
