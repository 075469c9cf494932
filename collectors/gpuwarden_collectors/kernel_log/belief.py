r"""Which records count: those that the kernel wrote by itself. Pure.

| reason | what is disbelieved |
|---|---|
| `facility` | a record of another facility than the kernel's: a process wrote it to /dev/kmsg, as journald does with ForwardToKMsg for any user |
| `packet_filter` | a line of a packet filter's log rule, which begins with a text that any process with CAP_NET_ADMIN can choose |

A log rule's text comes first, then what the kernel says of the packet (Linux 4 to 6):

    iptables LOG, nft log   TEXT, `IN=eth0 OUT=lo ` [`PHYSIN=… `] [`PHYSOUT=… `], then nothing, or one of SRC= MAC ARP VPROTO=
                            TRUNCATED and more of that kind without ", " (net/netfilter/nf_log_syslog.c and its predecessors)
    ebtables --log          TEXT, ` IN=eth0 OUT=lo MAC source = …` (net/bridge/netfilter/ebt_log.c)

A process may be named like the beginning of such a tail, to have a genuine line about it disbelieved. Its name has at most 15
bytes, and the driver prints ", " and a text behind it: so there is neither `IN= OUT= PHYSIN=` nor `IN= OUT= MAC source = `,
after anything shorter there is a ", ", and `IN= OUT=` is followed by no keyword of the packet filter's. Names of devices, also of
at most 15 bytes and without white space, may end with a comma. The line of a soft lockup ends with `[NAME:PID]`, that of a
kill for want of memory with `,task=NAME,pid=PID,uid=UID`: these names are left out. No packet filter's tail ends so.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from gpuwarden_collectors.kernel_log.lines import Record

KERNEL = 0
FACILITY, PACKET_FILTER = "facility", "packet_filter"

_DEVICE = r"\S{0,15}"
_TAIL = re.compile(
    rf"IN={_DEVICE} OUT={_DEVICE}(?: |\Z)(?:PHYSIN={_DEVICE} )?(?:PHYSOUT={_DEVICE} )?"
    r"(?:\Z|MAC source = |(?:SRC=|MAC|ARP |VPROTO=|TRUNCATED)(?:[^,]|,(?! ))*\Z)",
    re.ASCII,
)
_PROCESS = re.compile(
    r"\[.{0,15}:\d{1,10}\]\Z|(?<=,task=).{0,15}(?=,pid=\d{1,10},uid=\d{1,10}\Z)", re.ASCII | re.DOTALL
)


def disbelieved(record: Record, facilities: Collection[int]) -> str:
    """Returns why this record cannot be the kernel's own, one of the reasons above, or "" if it may be.

    Records of `facilities` are believed.
    """
    if record.facility not in facilities:
        return FACILITY
    return PACKET_FILTER if of_a_packet_filter(record.text) else ""


def of_a_packet_filter(text: str) -> bool:
    """True if a log rule of a packet filter printed this."""
    return _TAIL.search(_PROCESS.sub("", text)) is not None
