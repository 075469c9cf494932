"""Reads and checks the host before a step, and again while its services are stopped."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import field

from gpuwarden.features.repair.helper import commands, obstacles
from gpuwarden.features.repair.helper.children import NoReading
from gpuwarden.features.repair.helper.gpus import read_bus, read_driver, read_holders
from gpuwarden.features.repair.helper.host import Host
from gpuwarden.features.repair.helper.notebook import Entry
from gpuwarden.features.repair.helper.obstacles import Seen
from gpuwarden.features.repair.helper.request import Request
from gpuwarden.features.repair.helper.services import UNITS, ServiceError, Services
from gpuwarden.features.repair.helper.settings import Settings
from gpuwarden.features.repair.helper.table import DISTURBS_JOBS, MODULES, ON_ALL_GPUS, STEPS
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.pci_facts import PciKind

_READERS = frozenset({*(unit for units in UNITS.values() for unit in units), "gpuwarden.service"})
"""Units that have GPUs open but run nothing on them."""


def stops_persistence_daemon(stopped: Collection[str]) -> bool:
    """Return True if the daemon for persistence mode is among these units: nvidia-smi need not end that mode then."""
    return bool(set(stopped) & set(UNITS["persistence"]))


class Refused(Exception):  # noqa: N818 - a decision
    """The step is not taken. The message says why."""


@dataclass(slots=True)
class Checks:
    """The checks of one step. `seen`: what was read of the host, if the step is about GPUs."""

    host: Host
    settings: Settings
    request: Request
    services: Services
    seen: Seen = field(default=Seen(driver=None, bus=(), fabric_manager=False), init=False)

    def planned(self) -> Entry:
        """Return the entry that the step begins with. Raises Refused."""
        try:
            return self._planned()
        except (NoReading, ServiceError) as error:
            raise Refused(str(error)) from error

    def unused(self, aside: Collection[str] = ()) -> None:
        """Check that nothing uses the step's GPUs but the units `aside`, and the fabric manager if one GPU is reset.
        Raises Refused, NoReading.
        """
        alone = self.request.step not in ON_ALL_GPUS
        beside = UNITS["fabric_manager"] if alone else ()
        if why := obstacles.in_use(
            self.slots if alone else None, self.seen, read_holders(self.host), (*aside, *beside)
        ):
            raise Refused(f"{'the GPU is' if alone else 'the GPUs are'} {why}")

    @property
    def slots(self) -> tuple[str, ...]:
        """Return the slots of the GPUs that the step affects."""
        if self.request.step == "reset_gpu":
            return (self.request.fields["slot"],)
        return tuple(function.slot for function in self.seen.bus if function.kind == PciKind.GPU)

    def _planned(self) -> Entry:
        step = self.request.step
        stopped: tuple[str, ...] = ()
        load: tuple[str, ...] = ()
        if step == "restart_service":
            self._check_restart(self.request.fields["service"])
        elif step != "reboot":
            self._see()
            stopped = self.services.running(STEPS[step].stops)
            self._check_gpus(stopped)
            load = commands.loaded(self.host, MODULES) if step == "reload_driver" else ()
        dependents = self.services.dependents(stopped)
        return Entry(
            id=self.request.id,
            step=step,
            subject=self.request.subject,
            begun=self.host.now(),
            boot=self.host.boot(),
            start=(*dependents, *stopped),
            load=load,
            persist=self._persistent(stopped),
        )

    def _check_restart(self, service: str) -> None:
        if not self.services.installed((service,)):
            raise Refused(f"no unit of {service} is installed here: {', '.join(UNITS[service])}")
        if service in DISTURBS_JOBS:
            self._see()
            clients = [holder for holder in read_holders(self.host) if holder.minors]
            if why := obstacles.in_use(None, self.seen, clients, _READERS):
                raise Refused(f"the GPUs are {why}")

    def _see(self) -> None:
        driver = None
        with suppress(NoReading):  # the bus names the GPUs, too
            driver = read_driver(self.host, self.settings.library)
        running = self.services.running(("fabric_manager",))
        self.seen = Seen(driver=driver, bus=read_bus(self.host), fabric_manager=bool(running))

    def _check_gpus(self, stopped: Collection[str]) -> None:
        slots, why = self.slots, ""
        if self.request.step == "reset_gpu":
            named = obstacles.mismatch(slots[0], self.request.fields["uuid"], self.seen)
            why = named or obstacles.not_alone(slots[0], self.seen)
        elif self.request.step == "reload_driver" and (others := commands.users_of_driver(self.host, MODULES)):
            why = f"the modules {', '.join(others)} use the driver, and are not known here: reboot the node"
        why = why or obstacles.by_setup(slots, self.seen, reset=self.request.step != "reload_driver")
        if why:
            raise Refused(why)
        self.unused(stopped)

    def _persistent(self, stopped: Collection[str]) -> tuple[str, ...]:
        """Return the slots of the GPUs that lose persistence mode: of all, if the step stops the daemon for it, which
        may start again without it (`--no-persistence-mode`, as in the unit of Ubuntu), else of those of the step.
        """
        if self.seen.driver is None or not STEPS[self.request.step].stops:
            return ()
        slots = [gpu.slot for gpu in self.seen.driver.gpus if gpu.persistent]
        return tuple(slot for slot in slots if slot in self.slots or stops_persistence_daemon(stopped))
