"""The rules for clients from a web-config file (read by config.py). By default every client is served, without TLS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from gpuwarden.config.sources import Fault
from gpuwarden.publish.web.files import Print
from gpuwarden.publish.web.tls import Tls
from gpuwarden_collectors.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A token bucket: `burst` requests at once, one more every `interval` seconds. 0 seconds: no limit."""

    interval: float = 0.0
    burst: int = 0


@dataclass(frozen=True, slots=True)
class WebConfig:
    """The rules for every connection. `files`: fingerprints of all files that were read."""

    tls: Tls | None = None
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    rate_limit: RateLimit = field(default_factory=RateLimit)
    files: Mapping[Path, Print] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def opened_by(self, new: WebConfig) -> str:
        """Return the protection that `new` would drop, or "". A partially written file may appear to drop it."""
        if self.tls is not None and new.tls is None:
            return "TLS"
        if self.users and not new.users:
            return "basic auth"
        if self.tls is not None and new.tls is not None:
            if self.tls.verifies and not new.tls.verifies:
                return "client certificates"
            if self.tls.allowed_sans and not new.tls.allowed_sans:
                return "client_allowed_sans"
        return ""


class WebConfigError(Exception):
    """The web-config file cannot be used. `faults` has at least one; `files` are those that were read."""

    def __init__(self, faults: list[Fault], files: Mapping[Path, Print]) -> None:
        super().__init__("; ".join(map(str, faults)))
        self.faults = faults
        self.files = files
