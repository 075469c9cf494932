"""Keys and values of the configuration that are gone.

For one release they are ignored, with a warning and the finding `config_outdated`, so that no daemon stops at its upgrade. With the
next release their row goes, and what it names is a fault like any other unknown key or value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuwarden.config.sources import Fault, KeyPath, Origins, Tree


@dataclass(frozen=True, slots=True)
class Removed:
    """`values`: those values of the key that are gone; None: the key itself. `instead`: what holds now, for the operator."""

    path: KeyPath
    values: tuple[str, ...] | None
    instead: str


REMOVED = (
    Removed(
        ("slurm", "on_stale"), ("drain",),
        'it acts as "ignore": no second process drains for a daemon that is silent; alert on GpuwardenNodeSilent, or set "refuse"',
    ),
    Removed(("slurm", "stale_grace"), None, 'it was for on_stale = "drain", which is gone; delete it'),
    Removed(
        ("dstack", "stop_shim_when_idle"), None,
        "dstack's agent is no longer stopped; where it still is (/run/gpuwarden/excluded/dstack_shim is there): "
        "systemctl start dstack-shim; the interposer reports the health of this node to dstack: docs/use/dstack.md",
    ),
)  # fmt: skip


def without_removed(tree: Tree, origins: Origins) -> tuple[Tree, list[Fault]]:
    """The tree without what is gone, which leaves `origins` too, and a warning for each key or value that was in it."""
    warnings = []
    for row in REMOVED:
        found = _at(tree, row.path)
        if found is None or (row.values is not None and found not in row.values):
            continue
        tree = _without(tree, row.path)
        what = "this key no longer exists" if row.values is None else f"{found!r} no longer exists"
        origin = origins.pop(row.path, "")
        warnings.append(Fault(origin, ".".join(row.path), f"{what} and is ignored: {row.instead}"))
    return tree, warnings


def _at(tree: Mapping[str, Any], path: KeyPath) -> Any:
    """None where there is no such key; TOML has no null."""
    value: Any = tree
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def _without(tree: Tree, path: KeyPath) -> Tree:
    first, *rest = path
    if not rest:
        return {name: value for name, value in tree.items() if name != first}
    return {**tree, first: _without(tree[first], tuple(rest))}
