"""Catalogue of Xids: meaning, class, recommended action and source of each.

The vendor's catalogue gives every number a bucket for the immediate action. It does not say whether a node may continue
to take work. The class decides that, by three rules. An error that an application can cause, or that the driver
repaired, is recorded and leaves the GPU healthy; it becomes a warning when it recurs. An error that degrades the GPU
without stopping work is a warning. An error that leaves the GPU unable to work until it is reset, rebooted or replaced
is a failure. Where a detail decides (a sub-code, a repeat, the action that the driver requests in Xid 154 or as its
recovery action), the row holds the class that applies without the detail and `repeated` the class of a recurring error.
The note names what else the detail changes. `rules.py` evaluates the details.

Fleets disagree about many numbers. `_FLEETS` lists their known practice, which is shown with the row. Two more fleets
have a rule for all numbers: Azure's healthagent reports an error for every number that it does not warn about; NVIDIA's
NVSentinel treats as fatal every number whose vendor action is more than ignoring it or restarting the application.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from gpuwarden.health.model import Advice
from gpuwarden_collectors.dataclass import dataclass


class XidClass(StrEnum):
    """`record`: kept in the history, the GPU stays healthy. `warning`: reported. `failure`: the node is excluded."""

    RECORD = "record"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """A row of the table of Xids. `action` is the vendor's bucket for the immediate action, in the vendor's term ("" if
    the vendor gives none).

    `repeated`: the class of a recurring error, None if a repeat changes nothing. `escalation`: advice if the error
    recurs after `advice` was followed, after the vendor's investigatory action. NONE: no further advice.
    """

    xid: int
    meaning: str
    klass: XidClass
    action: str
    advice: Advice
    repeated: XidClass | None = None
    escalation: Advice = Advice.NONE
    note: str = ""
    provenance: str = "NVIDIA Xid catalogue"


I, W, F = XidClass.RECORD, XidClass.WARNING, XidClass.FAILURE  # noqa: E741 - the letters of the table
A = Advice

_APP = "the application's fault unless it comes back under other applications"
_REPEAT = "a warning when it repeats mostly on one GPU"
_PLACE = "the application's, if it comes from several places or GPUs; from one place of one GPU among several in job after job, the GPU's: run the extended diagnostic"

# Numbers ({n}: their index, from 0), meaning, class, the vendor's immediate action, our advice, note.
_ROWS: tuple[tuple[str, str, XidClass, str, Advice, str], ...] = (
    ("8", "GPU stopped processing: idle timeout", W, "RESTART_APP", A.RESTART_APP, "if it comes back, report it to the vendor"),
    ("11 25 32", "Invalid or corrupted push buffer stream", I, "RESTART_APP", A.RESTART_APP, _APP),
    ("13", "Graphics engine exception", I, "RESTART_APP", A.RESTART_APP, f"the place is GPC and TPC; {_PLACE}"),
    ("14", "Not in use", I, "IGNORE", A.NONE, ""),
    ("31", "MMU page fault", I, "RESTART_APP", A.RESTART_APP, f"the place is GPC and client; {_PLACE}"),
    ("37", "Driver firmware error: unknown method", I, "IGNORE", A.NONE, ""),
    ("38", "Driver firmware error", I, "IGNORE", A.NONE, ""),
    ("39-41 70-72 75-77 85 126-135", "Exception in copy engine CE{n}", I, "RESTART_APP", A.RESTART_APP, _REPEAT),
    ("43", "GPU stopped processing: the channel of one application was reset", I, "IGNORE", A.NONE, "a user error in most studies"),
    ("44", "Graphics fault during a context switch", I, "IGNORE", A.NONE, ""),
    ("45", "Preemptive cleanup: channels torn down after an earlier error or a killed process", I, "WORKFLOW_XID_45", A.NONE, "follows another Xid, or a process that was killed; with neither, a warning: restart the fabric manager"),
    ("46", "GPU stopped processing", F, "RESET_GPU", A.RESET_GPU, ""),
    ("48", "Uncorrectable (double-bit) ECC error", F, "WORKFLOW_XID_48", A.RESET_GPU, "alone: reset; with 63 or 64: drain, then reset. 63, 94, 171 (DRAM) and 172 (SRAM) that come with it are details of it"),
    ("54", "Auxiliary power is not connected", F, "CHECK_MECHANICALS", A.INSPECT_HARDWARE, ""),
    ("60", "Video processor exception", I, "RESTART_APP", A.RESTART_APP, _REPEAT),
    ("62", "Internal microcontroller halted", F, "RESET_GPU", A.RESET_GPU, "Xid 154 may follow and name the action"),
    ("63", "Row remapping (before Ampere: page retirement) recorded", W, "IGNORE", A.OBSERVE, "takes effect at the next reset; the pending flag of the GPU is read instead of trusting the line"),
    ("64", "Row remapping (before Ampere: page retirement) could not be recorded", F, "RESET_GPU", A.RESET_GPU, "if the failure flag stays after the reset, the GPU has to be replaced"),
    ("66 67", "Illegal access by the driver", I, "IGNORE", A.NONE, ""),
    ("68 83 84 88 89 96-98", "Exception in video decoder NVDEC{n}", I, "RESTART_APP", A.RESTART_APP, _REPEAT),
    ("69", "Graphics engine class error", I, "RESTART_APP", A.RESTART_APP, _REPEAT),
    ("74", "NVLink error (A100, H100)", W, "WORKFLOW_NVLINK_ERR", A.OBSERVE, "one that recovered is a warning; repeated on one GPU it is a failure. Of the seven registers in the text, 1, 3, 4 and 5 show the link"),
    ("78", "vGPU could not start", W, "UPDATE_SWFW", A.UPDATE_SOFTWARE, ""),
    ("79", "GPU has fallen off the bus", F, "RESTART_BM", A.REBOOT, "the driver gives the GPU up with this line: NVML answers that it is lost until a reboot, or until the device is removed and probed again, whatever its PCI configuration space reads. An event of NVML counts at once; a line of the kernel log that a readable configuration space and an answer of NVML, both after it, contradict is a warning"),
    ("80", "Corrupted data sent to the GPU", I, "RESTART_APP", A.RESTART_APP, f"A100 and H100 only; {_REPEAT}"),
    ("82 99-105", "Exception in JPEG decoder NVJPG{n}", I, "RESTART_APP", A.RESTART_APP, _REPEAT),
    ("86 139", "Exception in optical-flow engine OFA{n}", I, "RESTART_APP", A.RESTART_APP, _REPEAT),
    ("92", "High rate of corrected (single-bit) ECC errors", W, "IGNORE", A.OBSERVE, ""),
    ("93", "InfoROM is near the end of its write life (A100)", W, "IGNORE", A.OBSERVE, ""),
    ("94", "Contained memory error: only the application that owned the memory was ended", W, "RESTART_APP", A.RESTART_APP, "the GPU keeps working; a reset, when convenient, replaces the row. A line with `RST: Yes` is a failure: the GPU must be reset"),
    ("95", "Uncontained memory error: all applications on the GPU are affected", F, "RESET_GPU", A.RESET_GPU, "goes with 48; one GPU can log tens of thousands of these lines"),
    ("106 107", "Test message of the system management bus", I, "IGNORE", A.NONE, ""),
    ("108", "NVLink remote translation error", I, "IGNORE", A.NONE, ""),
    ("109", "Context switch timed out", F, "RESET_GPU", A.RESET_GPU, "NVIDIA's own NVSentinel has classed it differently from version to version"),
    ("110", "Security fault", F, "RESET_GPU", A.RESET_GPU, ""),
    ("119", "GSP does not answer a remote procedure call in time", F, "RESET_GPU", A.RESET_GPU, "NVML calls to this GPU will hang; with a driver that does not answer, reboot"),
    ("120", "Error in GSP firmware", F, "RESET_GPU", A.RESET_GPU, "NVML calls to this GPU may hang; with a driver that does not answer, reboot"),
    ("121", "C2C link error (Grace)", W, "IGNORE", A.OBSERVE, "if it repeats, ask the vendor"),
    ("136", "NVLink training failed (H100)", F, "RESET_GPU", A.RESET_GPU, ""),
    ("137", "NVLink remote access without the privilege for it", I, "IGNORE", A.NONE, "a peer-to-peer bug of the application"),
    ("140", "Unrecovered ECC error", F, "RESET_GPU", A.RESET_GPU, ""),
    ("141", "CUDA fast-path error", I, "IGNORE", A.NONE, ""),
    ("142", "Exception in video encoder NVENC3 (GB200)", W, "CONTACT_SUPPORT", A.CONTACT_SUPPORT, ""),
    ("143", "GPU could not be initialised", F, "RESET_GPU", A.RESET_GPU, ""),
    ("144", "NVLink 5, unit SAW", W, "WORKFLOW_NVLINK5_ERR", A.OBSERVE, "the sub-code in the line decides; undecoded it is a warning"),
    ("145", "NVLink 5, unit RLW", W, "WORKFLOW_NVLINK5_ERR", A.OBSERVE, "the sub-code in the line decides; undecoded it is a warning"),
    ("146", "NVLink 5, unit TLW", W, "WORKFLOW_NVLINK5_ERR", A.OBSERVE, "the sub-code in the line decides; undecoded it is a warning"),
    ("147", "NVLink 5, unit TREX", W, "WORKFLOW_NVLINK5_ERR", A.OBSERVE, "the vendor ignores every sub-code it describes; undecoded it is a warning"),
    ("148", "NVLink 5, unit NVLPW_CTRL", W, "WORKFLOW_NVLINK5_ERR", A.OBSERVE, "the vendor ignores every sub-code it describes; undecoded it is a warning"),
    ("149", "NVLink 5, unit NETIR", W, "WORKFLOW_NVLINK5_ERR", A.OBSERVE, "the sub-code in the line decides (a link fatally down: reset; bit-error-rate events: ignore); undecoded it is a warning"),
    ("150", "NVLink 5, unit MSE", W, "WORKFLOW_NVLINK5_ERR", A.OBSERVE, "the sub-code in the line decides (the only one described: reset); undecoded it is a warning"),
    ("151", "Key rotation failed (confidential computing)", F, "RESTART_VM", A.REBOOT, ""),
    ("152", "Deep-learning accelerator: SMMU error", I, "IGNORE", A.NONE, ""),
    ("153", "Deep-learning accelerator: timeout", I, "IGNORE", A.NONE, ""),
    ("154", "The driver changed its recovery action for this GPU", I, "XID_154", A.NONE, "the line names the old and the new action, which is gpu_recovery_action at once; from then on the GPU's own report decides"),
    ("155", "NVLink error defined by software", F, "RESET_GPU", A.RESET_GPU, ""),
    ("156", "A part of the GPU was retired", W, "RESET_GPU", A.RESET_GPU, "the retirement takes effect at the reset; a failure if work stops before"),
    ("157", "A part of the GPU could not be retired", W, "IGNORE", A.CONTACT_SUPPORT, ""),
    ("158", "GPU timed out fatally", F, "RESET_GPU", A.RESET_GPU, ""),
    ("159", "CHI error other than in data (Grace)", W, "CHECK_UVM", A.OBSERVE, "with unified memory or vGPU in use: reset the GPU; alone: ask the vendor"),
    ("160", "A memory channel was marked for repair", W, "IGNORE", A.RESET_GPU, "the line says whether a GPU reset or a node reboot does the repair"),
    ("161", "A memory channel could not be marked for repair", W, "IGNORE", A.OBSERVE, ""),
    ("162", "Power-smoothing hardware works again", I, "", A.NONE, "ends what 163 began"),
    ("163", "Power-smoothing hardware switched itself off", W, "", A.RESET_GPU, "thermal cause; back after a driver reload or reset, or with Xid 162"),
    ("164", "Power-smoothing hardware has little life left", W, "", A.OBSERVE, ""),
    ("165", "Power-smoothing hardware has no life left", W, "", A.CONTACT_SUPPORT, ""),
    ("166", "NVLink traffic before encryption was on (confidential computing)", W, "", A.OBSERVE, ""),
    ("167", "PCIe timed out fatally", F, "", A.REBOOT, ""),
    ("168", "Errors in the write-protected memory region; ECC off or memory reduced", W, "", A.REBOOT, "a failure if memory is missing after the reboot"),
    ("169", "SEC2 microcontroller halted", F, "", A.RESET_GPU, ""),
    ("170", "Interrupt in confidential-computing mode", W, "", A.OBSERVE, ""),
    ("171", "Detail of an uncorrectable ECC error in DRAM", W, "", A.OBSERVE, "goes with Xid 48, which decides; alone, its line was lost: check the ECC counters"),
    ("172", "Detail of an uncorrectable ECC error in SRAM", W, "", A.OBSERVE, "goes with Xid 48, which decides; alone, its line was lost: check the ECC counters"),
    ("173", "C2C link failed fatally (Grace)", F, "", A.REBOOT, "classed like 167, the same event on PCIe"),
    ("174", "A channel was reset and its process ended", W, "", A.CONTACT_SUPPORT, "only the name of the number is known"),
    ("175", "The memory subsystem of the GPU does not answer", F, "", A.RESET_GPU, "in place of 119 where a GSP timeout comes from the memory; the driver marks the GPU for a reset at once"),
    ("176", "Fault of corrected PCIe errors", W, "", A.CONTACT_SUPPORT, "only the name of the number is known"),
)  # fmt: skip

# Numbers and meanings that A100 and later GPUs do not use: all of them warnings that ask for the vendor's support.
_UNUSED: tuple[tuple[str, str], ...] = (
    ("1-4 6", "Invalid or corrupted push buffer stream (old GPUs)"),
    ("5 10 15 17 23 49-53 55", "Not in use"),
    ("7", "Invalid or corrupted push buffer address"),
    ("9", "Driver error while programming the GPU"),
    ("12", "Driver error while handling a GPU exception"),
    ("16", "Display engine hung"),
    ("18", "Bus mastering is disabled in PCI configuration space"),
    ("19 56", "Display engine error"),
    ("20", "Invalid MPEG push buffer"),
    ("21", "Invalid motion-estimation push buffer"),
    ("22", "Invalid video push buffer"),
    ("24", "GPU semaphore timeout"),
    ("26", "Framebuffer timeout"),
    ("27-29 34-36 42 47 65", "Video processor exception"),
    ("30", "GPU semaphore access error"),
    ("33 59", "Internal microcontroller error (old drivers)"),
    ("57", "Error while programming the memory interface"),
    ("58", "Unstable memory interface"),
    ("61", "Internal microcontroller breakpoint or warning"),
    ("73", "Exception in video encoder NVENC2"),
    ("81", "VGA subsystem error"),
    ("87 90 91", "Reserved"),
    ("111", "Display bundle error"),
    ("112", "Display supervisor error"),
    ("113", "DisplayPort training error"),
    ("114", "Display pipeline underflow"),
    ("115", "Display core channel error"),
    ("116", "Display window channel error"),
    ("117", "Display cursor channel error"),
    ("118", "Display pixel pipeline error"),
    ("122", "SPI flash read error of the power management unit"),
    ("123", "SPI flash write error of the power management unit"),
    ("124", "SPI flash erase error of the power management unit"),
    ("125", "InfoROM file system error"),
    ("138", "Deep-learning accelerator error"),
)
_UNUSED_NOTES = {122: "A100 fleets do see it: in more than four of five cases Xid 31 follows at once"}

# Known practice of fleets: who, what, with which numbers.
_FLEETS: tuple[tuple[str, str], ...] = (
    ("Azure healthagent: a warning", "13 31 43 63 66 94 154"),
    ("Meta GCM: not critical", "13 31 43 45 63 68 92 109"),
    ("AzNHC: takes the node out", "48 56-58 62-65 68 69 73 74 79-81 92 119 120"),
    ("Lablup: restarts the application", "31 43 94"),
    ("Lablup: resets the GPU", "119 145 149"),
    ("Lablup: reboots", "79"),
    ("NVSentinel: not fatal", "94"),
    ("NVSentinel: restarts the machine", "168"),
    ("NVSentinel: once restarted the machine", "160 161"),
)
_OUR_DECISION = "14 45 74 144-150 154 156 168 171-176"  # class and action do not follow from the catalogue
_OF_DRIVER = "174-176"
_DRIVER = "NVIDIA open kernel modules 595.45.04 (nverror.h, kernel_gsp.c); not in the Xid catalogue"

# Class of recurring errors.
_REPEATED: dict[XidClass, str] = {W: "13 31 39-41 60 68-72 75-77 80 82-86 88 89 96-105 126-135 139 144-150", F: "74"}

# Advice if the error recurs after the advice was followed. All others: open a case with the vendor.
_ESCALATIONS: dict[Advice, str] = {
    A.NONE: "11 14 25 32 37 43 45 63 69 80 94 106-108 137 142 154 156 162 165",
    A.UPDATE_SOFTWARE: "60 66 110 119 120 155 160 161",
    A.INSPECT_HARDWARE: "13 31 74 79 136 144-150 167 173",
}


def _numbers(text: str) -> Iterator[int]:
    """Yield the numbers of a text: 1, 2, 3, 7 from "1-3 7"."""
    for item in text.split():
        first, _, last = item.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _provenance(xid: int, basis: str) -> str:
    fleets = [does for does, numbers in _FLEETS if xid in _numbers(numbers)]
    own = ["class: our decision"] if xid in _numbers(_OUR_DECISION) else []
    practice = [f"fleet practice: {', '.join(fleets)}"] if fleets else []
    return "; ".join([basis, *own, *practice])


def _basis(xid: int, action: str) -> str:
    if xid in _numbers(_OF_DRIVER):
        return _DRIVER
    return "NVIDIA Xid catalogue" if action else "NVIDIA Xid catalogue, which prints no action"


def _repeated(xid: int) -> XidClass | None:
    return next((klass for klass, numbers in _REPEATED.items() if xid in _numbers(numbers)), None)


def _escalation(xid: int) -> Advice:
    listed = (advice for advice, numbers in _ESCALATIONS.items() if xid in _numbers(numbers))
    return next(listed, Advice.CONTACT_SUPPORT)


def _catalogue() -> Iterator[Xid]:
    for numbers, meaning, klass, action, advice, note in _ROWS:
        for n, xid in enumerate(_numbers(numbers)):
            yield Xid(
                xid=xid,
                meaning=meaning.format(n=n),
                klass=klass,
                action=action,
                advice=advice,
                repeated=_repeated(xid),
                escalation=_escalation(xid),
                note=note,
                provenance=_provenance(xid, _basis(xid, action)),
            )
    for numbers, meaning in _UNUSED:
        for xid in _numbers(numbers):
            yield Xid(
                xid=xid,
                meaning=meaning,
                klass=XidClass.WARNING,
                action="CONTACT_SUPPORT",
                advice=Advice.CONTACT_SUPPORT,
                note=_UNUSED_NOTES.get(xid, ""),
                provenance=_provenance(xid, "NVIDIA Xid catalogue: not in use on A100 and later"),
            )


XIDS: dict[int, Xid] = {row.xid: row for row in _catalogue()}


def xid_row(xid: int) -> Xid:
    """Return the row of an Xid. An unknown number is a warning, never dropped."""
    listed = XIDS.get(xid)
    return listed or Xid(
        xid=xid,
        meaning="not described by the vendor",
        klass=XidClass.WARNING,
        action="CONTACT_SUPPORT",
        advice=Advice.CONTACT_SUPPORT,
        provenance="unknown numbers are warnings",
    )
