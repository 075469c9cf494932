"""Log rules of a real packet filter, in a network namespace of our own, that write to the kernel log of this host."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ALL_NAMESPACES = Path("/proc/sys/net/netfilter/nf_log_all_netns")
PREFIX_MOST = {"iptables-legacy": 29, "nft": 127}
"""By command: characters that a rule may print of its own."""

_SEND = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))"
_RULES = {
    "iptables-legacy": 'iptables-legacy -A OUTPUT -j LOG --log-prefix "$PREFIX"',
    "nft": 'nft "add table inet t; add chain inet t o { type filter hook output priority 0; }; '
    'add rule inet t o log prefix \\"$PREFIX\\""',
}


def require(command: str) -> None:
    """Skips the test where this packet filter cannot log from a namespace, naming what is missing."""
    missing = [name for name in (command, "unshare", "ip") if shutil.which(name) is None]
    if missing or not ALL_NAMESPACES.exists():
        pytest.skip(f"no log rule of a real packet filter: missing {', '.join(missing) or ALL_NAMESPACES}")


@contextmanager
def logging_allowed() -> Iterator[None]:
    """Rules of all namespaces write to the kernel log, as those of the host's own always do."""
    before = ALL_NAMESPACES.read_text()
    ALL_NAMESPACES.write_text("1\n")
    try:
        yield
    finally:
        ALL_NAMESPACES.write_text(before)


def log_a_packet(command: str, prefix: str) -> None:
    """Send one packet in a namespace that ends with it, so that the rule logs it."""
    script = f'ip link set lo up && {_RULES[command]} && python3 -c "{_SEND}"'
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", script],
        env={**os.environ, "PREFIX": prefix}, check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"{command} can set no log rule here: {done.stderr.strip()[-300:]}")
