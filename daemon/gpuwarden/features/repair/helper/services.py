"""NVIDIA's services on this host, through systemctl: which run, and how they are stopped, started and restarted."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from gpuwarden.features.repair.helper.host import Host
from gpuwarden.features.repair.helper.programs import Ended

UNITS: Mapping[str, tuple[str, ...]] = {
    "dcgm_exporter": ("dcgm-exporter.service", "nvidia-dcgm-exporter.service"),
    "dcgm": ("nvidia-dcgm.service", "dcgm.service"),
    "imex": ("nvidia-imex.service",),
    "fabric_manager": ("nvidia-fabricmanager.service",),
    "persistence": ("nvidia-persistenced.service",),
}
"""Units of each service, by the names in NVIDIA's packages (`dcgm.service` before DCGM 2.1), in the order in which they
are stopped; they are started in the reverse order."""
STOP_WITHIN = 95.0
"""Seconds: systemd itself kills a service after 90."""
START_WITHIN = 300.0
"""Seconds. The fabric manager trains the links of 16 GPUs before it is up."""
ASK_WITHIN = 20.0
_RUNNING = ("active", "activating", "reloading")
_DEPENDENT = ("RequiredBy", "BoundBy", "ConsistsOf")
"""Units that systemd stops with a unit and does not start with it again."""


class ServiceError(Exception):
    """systemctl failed. The message says what it should do, for which unit, and why."""


class Services:
    """Calls systemctl, which keeps `held`, an open lock, while it runs."""

    def __init__(self, host: Host, held: int | None) -> None:
        self._host, self._held = host, held

    def installed(self, names: Collection[str]) -> dict[str, str]:
        """Return the state of each unit of these services that is installed. Raises ServiceError."""
        units = [unit for name, own in UNITS.items() if name in names for unit in own]
        return {unit: block["ActiveState"] for unit, block in self._show(units) if block["LoadState"] == "loaded"}

    def running(self, names: Collection[str]) -> tuple[str, ...]:
        """Return the units of these services that run, in the order in which they are stopped. Raises ServiceError."""
        return tuple(unit for unit, state in self.installed(names).items() if state in _RUNNING)

    def dependents(self, units: Sequence[str]) -> tuple[str, ...]:
        """Return the running services that systemd stops with these units, such as a slurmd that requires one of them,
        and those that it stops with a slurmd. Raises ServiceError.
        """
        all_units, blocks, running = set(units), list(self._show(units)), set[str]()
        while named := sorted(
            {unit for _, block in blocks for key in _DEPENDENT for unit in block.get(key, "").split()} - all_units
        ):
            blocks = list(self._show(named))
            all_units.update(named)
            running.update(
                unit for unit, block in blocks if unit.endswith(".service") and block["ActiveState"] in _RUNNING
            )
        return tuple(sorted(running))

    def stop(self, unit: str) -> None:
        self._do("stop", unit, STOP_WITHIN)

    def start(self, unit: str) -> None:
        self._do("start", unit, START_WITHIN)

    def restart(self, unit: str) -> None:
        self._do("restart", unit, START_WITHIN)

    def _do(self, verb: str, unit: str, within: float) -> None:
        if (ended := self._systemctl(within, verb, unit)).code != 0:
            raise ServiceError(f"systemctl {verb} {unit}: {ended.why}")

    def _show(self, units: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
        if not units:
            return
        keys = ",".join(("Id", "LoadState", "ActiveState", *_DEPENDENT))
        ended = self._systemctl(ASK_WITHIN, "show", f"--property={keys}", *units)
        blocks = [dict(line.partition("=")[::2] for line in block.splitlines()) for block in ended.output.split("\n\n")]
        if ended.code != 0 or len(blocks) != len(units) or not all("ActiveState" in block for block in blocks):
            raise ServiceError(f"cannot read the states of {', '.join(units)}: systemctl show: {ended.why}")
        yield from ((block.get("Id", unit), block) for unit, block in zip(units, blocks, strict=True))

    def _systemctl(self, within: float, *words: str) -> Ended:
        program = self._host.program("systemctl") or "systemctl"
        command = (program, "--no-ask-password", "--no-pager", *words)
        return self._host.run(command, within, self._held)
