"""The bounds that the keys of the configuration declare: each holds at both ends, and a fault names them."""

from __future__ import annotations

import linecache
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints
from weakref import getweakrefcount

import pytest

from gpuwarden.base.durations import format_duration
from gpuwarden.config.bounds import allowed, misfits
from gpuwarden.config.model import PARSERS, Config, ConfigError, load
from gpuwarden.config.sources import Layer, Sources, nested
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.options import Bounds, bounds, keys

NAMES = {"checks": "thermal_limit", "xids": "79", "sxids": "79"}
NEEDED: dict[str, dict[str, object]] = {
    "plugins": {"command": ["/bin/true"]}, "exec": {"command": ["/bin/true"]}, "webhook": {"url": "http://h.example"},
}  # fmt: skip
"""Keys without which a table of a site's own is a fault."""


def bounded_keys(table: type, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Bounds, type]]:
    """Yield the bounded keys of all tables below, with their path; a table that a site names may have any name."""
    hints = get_type_hints(table)
    for key in keys(table):
        kind, here = hints[key.name], (*path, key.name)
        limits = bounds(key)
        if limits is not None:
            yield (
                here,
                limits,
                next(number_type for number_type in (float, int) if number_type in (kind, *get_args(kind))),
            )
        elif get_origin(kind) is Mapping:
            yield from bounded_keys(get_args(kind)[1], (*here, NAMES.get(key.name, "one")))
        elif isinstance(kind, type) and is_dataclass(kind) and kind not in PARSERS:
            yield from bounded_keys(kind, here)


KEYS = tuple(bounded_keys(Config))


def faults(path: tuple[str, ...], value: float, kind: type) -> list[str]:
    """Return the faults of that key alone."""
    *table, name = path
    shown = format_duration(value) if kind is float else value
    entries = {**NEEDED.get(table[-2] if len(table) > 1 else "", {}), name: shown}
    try:
        load(Sources(file=None, overrides=(Layer("here", nested(table, entries)),)))
    except ConfigError as error:
        return [fault.message for fault in error.faults if fault.key == ".".join(path)]
    return []


def test_every_number_and_every_duration_has_bounds() -> None:
    assert len(KEYS) > 50

    def unbounded(table: Any, path: str = "") -> Iterator[str]:
        for key in keys(table):
            value = getattr(table, key.name)
            if is_dataclass(value) and type(value) not in PARSERS:
                yield from unbounded(value, f"{path}{key.name}.")
            elif isinstance(value, float | int) and not isinstance(value, bool) and bounds(key) is None:
                yield f"{path}{key.name}"

    assert list(unbounded(Config())) == []


def test_the_defaults_are_within_bounds() -> None:
    assert list(misfits(Config())) == []


def test_no_abstract_class_keeps_the_tables_that_were_checked() -> None:
    """A subclass of `Mapping` keeps a reference to each class that it was asked about: 3,800 in a daemon."""

    @dataclass(frozen=True, slots=True)
    class Table:
        key: tuple[str, ...] = ()

    before = getweakrefcount(Table)
    assert list(misfits(Table())) == []
    assert getweakrefcount(Table) == before


def test_the_text_of_generated_functions_is_not_kept() -> None:
    load(Sources(file=None))
    assert not [name for name, entry in linecache.cache.items() if name.startswith("<cattrs") and any(entry[2:3])]


@pytest.mark.slow
@pytest.mark.parametrize(("path", "limits", "kind"), KEYS, ids=[".".join(path) for path, _, _ in KEYS])
def test_what_is_outside_is_a_fault_that_names_the_bounds_and_why(
    path: tuple[str, ...], limits: Bounds, kind: type
) -> None:
    least, most, why = limits
    expected = f"expected {allowed(limits, kind)}, found "
    assert not any(message.startswith(expected) for value in (least, most) for message in faults(path, value, kind))
    step = 0.001 if kind is float else 1
    outside = [most + step, *([least - step] if kind is int or least > 0 else [])]
    for value in outside:
        (message,) = (message for message in faults(path, value, kind) if message.startswith(expected))
        assert message.endswith(f": {why}") or not why


def test_a_fault_has_the_file_the_key_and_what_to_type(tmp_path: Path) -> None:
    file = tmp_path / "gpuwarden.toml"
    file.write_text('[kubernetes]\ntimeout = "2m"\n[breaker]\npercent = 0\n')
    with pytest.raises(ConfigError) as caught:
        load(Sources(file=file))
    assert [str(replace(fault, line=0)) for fault in caught.value.faults] == [
        f"{file}: breaker.percent: expected 1 to 100, found 0: a share of the nodes that share the budget; one node is always allowed",
        f"{file}: kubernetes.timeout: expected 1s to 1m, found 2m: an API server that hangs must not delay pending actions",
    ]
