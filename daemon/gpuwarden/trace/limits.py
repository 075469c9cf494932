"""Limits on the content of a trace, above what any host has. The reader refuses a trace that exceeds them, so that one
file cannot keep the judge busy for hours or add a million GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpuwarden_collectors.codec import CodecError

ITEMS_MOST = {"gpus": 64, "links": 64, "devices": 256}
OTHERS_MOST = 1024
"""Most items of any other list in the facts of one pass: ports, mounts, incidents, processes."""
LINK_MOST = 63
SLOTS_MOST = 1024
"""Most PCI addresses in one trace."""
MEMORY_MOST = 16_384
"""Most events at the start of a trace: 4,096 records, and the rest of a checkpoint."""
_HOLDERS = (list, dict)


def bounded(change: Any, name: str = "") -> None:
    """Raise CodecError if facts, or a change of facts, exceed these limits. `name`: the field that has this value."""
    if isinstance(change, list):
        most = ITEMS_MOST.get(name, OTHERS_MOST)
        if len(change) > most:
            raise CodecError(f"{len(change)} {name or 'items'}, and no host has more than {most}")
        for item in change:
            if isinstance(item, _HOLDERS):
                bounded(item, name)
    elif isinstance(change, dict):
        for key, value in change.items():
            if isinstance(value, _HOLDERS):
                bounded(value, name if key == "=" or key.isdecimal() else key)
            elif key == "link" and isinstance(value, int) and not 0 <= value <= LINK_MOST:
                raise CodecError(f"a link with number {value}, and no GPU has more than {LINK_MOST + 1}")


class Slots:
    """The PCI addresses in a trace so far."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def add(self, slots: Iterable[str]) -> None:
        """Record PCI addresses. Raises CodecError if there are more than any host ever had."""
        self._known.update(slots)
        if len(self._known) > SLOTS_MOST:
            raise CodecError(f"more than {SLOTS_MOST} PCI addresses, and no host has had as many")
