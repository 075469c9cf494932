"""The keys of `[black_box]`."""

from __future__ import annotations

from gpuwarden_collectors.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class BlackBoxOptions:
    """The black box ([black-box.md](../use/black-box.md))."""

    enabled: bool = True
    """Keep the last readings and events below `state.dir`, 8 MiB at most, and a copy of them for each of the last five failures."""


TABLES = {"black_box": BlackBoxOptions}
