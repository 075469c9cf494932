"""The keys of `[dstack]`: whether the health of this node is reported to dstack, and where dstack's own agent listens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwarden.base.addresses import Address
from gpuwarden.features import Excludes

if TYPE_CHECKING:  # the interposer is a small process and reads these keys alone
    from gpuwarden.config.model import Config
    from gpuwarden_collectors.options import Misfit

SERVED = Address("127.0.0.1", 10998)
"""Where dstack's server calls its agent, the shim, on every host (dstack 0.22: a constant there)."""
SHIM = Address("127.0.0.1", 10996)
"""Where the shim is moved to. dstack itself uses 10022 and 10997 to 10999."""


@dataclass(frozen=True, slots=True)
class DstackOptions:
    """dstack ([dstack.md](../use/dstack.md))."""

    enabled: bool = False
    """Exclude this node in dstack: the daemon writes a marker while the node is excluded, and `gpuwarden dstack-interposer` then reports failure to
    dstack's server.
    """
    shim: Address = SHIM
    """Where dstack's own agent (the shim) listens. gpuwarden listens at the shim's usual address, port 10998."""


def misfits(config: Config) -> Iterator[Misfit]:
    """Yield values that have the right type but are wrong, by their keys."""
    options = config.of(DstackOptions)
    if options.shim.port in (0, SERVED.port):
        why = "that is where dstack's server asks and gpuwarden answers" if options.shim.port else "it must be known"
        yield ("dstack.shim",), f"expected the address to which the shim was moved, found {options.shim}: {why}"


def excludes(config: Config) -> Excludes:
    return Excludes.BY_MARKER if config.of(DstackOptions).enabled else Excludes.NOT


TABLES = {"dstack": DstackOptions}
