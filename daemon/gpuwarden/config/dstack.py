"""The keys of `[dstack]`: whether dstack is told of this node, where its own agent is found, and whether that may be stopped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuwarden.base.addresses import Address

Misfit = tuple[tuple[str, ...], str]

SERVED = Address("127.0.0.1", 10998)
"""Where dstack's server asks its agent, the shim, of every host (dstack 0.22: a constant there)."""
SHIM = Address("127.0.0.1", 10996)
"""Where the shim is moved to. dstack itself uses 10022 and 10997 to 10999."""


@dataclass(frozen=True, slots=True)
class DstackOptions:
    """`enabled`: a marker says whether this node is held out; what answers dstack goes by it.

    `shim`: where dstack's own agent listens, since we listen in its place. `stop_shim_when_idle`: for hosts where we do not:
    that agent is stopped while the node is held out and no job is on it.
    """

    enabled: bool = False
    shim: Address = SHIM
    stop_shim_when_idle: bool = False


def asked_at(options: DstackOptions) -> Address:
    """Where dstack's agent listens."""
    return options.shim if options.enabled else SERVED


def dstack_misfits(options: DstackOptions) -> Iterator[Misfit]:
    """Values that are of the right kind and yet wrong, by their keys."""
    if options.shim.port in (0, SERVED.port):
        why = "that is where dstack's server asks, and where we answer" if options.shim.port else "it must be known"
        yield ("dstack.shim",), f"expected the address to which the shim was moved, found {options.shim}: {why}"
    if options.stop_shim_when_idle and asked_at(options).host != SERVED.host:
        why = "beside dstack.stop_shim_when_idle, which holds connections to it back by their address"
        yield ("dstack.shim",), f"expected an address of {SERVED.host} {why}, found {options.shim}"
