"""Catalogue of SXids, the errors of an NVSwitch: the meaning of each, and whether traffic over the switch can continue.

A switch has ports (ingress, egress, routing, tag state, source tracking), links (transport and data layer), a crossbar
between the ports and a microcontroller for the links (Minion). Most single-bit errors and replays were corrected and
stop nothing; double-bit errors, overflows, timeouts and faulted links stop traffic until the GPUs and switches are
reset. A line contains `Fatal`, `Non-fatal` or `Correctable`, or a numeric severity. It takes precedence over the table,
except for numbers after which the GPU behind the port may hang even if the line is non-fatal (`sxid_rules.py`).
"""

from __future__ import annotations

from gpuwarden.health.model import Advice
from gpuwarden_collectors.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sxid:
    """A row of the table of SXids. `fatal`: traffic over the switch, or to the GPU behind the port, may stay stopped.

    `listed_nonfatal`: a fatal number that the vendor lists as non-fatal. `harmless`: fleets see it on healthy hosts.
    `advice` and `escalation` as in the table of Xids.
    """

    sxid: int
    meaning: str
    fatal: bool
    listed_nonfatal: bool = False
    harmless: bool = False
    note: str = ""
    provenance: str = "NVSwitch error numbers of NVIDIA's open kernel modules; severity as gpud classes it"

    @property
    def advice(self) -> Advice:
        return advice(fatal=self.fatal)

    @property
    def escalation(self) -> Advice:
        return Advice.CONTACT_SUPPORT if self.fatal else Advice.INSPECT_HARDWARE


def advice(*, fatal: bool) -> Advice:
    """Return the advice. After a fatal SXid GPUs and switches must be reset together, which a reboot does."""
    return Advice.REBOOT if fatal else Advice.OBSERVE


