r"""Rejects kernel log records that a process could have forged. Pure.

| reason | rejected records |
|---|---|
| `facility` | a record of another facility than the kernel's: a process wrote it to /dev/kmsg, as journald does with ForwardToKMsg for any user |
| `packet_filter` | a line of a packet filter's log rule, which begins with a text that any process with CAP_NET_ADMIN can choose |

A line of a log rule begins with the rule's text; the kernel appends a description of the packet (Linux 4 to 6):

    iptables LOG, nft log   TEXT, `IN=eth0 OUT=lo ` [`PHYSIN=… `] [`PHYSOUT=… `], then nothing, or one of SRC= MAC ARP VPROTO=
                            TRUNCATED and more of that kind without ", " (net/netfilter/nf_log_syslog.c and its predecessors)
    ebtables --log          TEXT, ` IN=eth0 OUT=lo MAC source = …` (net/bridge/netfilter/ebt_log.c)

A process could have a name like the beginning of such a tail, so that a genuine line about it is rejected. But its name
has at most 15 bytes, and the driver prints ", " and a text after it: so neither `IN= OUT= PHYSIN=` nor `IN= OUT= MAC
source = ` fits, anything shorter is followed by ", ", and `IN= OUT=` is followed by no keyword of a packet filter.
Names of devices, also of at most 15 bytes and without white space, may end with a comma. The line of a soft lockup ends
with `[NAME:PID]`, that of an OOM kill with `,task=NAME,pid=PID,uid=UID`: these names are removed before matching. No
packet filter's tail ends like this.
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
    """Returns why a record is rejected, one of the reasons above, or "" if it is accepted.

    `facilities`: those whose records may be accepted.
    """
    if record.facility not in facilities:
        return FACILITY
    return PACKET_FILTER if of_a_packet_filter(record.text) else ""


def of_a_packet_filter(text: str) -> bool:
    """True if a log rule of a packet filter printed this."""
    return _TAIL.search(_PROCESS.sub("", text)) is not None
