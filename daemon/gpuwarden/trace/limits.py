"""What no host has so much of that a trace of it could be honest: a reader that is given more refuses it, lest the judge be
kept busy for hours, or learn a million GPUs, because of one file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpuwarden_collectors.codec import CodecError

ITEMS_MOST = {"gpus": 64, "links": 64, "devices": 256}
OTHERS_MOST = 1024
"""Items of any other list within the facts of one pass: ports, mounts, incidents, processes."""
LINK_MOST = 63
SLOTS_MOST = 1024
"""PCI addresses in one trace, however many passes it has."""
MEMORY_MOST = 16_384
"""Events that a trace begins with: 4,096 records, and what else a checkpoint holds."""


def bounded(change: Any, name: str = "") -> None:
    """Raises CodecError for facts, or a change of some, that are more than any host has. `name` is of the field."""
    if isinstance(change, list):
        most = ITEMS_MOST.get(name, OTHERS_MOST)
        if len(change) > most:
            raise CodecError(f"{len(change)} {name or 'items'}, and no host has more than {most}")
        for item in change:
            if isinstance(item, list | dict):
                bounded(item, name)
    elif isinstance(change, dict):
        for key, value in change.items():
            if isinstance(value, list | dict):
                bounded(value, name if key == "=" or key.isdecimal() else key)
            elif key == "link" and isinstance(value, int) and not 0 <= value <= LINK_MOST:
                raise CodecError(f"a link with number {value}, and no GPU has more than {LINK_MOST + 1}")


class Slots:
    """The PCI addresses that a trace has named so far."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def add(self, slots: Iterable[str]) -> None:
        """Raises CodecError when there are more than any host ever had."""
        self._known.update(slots)
        if len(self._known) > SLOTS_MOST:
            raise CodecError(f"more than {SLOTS_MOST} PCI addresses, and no host has had as many")
