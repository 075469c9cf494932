"""TCP addresses in text form."""

from __future__ import annotations

import errno
from dataclasses import dataclass

ADDRESS = 'host:port or [v6]:port, such as "0.0.0.0:9839"'
ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""What the kernel says of an address of IPv6 where that is switched off; /etc/hosts may give it to localhost all the same."""


@dataclass(frozen=True, slots=True)
class Address:
    """A TCP address to listen on. Port 0: any free port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse `host:port` or `[v6]:port`. Raises ValueError."""
        host, colon, port = text.rpartition(":")
        bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        sound = bare.isprintable() and not set(bare) & set("[]/ ") and (":" in bare) == (bare != host)
        if not (
            colon and bare and sound and port.isascii() and port.isdigit() and len(port) <= 5 and int(port) < 65536
        ):
            raise ValueError(f"expected {ADDRESS}, found {text[:60]!r}")
        return cls(bare, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
