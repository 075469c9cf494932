"""A changed configuration under a running daemon: what is taken over at once, and what waits for a restart.

It is read as a whole and judged as a whole: with a fault anywhere nothing of it is taken over, and the old one stays.
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
"""What the judge, policy and the breaker get at once: whole tables, and of other tables these keys. Nothing else is read again."""
TAKEN_OVER = (*_TABLES, *(f"{table}.{name}" for table, names in _VALUES.items() for name in names))


class ReloadError(Exception):
    """The configuration cannot be used, or not be read. The message names every fault."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """`taken` and `waiting` are keys: what holds from now on, and what will after a restart."""

    rules: Rules
    taken: tuple[str, ...]
    waiting: tuple[str, ...]

    def __str__(self) -> str:
        parts = [f"taken over: {', '.join(self.taken)}"] if self.taken else []
        parts += [f"waiting for a restart: {', '.join(self.waiting)}"] if self.waiting else []
        return "; ".join(parts) or "nothing has changed"


def reloaded(rules: Rules, running: Config, latest: Config) -> Reloaded:
    """`running`: the configuration that is in force, `latest`: the one just read."""
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
    """The configuration after a reload: of the new one only what was taken over."""
    values = {table: _with(getattr(running, table), getattr(latest, table), names) for table, names in _VALUES.items()}
    tables = {table: getattr(latest, table) for table in _TABLES}
    return replace(running, **values, **tables, fault=latest.fault)


def _with(old: Any, new: Any, names: Iterable[str]) -> Any:
    return replace(old, **{name: getattr(new, name) for name in names})


def _differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """The keys, as far down as there are tables on both sides, at which the two differ."""
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
