"""The keys of what is read of the host beside its GPUs: `[collectors.infiniband]` and its like, and the site checks.

`host_misfits` names values that are of the right kind and yet dangerous, by their keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpuwarden.base.durations import format_duration
from gpuwarden.config.bounds import Misfit
from gpuwarden_collectors.options import bounded


@dataclass(frozen=True, slots=True)
class InfinibandOptions:
    """InfiniBand and RoCE ports of the host."""

    enabled: bool = True
    """Read them."""
    interval: float = bounded(10.0, 1.0, 60.0)
    """Time between two passes."""
    deadline: float = bounded(10.0, 0.1, 60.0)
    """Time for a pass."""
    exclude: tuple[str, ...] = ()
    """Shell patterns of device names, as in `mlx5_[45]`: not read, and forgotten if they were ever up."""


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Mounts of the host."""

    enabled: bool = True
    """Read them."""
    interval: float = bounded(30.0, 1.0, 60.0)
    """Time between two passes."""
    deadline: float = bounded(20.0, 0.1, 60.0)
    """Time for a pass."""
    patience: float = bounded(5.0, 0.1, 60.0)
    """How long a mount may take to answer before it counts as hung. Shorter than `deadline`."""
    expected: tuple[str, ...] = ()
    """Mount points that must be there."""


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """Memory of the host and its errors."""

    enabled: bool = True
    """Read it."""
    interval: float = bounded(30.0, 1.0, 60.0)
    """Time between two passes."""
    deadline: float = bounded(10.0, 0.1, 60.0)
    """Time for a pass."""


@dataclass(frozen=True, slots=True)
class ProcessesOptions:
    """Processes that hang in the kernel, or hold a GPU after their job."""

    enabled: bool = True
    """Read them."""
    interval: float = bounded(60.0, 1.0, 60.0)
    """Time between two passes."""
    deadline: float = bounded(20.0, 0.1, 60.0)
    """Time for a pass."""


@dataclass(frozen=True, slots=True)
class ServicesOptions:
    """Units of systemd."""

    enabled: bool = True
    """Read them."""
    interval: float = bounded(30.0, 1.0, 60.0)
    """Time between two passes."""
    deadline: float = bounded(10.0, 0.1, 60.0)
    """Time for a pass."""
    expected: tuple[str, ...] = ()
    """Units that must run here, besides those of the driver that are enabled."""


@dataclass(frozen=True, slots=True)
class PluginOptions:
    """How the site checks `[plugins.NAME]` are run, all of them."""

    enabled: bool = True
    """Run them."""
    limit: int = bounded(3, 1, 16)
    """How many run at a time."""
    runner: str = ""
    """A socket on which another service runs them, as the unit of systemd has it. Empty: they are the daemon's children."""


@dataclass(frozen=True, slots=True)
class SiteCheck:
    """A site check: a program whose exit code is a verdict ([site-checks.md](site-checks.md))."""

    command: tuple[str, ...] = ()
    """The program, by its whole path, and its arguments; no shell reads it."""
    enabled: bool = True
    """Run it."""
    interval: float = bounded(60.0, 1.0, 86_400.0)
    """Time between two runs."""
    timeout: float = bounded(30.0, 0.1, 3_600.0)
    """Time for a run."""
    warning_codes: tuple[int, ...] = (1,)
    """Exit codes that are a warning."""
    failure_codes: tuple[int, ...] = (2,)
    """Exit codes that are a failure. 0 is ok, and what is in neither list is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """All of it together, for `host_collectors.host_sources`. `plugins`: the site checks by name."""

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


def switched_off(options: HostOptions) -> tuple[str, ...]:
    """The collectors of the host that are not enabled (site checks that are not run are just not there)."""
    return tuple(name for name in THREADED if not getattr(options, name).enabled)


def host_misfits(options: HostOptions) -> Iterator[Misfit]:
    yield from _storage_misfits(options.storage)
    for unit in options.services.expected:
        if not unit or unit.startswith("-") or not unit.isprintable() or " " in unit:
            yield ("collectors.services.expected",), f"expected names of systemd units, found {unit[:60]!r}"
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


def _few(codes: tuple[int, ...] | list[int]) -> str:
    return ", ".join(str(code)[:12] for code in codes[:8])
