"""The keys of `[bundle]`: archives for the vendor of a failed part that the daemon asks for."""

from __future__ import annotations

from pathlib import Path

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.options import bounded


@dataclass(frozen=True, slots=True)
class BundleOptions:
    """Archives for the vendor of a failed part, made at a failure ([bundle.md](../use/bundle.md)). `gpuwarden bundle` by hand needs no key."""

    on_failure: bool = False
    """Make an archive at each new failure, before anything is repaired. It needs `gpuwarden-bundle.socket` ([bundle.md](../use/bundle.md#at-a-failure))."""
    keep: int = bounded(5, 1, 100, "each takes up to 64 MiB")
    """How many of these archives are kept. Older ones are removed when a new one is made."""
    socket: Path = Path("/run/gpuwarden-bundle.sock")
    """The socket of the service that makes the archives as root."""


TABLES = {"bundle": BundleOptions}
