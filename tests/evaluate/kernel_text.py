"""Lines of a kernel log as they were written, read by the daemon's own parser."""

from __future__ import annotations

from gpuwarden_collectors.kernel_log.echoes import Echoes
from gpuwarden_collectors.kernel_log.lines import Record, event_of
from support.hosts import Host

SWITCH = "0000:85:00.0"


def happened(host: Host, *texts: str) -> None:
    """A step with these lines, which came a millisecond apart."""
    echoes, events = Echoes(), []
    for n, text in enumerate(texts):
        sequence = len(host.ledger) * 1000 + n
        event = event_of(Record(0, 4, sequence, int(host.uptime * 1e6) + 1000 * n, text), host.now, host.boot_id)
        if event is not None and not echoes.is_echo(event, 1000 * n):
            events.append(event)
    host.step(*events)
