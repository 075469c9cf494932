"""Instructions for operators by Xid, for numbers that can become findings. Texts as in `health/to_do.py`.

The vendor's catalogue names the bucket (`catalogue.py`: action); these texts name the commands. Sources: NVIDIA's Xid
catalogue and its workflows; GPU memory error management (48, 63, 64, 94, 95, 160, 171, 172).
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuwarden.health.model import Advice
from gpuwarden.health.xid.catalogue import xid_row

A = Advice
RESET_COMMAND = "`nvidia-smi --gpu-reset -i SLOT`. First stop gpuwarden, nvidia-dcgm and nvidia-persistenced"
"""nvidia-smi does not reset a GPU that any process, even a monitor, has open (nvidia-smi(1), `--gpu-reset`)."""
_RESET = f"reset the GPU when it is empty: {RESET_COMMAND}"
_ECC = "`nvidia-smi -q -d ECC,ROW_REMAPPER -i SLOT`"
_CASE = "save `nvidia-bug-report.sh` and open a case with the vendor"
_GSP = f"Drain the node and {_RESET}. If the reset hangs, reboot. On several nodes: update the driver."
_DECODE = (
    'Decode the line: `gpuwarden explain "LINE"` with the one from `dmesg | grep Xid`. The sub-code in it decides.'
)
_DETAIL = f"Read the ECC counters: {_ECC}. "

XID_TO_DO: Mapping[int, str] = {
    8: f"Restart the job. Again on this GPU: {_CASE}.",
    48: f"Drain the node and {_RESET}. The reset remaps the row. Then run `dcgmi diag -r 3`.",
    54: "Drain the node, power it off and check the power cable of the board.",
    62: f"Drain the node and {_RESET}. If the reset fails, reboot.",
    63: f"Reset the GPU when the node is empty: {RESET_COMMAND}. That remaps the row; jobs may continue until then.",
    64: f"Drain the node and {_RESET}. If {_ECC} then still reports a remapping failure, have the board replaced.",
    74: "Check the link: `nvidia-smi nvlink -s -i SLOT` and `nvidia-smi nvlink -e -i SLOT`. One that recovered needs nothing. Down or growing: reset "
    "the GPUs when the node is empty. The GPU at the other end may be the cause.",
    78: "Update the vGPU software: host and guest driver must fit each other.",
    79: "Drain the node and power-cycle the machine. A reboot often does not bring the GPU back. Again: have seating, riser and power cables inspected.",
    92: f"Nothing at night. Look at {_ECC}: rows that are remapped as well ask for `dcgmi diag -r 3` and a replacement.",
    93: "Plan the replacement of the board with the vendor. Its InfoROM can be written only a few times more.",
    94: "Restart the job that died: the error was contained. Reset the GPU when the node is empty, which remaps the row.",
    95: f"Drain the node and {_RESET}. All jobs on the GPU are affected. Then run `dcgmi diag -r 3`.",
    119: _GSP,
    120: _GSP,
    121: "Nothing now. Again: save `nvidia-bug-report.sh` and open a case with the vendor (link between CPU and GPU).",
    136: "Drain the node and reset all its GPUs when it is empty, or reboot. Again: have the NVLink path inspected.",
    142: f"Update the driver, or {_CASE}. Only video encoding is affected.",
    **dict.fromkeys(range(144, 151), _DECODE),
    151: "Drain the node and restart the virtual machine. On bare metal: reboot.",
    154: "Do what the driver asks for: `nvidia-smi -q -i SLOT | grep -i recovery` shows it.",
    155: "Drain the node and reset all its GPUs when it is empty, or reboot. Again: update the driver.",
    156: f"Reset the GPU when the node is empty: {RESET_COMMAND}. The faulty part is out of use after it.",
    157: f"At the next maintenance {_CASE}. A part of the GPU could not be retired.",
    159: "Reset the GPU when the node is empty, if jobs use unified memory or vGPU. Else note it; again: open a case with the vendor.",
    160: f"Reset the GPU when the node is empty: {RESET_COMMAND}. Or reboot. Its memory is marked for repair, which is done then.",
    161: f"At the next maintenance {_CASE}. A channel of the memory could not be repaired.",
    163: "Check the cooling of the GPU, then reset it when the node is empty. The power smoothing switched itself off for heat.",
    164: "Plan the replacement of the board with the vendor. Its power smoothing wears out.",
    165: f"At the next maintenance {_CASE}. Its power smoothing is worn out.",
    166: f"Check how confidential computing is set up: NVLink was used before encryption was on. Again: {_CASE}.",
    167: "Drain the node and reboot it. Again: power off, reseat the card, replace the riser.",
    168: "Reboot the node when it is empty, then compare `nvidia-smi --query-gpu=memory.total --format=csv` with a sibling. Less memory: replace the board.",
    170: f"Note it. Again: {_CASE} (confidential computing).",
    171: _DETAIL + "Uncorrectable errors there: drain the node and reset the GPU, which remaps the row; its Xid 48 was lost.",
    172: _DETAIL + "Uncorrectable SRAM errors there: drain the node and reset the GPU; its Xid 48 was lost. Threshold exceeded: replace the board.",
    173: "Drain the node and reboot it. Again: have the board inspected (link between CPU and GPU).",
    175: f"Drain the node and {_RESET}. If the reset hangs, reboot. Again: {_CASE}.",
}  # fmt: skip
"""By number, for the advice in the catalogue. Numbers not listed here use the text of their advice."""

_REPEATED_PLACE = "Run `dcgmi diag -r 3` on the GPU when the node is empty. Jobs failed at one and the same place of it. Failed: have the board replaced."
_LINKS = "Drain the node, and reset all its GPUs or reboot when it is empty. Again: have the NVLink path inspected (bridge, board, NVSwitch)."

_VARIANTS: Mapping[tuple[int, Advice], str] = {
    (13, A.INSPECT_HARDWARE): _REPEATED_PLACE,
    (31, A.INSPECT_HARDWARE): _REPEATED_PLACE,
    (45, A.RESTART_SERVICE): "Restart the fabric manager when the node is empty: `systemctl restart nvidia-fabricmanager`. No other error explains the line.",
    (74, A.RESET_GPU): _LINKS,
    (79, A.OBSERVE): "Check `timeout 20 nvidia-smi -i SLOT`. Bus and driver still have the GPU: `dmesg -x` shows whether the kernel wrote the line.",
    (94, A.RESET_GPU): f"Drain the node and {_RESET}. The error was contained, and the driver asks for a reset all the same.",
    (160, A.REBOOT): "Reboot the node when it is empty. Its memory is marked for repair, which is done then; a reset does not do it.",
    **{(number, A.RESET_GPU): _LINKS for number in range(144, 151)},
    **{(number, A.INSPECT_HARDWARE): "Have the NVLink path inspected at the next maintenance: cable, bridge, switch port. `nvidia-smi nvlink -e -i SLOT` "
       "shows which link." for number in range(144, 151)},
    **{(number, A.RESTART_APP): "Restart the job. The GPU works, unless gpu_recovery_action says otherwise." for number in range(144, 151)},
}  # fmt: skip
"""By number and advice, where the line or a repeat led to other advice than the catalogue's."""


def xid_to_do(number: int, advice: Advice) -> str:
    """Return the instructions for an Xid; "" if the text of its advice suffices."""
    if (text := _VARIANTS.get((number, advice))) is not None:
        return text
    return XID_TO_DO.get(number, "") if advice is xid_row(number).advice else ""


def sxid_to_do(advice: Advice) -> str:
    """Return the instructions for an SXid; "" for one that stops traffic, for which the condition has the text."""
    return {
        Advice.OBSERVE: "Nothing now: traffic continues. Again on one port: have its NVLink path inspected at the next maintenance.",
        Advice.NONE: "Nothing.",
    }.get(advice, "")
