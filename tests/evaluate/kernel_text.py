"""Lines of a kernel log as they were written, read by the daemon's own parser."""

from __future__ import annotations

from gpuwarden_collectors.kernel_log.echoes import Echoes
from gpuwarden_collectors.kernel_log.lines import Record, event_of
from gpuwarden_collectors.kernel_log.lockups import Lockups
from support.hosts import Host

SWITCH = "0000:85:00.0"


def happened(host: Host, *texts: str) -> None:
    """A step with these lines, which came a millisecond apart."""
    echoes, lockups, events = Echoes(), Lockups(), []
    for n, text in enumerate(texts):
        sequence = len(host.ledger) * 1000 + n
        record = Record(0, 4, sequence, int(host.uptime * 1e6) + 1000 * n, text)
        event = event_of(record, host.now, host.boot_id) or lockups.named(record)
        if event is not None and not echoes.is_echo(event, 1000 * n):
            lockups.begun(event, record)
            events.append(event)
    host.step(*events)
