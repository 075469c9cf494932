"""Reload of the configuration: which keys take effect in the running daemon, and which need a restart.

The new configuration is checked as a whole: if it has any fault, none of it is used, and the old one stays in force.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from gpuwarden.config.model import Config
from gpuwarden.health.view import Rules
from gpuwarden.policy.model import Budget, Settings
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.options import keys

_TABLES = ("checks", "expected", "xids", "sxids", "disk", "memory", "swap")
_VALUES: Mapping[str, tuple[str, ...]] = {
    "inventory": ("expected_gpus",),
    "policy": tuple(key.name for key in keys(Settings)),
    "jobs": ("stalled_after",),
    "breaker": (*(key.name for key in keys(Budget)), "recount_after"),
}
"""Keys of other tables that the judge, policy and the breaker get at once. All other keys need a restart."""
TAKEN_OVER = (*_TABLES, *(f"{table}.{name}" for table, names in _VALUES.items() for name in names))


class ReloadError(Exception):
    """The configuration cannot be read or used. The message names every fault."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The result of a reload. `taken`: changed keys that are in force from now on; `waiting`: those that need a
    restart.
    """

    rules: Rules
    taken: tuple[str, ...]
    waiting: tuple[str, ...]

    def __str__(self) -> str:
        parts = [f"taken over: {', '.join(self.taken)}"] if self.taken else []
        parts += [f"waiting for a restart: {', '.join(self.waiting)}"] if self.waiting else []
        return "; ".join(parts) or "nothing has changed"


def reloaded(rules: Rules, running: Config, latest: Config) -> Reloaded:
    """Return the new rules, and which changed keys are taken over. `running`: the configuration in force, `latest`: the
    new one.
    """
    changed = tuple(_differences(running, latest))
    taken = tuple(key for key in changed if key.partition(".")[0] in _TABLES or key in TAKEN_OVER)
    new = replace(
        rules,
        expected_gpus=latest.inventory.expected_gpus,
        expected=latest.expected,
        checks=latest.checks,
        xids=latest.xids,
        sxids=latest.sxids,
        limits=latest.limits,
        stalled_after=latest.jobs.stalled_after,
    )
    return Reloaded(new, taken, tuple(key for key in changed if key not in taken))


def in_force(running: Config, latest: Config) -> Config:
    """The configuration after a reload: `running`, with the keys that were taken over from `latest`."""
    values = {table: _with(getattr(running, table), getattr(latest, table), names) for table, names in _VALUES.items()}
    tables = {table: getattr(latest, table) for table in _TABLES}
    return replace(running, **values, **tables, fault=latest.fault)


def _with(old: Any, new: Any, names: Iterable[str]) -> Any:
    return replace(old, **{name: getattr(new, name) for name in names})


def _differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """The dotted keys at which the two differ, down to the level at which both have tables."""
    if old == new:
        return
    if type(old) is type(new) and is_dataclass(old):
        for field in (field for field in fields(old) if field.compare):
            yield from _differences(getattr(old, field.name), getattr(new, field.name), _below(path, field.name))
    elif isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            yield from _differences(old.get(key), new.get(key), _below(path, key))
    else:
        yield path


def _below(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
