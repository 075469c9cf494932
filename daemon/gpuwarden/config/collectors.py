"""The keys of `[collectors]`, with a table for each collector, and of the site checks.

`plugin_misfits` reports values that have the right type but are dangerous, by their keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.dcgm.options import DcgmOptions
from gpuwarden_collectors.nvml.options import NvmlOptions
from gpuwarden_collectors.options import Misfit, PolledOptions, bounded, with_tables
from gpuwarden_collectors.plugin.options import PluginOptions, SiteCheck
from gpuwarden_collectors.registry import HOST_COLLECTORS
from gpuwarden_collectors.spec import CollectorSpec, Options


@dataclass(frozen=True, slots=True)
class KernelLogOptions:
    """The kernel log: Xids and other events of the driver, failing devices, and processes killed for lack of memory."""

    enabled: bool = True
    """Read this source."""


@dataclass(frozen=True, slots=True)
class PciOptions(PolledOptions):
    """The PCI bus: which GPUs are on it, and their links."""

    interval: float = bounded(10.0, 0.1, 30.0, "a missing GPU must be detected within 30s")
    deadline: float = bounded(10.0, 0.1, 60.0, "a bus that hangs must be reported")


@dataclass(frozen=True, slots=True)
@with_tables({spec.name: spec.options for spec in HOST_COLLECTORS})
class Collectors:
    """What is read of this host."""

    nvml: NvmlOptions = field(default_factory=NvmlOptions)
    kernel_log: KernelLogOptions = field(default_factory=KernelLogOptions)
    pci: PciOptions = field(default_factory=PciOptions)
    dcgm: DcgmOptions = field(default_factory=DcgmOptions)
    plugin: PluginOptions = field(default_factory=PluginOptions)

    def of(self, spec: CollectorSpec[Any, Options]) -> Options:
        """The table of a host collector."""
        options: Options = getattr(self, spec.name)
        return options

    @property
    def off(self) -> tuple[str, ...]:
        """The disabled host collectors (disabled site checks are omitted)."""
        return tuple(spec.name for spec in HOST_COLLECTORS if not self.of(spec).enabled)


PLUGINS_MOST = 64
_PLUGIN_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_TAKEN = ("failed",)  # plugin_failed is the check that reports broken ones


def plugin_misfits(runner: str, plugins: Mapping[str, SiteCheck]) -> Iterator[Misfit]:
    if runner and not runner.startswith("/"):
        yield ("collectors.plugin.runner",), f"expected the whole path of a socket, found {runner[:60]!r}"
    if len(plugins) > PLUGINS_MOST:
        yield ("plugins",), f"expected at most {PLUGINS_MOST} site checks, found {len(plugins)}"
    for name, check in plugins.items():
        yield from _check_misfits(name, check)


def _check_misfits(name: str, check: SiteCheck) -> Iterator[Misfit]:
    here = f"plugins.{name}"
    if name in _TAKEN:
        yield (here,), f"expected another name: the check plugin_{name} is one of gpuwarden's own"
    elif not _PLUGIN_NAME.fullmatch(name):
        message = (
            "expected a name of lower-case letters, digits and _ such as nhc, since it becomes the check plugin_nhc"
        )
        yield (here,), message
    if not check.command or not check.command[0].startswith("/"):
        program = repr(check.command[0][:60]) if check.command else "nothing"
        message = (
            f'expected a list that begins with the whole path of a program, such as ["/usr/sbin/nhc"], found {program}'
        )
        yield (f"{here}.command",), message
    elif any("\0" in word for word in check.command):
        yield (f"{here}.command",), "expected words without a zero byte: no argument can contain one"
    codes = (*check.warning_codes, *check.failure_codes)
    if any(not 1 <= code <= 255 for code in codes):
        message = f"expected exit codes from 1 to 255, found {_few(codes)}"
        yield (f"{here}.warning_codes", f"{here}.failure_codes"), message
    both = sorted(set(check.warning_codes) & set(check.failure_codes))
    if both:
        message = f"expected each exit code in one list at most, found {_few(both)} in both"
        yield (f"{here}.warning_codes", f"{here}.failure_codes"), message


def _few(codes: tuple[int, ...] | list[int]) -> str:
    return ", ".join(str(code)[:12] for code in codes[:8])