_NON_FATAL = {
    10001: "Host interface: privileged register access failed",
    10002: "Host interface: privileged register access timed out",
    10003: "Host interface: unhandled interrupt",
    10004: "Host interface: overheating began",
    10005: "Host interface: overheating ended",
    11012: "Ingress: single-bit errors in packet headers",
    11021: "Ingress: single-bit errors in the remap table",
    11022: "Ingress: single-bit errors in the RID (routing id) table",
    11023: "Ingress: single-bit errors in the RLAN (routing) table",
    12021: "Egress: single-bit errors in packet headers from the crossbar",
    12023: "Egress: single-bit errors in packet headers of the output buffer",
    12030: "Egress: parity error in a packet header from the crossbar",
    15008: "Routing: single-bit errors in the GLT memory",
    15011: "Routing: single-bit errors in the NVS memory",
    19049: "Link transport, sending: single-bit errors",
    19055: "Link transport, receiving: single-bit errors in the header buffer",
    19057: "Link transport, receiving: single-bit errors in data buffer 0",
    19059: "Link transport, receiving: single-bit errors in data buffer 1",
    19062: "Link transport, sending: single-bit errors in the request buffer",
    19065: "Link transport, sending: single-bit errors in the response buffer",
    19068: "Link transport, sending: single-bit errors in the common buffer",
    19071: "Link transport, sending: single-bit errors in the second response buffer",
    20001: "Link: packets had to be sent again",
    20009: "Link: error rate of the receiver above its short-term limit",
    20012: "Link: CRC errors above their limit, or a broken connection",
    22013: "Minion: request that can be ignored",
    24001: "Source tracking: single-bit errors in crumb store 0",
    24002: "Source tracking: single-bit errors in crumb store TD 0",
    24003: "Source tracking: single-bit errors in crumb store 1",
}
_FATAL = {
    11001: "Ingress: invalid command",
    11004: "Ingress: access control refused a packet",
    11009: "Ingress: invalid set of virtual channels",
    11013: "Ingress: double-bit error in a packet header",
    11018: "Ingress: double-bit error in the RID (routing id) table",
    11019: "Ingress: double-bit error in the RLAN (routing) table",
    11020: "Ingress: parity error in control signals",
    12001: "Egress: buffer overflow or underflow",
    12002: "Egress: packet routed to the wrong port",
    12020: "Egress: wrong sequence id",
    12022: "Egress: double-bit error in a packet header from the crossbar",
    12024: "Egress: double-bit error in a packet header of the output buffer",
    12025: "Egress: more credits than exist",
    12026: "Egress: request for another target",
    12027: "Egress: response for another requester",
    12028: "Egress: response reports a privilege error",
    12031: "Egress: parity error in a credit",
    12032: "Egress: flit of another type than expected",
    14017: "Tag state: transaction timed out",
    15001: "Routing: buffer overflow or underflow",
    15006: "Routing: transaction counter overflow or underflow",
    15009: "Routing: double-bit error in the GLT memory",
    15010: "Routing: parity error in control signals",
    15012: "Routing: double-bit error in the NVS memory",
    15013: "Routing: parity error in a credit",
    19047: "Link transport, sending: double-bit error in a header",
    19048: "Link transport, sending: double-bit error in data",
    19054: "Link transport, receiving: double-bit error in the header buffer",
    19056: "Link transport, receiving: double-bit error in data buffer 0",
    19058: "Link transport, receiving: double-bit error in data buffer 1",
    19060: "Link transport, sending: double-bit error in a header of the request buffer",
    19061: "Link transport, sending: double-bit error in data of the request buffer",
    19063: "Link transport, sending: double-bit error in a header of the response buffer",
    19064: "Link transport, sending: double-bit error in data of the response buffer",
    19066: "Link transport, sending: double-bit error in a header of the common buffer",
    19067: "Link transport, sending: double-bit error in data of the common buffer",
    19069: "Link transport, sending: double-bit error in a header of the second response buffer",
    19070: "Link transport, sending: double-bit error in data of the second response buffer",
    19084: "Link transport, receiving: the other side sends no heartbeat",
    20034: "Link: fault, the link went down",
    22003: "Minion: halted",
    22011: "Minion: external error",
    22012: "Minion: fatal interrupt of a link",
    23001: "Crossbar tile: ingress buffer overflow",
    23002: "Crossbar tile: ingress buffer underflow",
    23003: "Crossbar tile: more egress credits than exist",
    23004: "Crossbar tile: fewer egress credits than given",
    23005: "Crossbar tile: packet interrupted at ingress",
    23006: "Crossbar tile: packet changed its destination at ingress",
    23007: "Crossbar tile: packet too long at ingress",
    23008: "Crossbar tile: packet for a destination that does not exist",
    23009: "Crossbar tile: parity error in a packet",
    23010: "Crossbar output: ingress buffer overflow",
    23011: "Crossbar output: ingress buffer underflow",
    23012: "Crossbar output: more egress credits than exist",
    23013: "Crossbar output: fewer egress credits than given",
    23014: "Crossbar output: packet interrupted at ingress",
    23015: "Crossbar output: packet changed its destination at ingress",
    23016: "Crossbar output: packet too long at ingress",
    23017: "Crossbar output: parity error in an egress credit",
    24004: "Source tracking: double-bit error in crumb store 0",
    24005: "Source tracking: double-bit error in crumb store TD 0",
    24006: "Source tracking: double-bit error in crumb store 1",
    24007: "Source tracking: no response in time",
}
_LISTED_NONFATAL = (11004, 12028, 19084)
_HARMLESS = (
    11012, 11021, 11022, 11023, 12021, 12023, 15008, 15011, 19049, 19055, 19057, 19059, 19062, 19065, 19068, 19071, 22013,
    24001, 24002, 24003,
)  # fmt: skip
"""imbue-ai/cluster-health, dmesg_whitelist.py: seen for months on 511 healthy H100 hosts."""
_NOTES = {
    **dict.fromkeys(
        _LISTED_NONFATAL, "on NVIDIA's list of non-fatal errors, yet the GPU behind the port hangs until it is reset"
    ),
    **dict.fromkeys(
        _HARMLESS, "seen for months on healthy hosts (imbue, 511 hosts); a warning from the fifth burst of a day on"
    ),
}

SXIDS: dict[int, Sxid] = {
    sxid: Sxid(
        sxid=sxid,
        meaning=meaning,
        fatal=fatal,
        listed_nonfatal=sxid in _LISTED_NONFATAL,
        harmless=sxid in _HARMLESS,
        note=_NOTES.get(sxid, ""),
    )
    for table, fatal in ((_NON_FATAL, False), (_FATAL, True))
    for sxid, meaning in table.items()
}


def sxid_row(sxid: int) -> Sxid:
    """Return the row of an SXid. An unknown number is kept, and is fatal only if its line is."""
    listed = SXIDS.get(sxid)
    return listed or Sxid(sxid=sxid, meaning="not described", fatal=False, provenance="unknown numbers are warnings")
