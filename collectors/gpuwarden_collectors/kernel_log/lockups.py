"""Finds the kernel module of a soft lockup: the kernel prints it in a later record than the lockup itself. Pure.

    watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [python3:4711]
    …
    RIP: 0010:_nv012345rm+0x1a/0x40 [nvidia]          (x86; on Arm `pc : nvidia_poll+0x18/0x120 [nvidia]`)

Only modules of GPU and network drivers are named. One function prints both records. A record of this form that does
not follow a soft lockup (an oops prints it, too) is ignored.
"""

from __future__ import annotations

import re
from dataclasses import replace

from gpuwarden_collectors.event_facts import HostEvent, KernelLineEvent, LineKind
from gpuwarden_collectors.kernel_log.lines import Record

WITHIN = 1_000_000  # microseconds from the line of the lockup, whose function prints some ten records
_MODULE = re.compile(
    r"(?:RIP: 0010:|pc : )[\w.$]{1,128}\+0x[0-9a-f]{1,8}/0x[0-9a-f]{1,8} \[(?P<module>(?:nvidia|mlx5)\w{0,24})[^\]]{0,64}\]\Z",
    re.ASCII,
)


class Lockups:
    """The lockups that the log reports.

    Call `begun` with each accepted event, and `named` with each record that is not itself an event.
    """

    def __init__(self) -> None:
        self._lockup: KernelLineEvent | None = None
        self._at = 0

    def begun(self, event: HostEvent, record: Record) -> None:
        if isinstance(event, KernelLineEvent) and event.what is LineKind.SOFT_LOCKUP:
            self._lockup, self._at = event, record.microseconds

    def named(self, record: Record) -> KernelLineEvent | None:
        """Returns the preceding lockup with the module that this record names, or None if the record names none."""
        if self._lockup is None or (match := _MODULE.match(record.text)) is None:
            return None
        lockup, self._lockup = self._lockup, None
        if not 0 <= record.microseconds - self._at <= WITHIN or lockup.origin is None:
            return None
        origin = replace(lockup.origin, sequence=record.sequence, facility=record.facility)
        return replace(lockup, part=match["module"], origin=origin)
