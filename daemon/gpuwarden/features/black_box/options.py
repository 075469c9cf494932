"""The keys of `[black_box]`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpuwarden.features import Excludes
from gpuwarden_collectors.dataclass import dataclass

if TYPE_CHECKING:
    from gpuwarden.config.model import Config
    from gpuwarden_collectors.options import Misfit


@dataclass(frozen=True, slots=True)
class BlackBoxOptions:
    """The black box ([black-box.md](../use/black-box.md))."""

    enabled: bool = True
    """Keep the last readings and events below `state.dir`, 8 MiB at most, and a copy of them for each of the last five failures."""


def misfits(_: Config) -> Iterator[Misfit]:
    """Yield nothing: any value of these keys fits the others."""
    return iter(())


def excludes(_: Config) -> Excludes:
    return Excludes.NOT


TABLES = {"black_box": BlackBoxOptions}
