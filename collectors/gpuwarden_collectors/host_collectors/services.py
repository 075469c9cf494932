"""Services that a GPU node needs, from one call of `systemctl show`.

A unit that is not installed has the state `not-found`. systemd reports an alias under the name of its unit, so a unit
that is queried under both names (`dcgm.service` is `nvidia-dcgm.service`) is reported once.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpuwarden_collectors.base import CollectorError, SourceAbsent
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.host_facts import ServiceFacts, ServicesFacts
from gpuwarden_collectors.host_files import number
from gpuwarden_collectors.options import Misfit, PolledOptions
from gpuwarden_collectors.spec import CollectorSpec

UNITS = (
    "nvidia-fabricmanager.service",
    "nvidia-persistenced.service",
    "nvidia-dcgm.service",
    "dcgm.service",  # its name up to DCGM 2
    "nvidia-imex.service",
)
_PROPERTIES = "Id,LoadState,ActiveState,SubState,Result,UnitFileState,NRestarts"
_TYPES = (".service", ".socket", ".mount", ".timer", ".target", ".path", ".automount", ".swap", ".slice", ".scope")
_ENABLED = ("enabled", "enabled-runtime")
_UNSET = 2**64 - 1  # systemd's value for an unset number


_OF_DEADLINE = 0.5
"""Share of the deadline for systemctl, so that its own error is reported and not a missed deadline."""


@dataclass(frozen=True, slots=True)
class ServicesOptions(PolledOptions):
    """Services of systemd."""

    expected: tuple[str, ...] = ()
    """Units that must run on this host, besides the driver's own units, which must run if they are enabled."""

    def misfits(self) -> Iterator[Misfit]:
        for unit in self.expected:
            if not unit or unit.startswith("-") or not unit.isprintable() or " " in unit:
                yield ("expected",), f"expected names of systemd units, found {unit[:60]!r}"


class ServicesCollector:
    """Queries `units`, which a GPU node may have, and `configured`, which this node must have.

    `run`: /run, which contains `systemd/system` if and only if systemd is running (sd_booted(3)). `timeout`: seconds
    for the call.
    """

    def __init__(
        self,
        *,
        configured: Sequence[str] = (),
        units: Sequence[str] = UNITS,
        command: Sequence[str] = ("systemctl",),
        run: Path = Path("/run"),
        timeout: float = 5.0,
    ) -> None:
        self._configured = frozenset(map(_unit, configured))
        self._units = tuple(dict.fromkeys((*map(_unit, configured), *units)))
        self._command = command
        self._booted = run / "systemd/system"
        self._timeout = timeout

    def read(self) -> ServicesFacts:
        """Returns the units that are installed or configured, in the order of the query.

        Raises SourceAbsent if systemd is not running, and CollectorError if it does not answer.
        """
        if not self._booted.is_dir():
            raise SourceAbsent(f"no services: {self._booted} does not exist, so this host does not run systemd")
        blocks = [block for block in self._show().split("\n\n") if block.strip()]
        if len(blocks) != len(self._units):
            raise CollectorError(
                f"cannot read services: systemctl answered for {len(blocks)} units, asked for {len(self._units)}"
            )
        by_unit: dict[str, ServiceFacts] = {}
        for asked, block in zip(self._units, blocks, strict=True):
            facts = _service(asked, block, configured=asked in self._configured)
            if facts.installed or facts.configured:
                by_unit.setdefault(facts.unit, facts)
        return ServicesFacts(services=tuple(by_unit.values()))

    def _show(self) -> str:
        command = (*self._command, "show", f"--property={_PROPERTIES}", "--", *self._units)
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "SYSTEMD_COLORS": "0"}
        try:
            done = subprocess.run(  # noqa: S603 - no shell, and every argument is fixed or from the configuration
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self._timeout,
                env=environment,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CollectorError(
                f"cannot read services: {command[0]} has not answered within {self._timeout:g} s; is systemd stuck?"
            ) from error
        except OSError as error:
            raise CollectorError(f"cannot read services: {command[0]} does not start: {error.strerror}") from error
        if done.returncode != 0:
            complaint = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0][:200]
            raise CollectorError(f"cannot read services: {command[0]} ended with {done.returncode}: {complaint}")
        return done.stdout.decode("utf-8", "replace")


def _unit(name: str) -> str:
    """Returns the name of a unit; a bare name is a service, as for systemctl."""
    return name if name.endswith(_TYPES) else f"{name}.service"


def _service(asked: str, block: str, *, configured: bool) -> ServiceFacts:
    properties = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
    restarts = number(properties.get("NRestarts", ""))
    return ServiceFacts(
        unit=properties.get("Id") or asked,
        configured=configured,
        load=properties.get("LoadState", ""),
        active=properties.get("ActiveState", ""),
        sub=properties.get("SubState", ""),
        result=properties.get("Result", ""),
        enabled=properties.get("UnitFileState") in _ENABLED,
        restarts=None if restarts == _UNSET else restarts,
    )


SPEC = CollectorSpec(
    facts=ServicesFacts,
    options=ServicesOptions,
    reader=lambda _, options: ServicesCollector(configured=options.expected, timeout=options.deadline * _OF_DEADLINE),
    source="`systemctl show` of fabric manager, persistence daemon, DCGM, IMEX and configured units",
    limits="a thread with a deadline; 5 s for systemctl",
)
