"""The keys of what is read of the host beside its GPUs: `[collectors.infiniband]` and its like, and the site checks.

Durations in seconds. `host_misfits` names values that are of the right kind and yet dangerous, by their keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpuwarden.base.durations import format_duration

Misfit = tuple[tuple[str, ...], str]


@dataclass(frozen=True, slots=True)
class InfinibandOptions:
    """`exclude`: shell patterns of device names, as in `mlx5_[45]`: not read, and forgotten if they were ever up."""

    enabled: bool = True
    interval: float = 10.0
    deadline: float = 10.0
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """`expected`: mount points that must be there. `patience`: how long a mount may take to answer before it hangs."""

    enabled: bool = True
    interval: float = 30.0
    deadline: float = 20.0
    patience: float = 5.0
    expected: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    enabled: bool = True
    interval: float = 30.0
    deadline: float = 10.0


@dataclass(frozen=True, slots=True)
class ProcessesOptions:
    enabled: bool = True
    interval: float = 60.0
    deadline: float = 20.0


@dataclass(frozen=True, slots=True)
class ServicesOptions:
    """`expected`: units that must run here, besides those of the driver that are enabled."""

    enabled: bool = True
    interval: float = 30.0
    deadline: float = 10.0
    expected: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PluginOptions:
    """How the site checks are run, all of them. `limit`: how many at a time.

    `runner`: a socket on which somebody else runs them, as the unit of systemd has it; empty: they are the daemon's children.
    """

    enabled: bool = True
    limit: int = 3
    runner: str = ""


@dataclass(frozen=True, slots=True)
class SiteCheck:
    """One table `[plugins.NAME]`. `command`: the program, by its whole path, and its arguments; no shell reads it.

    The codes are exit codes: 0 is ok, and what is in neither list is unknown.
    """

    command: tuple[str, ...] = ()
    enabled: bool = True
    interval: float = 60.0
    timeout: float = 30.0
    warning_codes: tuple[int, ...] = (1,)
    failure_codes: tuple[int, ...] = (2,)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """All of it together, for `host_readers.host_sources`. `plugins`: the site checks by name."""

    infiniband: InfinibandOptions = field(default_factory=InfinibandOptions)
    storage: StorageOptions = field(default_factory=StorageOptions)
    memory: MemoryOptions = field(default_factory=MemoryOptions)
    processes: ProcessesOptions = field(default_factory=ProcessesOptions)
    services: ServicesOptions = field(default_factory=ServicesOptions)
    plugin: PluginOptions = field(default_factory=PluginOptions)
    plugins: Mapping[str, SiteCheck] = field(default_factory=dict)


THREADED = ("infiniband", "storage", "memory", "processes", "services")
PLUGINS_MOST = 64
_PLUGIN_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_TAKEN = ("failed",)  # plugin_failed is the check that tells of broken ones
_BOUNDS: tuple[tuple[str, float, float], ...] = (("interval", 1.0, 60.0), ("deadline", 0.1, 60.0))


def switched_off(options: HostOptions) -> tuple[str, ...]:
    """The collectors of the host that are not enabled (site checks that are not run are just not there)."""
    return tuple(name for name in THREADED if not getattr(options, name).enabled)


def host_misfits(options: HostOptions) -> Iterator[Misfit]:
    for name in THREADED:
        table = getattr(options, name)
        for key, least, most in _BOUNDS:
            yield from _outside(f"collectors.{name}.{key}", getattr(table, key), least, most)
    yield from _storage_misfits(options.storage)
    for unit in options.services.expected:
        if not unit or unit.startswith("-") or not unit.isprintable() or " " in unit:
            yield ("collectors.services.expected",), f"expected names of systemd units, found {unit[:60]!r}"
    if not 1 <= options.plugin.limit <= 16:
        yield ("collectors.plugin.limit",), f"expected 1 to 16, found {options.plugin.limit}"
    if options.plugin.runner and not options.plugin.runner.startswith("/"):
        yield (
            ("collectors.plugin.runner",),
            f"expected the whole path of a socket, found {options.plugin.runner[:60]!r}",
        )
    if len(options.plugins) > PLUGINS_MOST:
        yield ("plugins",), f"expected at most {PLUGINS_MOST} site checks, found {len(options.plugins)}"
    for name, check in options.plugins.items():
        yield from _check_misfits(name, check)


def _storage_misfits(storage: StorageOptions) -> Iterator[Misfit]:
    yield from _outside("collectors.storage.patience", storage.patience, 0.1, 60.0)
    if storage.patience >= storage.deadline:
        found = f"{format_duration(storage.patience)} beside {format_duration(storage.deadline)}"
        yield (
            ("collectors.storage.patience", "collectors.storage.deadline"),
            f"expected patience to be shorter than deadline, found {found}: one mount that hangs must not hide the others",
        )
    for path in storage.expected:
        if not path.startswith("/") or "\0" in path:
            yield ("collectors.storage.expected",), f"expected absolute paths, found {path[:60]!r}"


def _check_misfits(name: str, check: SiteCheck) -> Iterator[Misfit]:
    here = f"plugins.{name}"
    if name in _TAKEN:
        yield (here,), f"expected another name: the check plugin_{name} is one of ours"
    elif not _PLUGIN_NAME.fullmatch(name):
        yield (
            (here,),
            "expected a name of lower-case letters, digits and _ such as nhc, since it becomes the check plugin_nhc",
        )
    if not check.command or not check.command[0].startswith("/"):
        found = repr(check.command[0][:60]) if check.command else "nothing"
        yield (
            (f"{here}.command",),
            f'expected a list that begins with the whole path of a program, such as ["/usr/sbin/nhc"], found {found}',
        )
    elif any("\0" in word for word in check.command):
        yield (f"{here}.command",), "expected words without a zero byte: no program can be given one"
    yield from _outside(f"{here}.interval", check.interval, 1.0, 86400.0)
    yield from _outside(f"{here}.timeout", check.timeout, 0.1, 3600.0)
    codes = (*check.warning_codes, *check.failure_codes)
    if any(not 1 <= code <= 255 for code in codes):
        yield (
            (f"{here}.warning_codes", f"{here}.failure_codes"),
            f"expected exit codes from 1 to 255, found {_few(codes)}",
        )
    both = sorted(set(check.warning_codes) & set(check.failure_codes))
    if both:
        yield (
            (f"{here}.warning_codes", f"{here}.failure_codes"),
            f"expected each exit code in one list at most, found {_few(both)} in both",
        )


def _outside(key: str, value: float, least: float, most: float) -> Iterator[Misfit]:
    if not least <= value <= most:
        allowed = f"{format_duration(least)} to {format_duration(most)}"
        yield (key,), f"expected {allowed}, found {format_duration(value)}"


def _few(codes: tuple[int, ...] | list[int]) -> str:
    return ", ".join(str(code)[:12] for code in codes[:8])
