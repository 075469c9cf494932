"""Carries out one step, from request to result: checks, stops, runs the command, puts back, and checks again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace

from gpuwarden.features.repair.helper import commands
from gpuwarden.features.repair.helper.checks import Checks, Refused, stops_persistence_daemon
from gpuwarden.features.repair.helper.children import NoReading
from gpuwarden.features.repair.helper.commands import CommandFailed, NothingOrdered
from gpuwarden.features.repair.helper.gpus import read_driver
from gpuwarden.features.repair.helper.host import Host
from gpuwarden.features.repair.helper.notebook import Entry, Notebook, NotebookError
from gpuwarden.features.repair.helper.programs import Ended
from gpuwarden.features.repair.helper.request import Request
from gpuwarden.features.repair.helper.restore import put_back
from gpuwarden.features.repair.helper.services import UNITS, ServiceError, Services
from gpuwarden.features.repair.helper.settings import Settings
from gpuwarden.features.repair.helper.table import PERSISTENCE_WITHIN, STEPS
from gpuwarden_collectors.dataclass import dataclass


@dataclass(slots=True)
class Work:
    """One step of one helper, which holds both locks; a reboot may begin without the lock of commands (`held`)."""

    host: Host
    settings: Settings
    notebook: Notebook
    request: Request
    held: int | None
    say: Callable[[str], bool]
    """Sends progress to the client. Returns False if the client has closed its connection."""
    services: Services = field(init=False)
    checks: Checks = field(init=False)
    entry: Entry = field(init=False)

    def __post_init__(self) -> None:
        self.services = Services(self.host, self.held)
        self.checks = Checks(self.host, self.settings, self.request, self.services)

    def done(self) -> Entry:
        """Carry out the step and return its entry. Raises Refused if nothing was begun, NotebookError."""
        planned = self.checks.planned()
        if why := self.notebook.over_limit(self.request.step, planned.subject, self.host.now()):
            raise Refused(why)
        if not self.say(f"begins {self.request.step}"):
            raise Refused("the client closed its connection before the step began")
        self.entry = self.notebook.add(planned)
        done, refused = False, False
        try:
            text, done = self._tried(), True
        except (Refused, NothingOrdered) as error:
            text, refused = str(error), True
        except (ServiceError, NoReading, CommandFailed, NotebookError) as error:
            text = str(error)
        if missing := put_back(self.entry, self.services, self.host, self.held, self.say):
            text, done, refused = f"{text}; and afterwards: {missing}", False, False
        elif done:
            text, done = self._looked_at(text)
        return self.notebook.end(self.entry, "done" if done else "failed", text, self.host.now(), refused=refused)

    # --- the step

    def _tried(self) -> str:
        own = {unit for units in UNITS.values() for unit in units}
        for unit in (unit for unit in self.entry.start if unit in own):
            self.say(f"stops {unit}")
            self.services.stop(unit)
        if not stops_persistence_daemon(
            self.entry.start
        ):  # set by nvidia-smi, which keeps the GPU open as the daemon does
            for slot in self.entry.persist:
                self.host.run(commands.persistence(self.host, slot, on=False), PERSISTENCE_WITHIN, self.held)
        if STEPS[self.request.step].stops:
            self.checks.unused()
        self.entry = self.notebook.change(replace(self.entry, stage="command"))
        try:
            text = self._command()
        except (CommandFailed, ServiceError):
            self.entry = self.notebook.change(replace(self.entry, stage="after"))
            raise
        self.entry = self.notebook.change(replace(self.entry, stage="after", succeeded=True, load=()))
        return text

    def _command(self) -> str:
        match self.request.step:
            case "restart_service":
                for unit in self.services.installed((self.request.fields["service"],)):
                    self.say(f"restarts {unit}")
                    self.services.restart(unit)
                return f"{self.request.fields['service']} was restarted"
            case "reset_gpu":
                self.say(f"resets the GPU at {self.request.fields['slot']}")
                return commands.reset(self.host, (self.request.fields["slot"],), self._run, alone=True)
            case "reset_all":
                self.say("resets all GPUs")
                return commands.reset(self.host, self.checks.slots, self._run, alone=False)
            case "reload_driver":
                self.say("reloads the driver")
                return commands.reload(self.host, self.entry.load, self._run)
        self.say("orders a reboot")
        return commands.reboot(self.host, self.settings, self.request.fields["reason"], self._run)

    def _run(self, *command: str) -> Ended:
        return self.host.run(command, STEPS[self.request.step].within, self.held)

    # --- after it

    def _looked_at(self, text: str) -> tuple[str, bool]:
        """Return the text with the state after the step, and whether it was done.

        Only the output of nvidia-smi shows that no other GPU was reset: without persistence mode the driver's counters
        of every GPU start over when its last client leaves, whether it was reset or not.
        """
        if self.request.step == "restart_service":
            service = self.request.fields["service"]
            return (text, True) if self.services.running((service,)) else (f"{text}, and does not run", False)
        if self.request.step == "reboot":
            return text, True
        try:
            driver = read_driver(self.host, self.settings.library)
        except NoReading as error:
            return f"{text}, and now {error}", False
        seen = self.checks.seen.driver
        before = {gpu.slot: gpu.uuid for gpu in (seen.gpus if seen else ()) if gpu.slot}  # one that is lost has none
        after = {
            gpu.slot: gpu.uuid for gpu in driver.gpus if gpu.slot and (gpu.answers or gpu.slot not in self.checks.slots)
        }
        wanted = dict.fromkeys(self.checks.slots, "") | before
        if gone := sorted(slot for slot, uuid in wanted.items() if slot not in after or (uuid and after[slot] != uuid)):
            return f"{text}, and NVML does not list what it should: {', '.join(gone)} with its UUID", False
        asking = [f"{gpu.slot}: {gpu.asks}" for gpu in driver.gpus if gpu.asks and gpu.slot in self.checks.slots]
        still = f"; the driver still asks for {', '.join(asking)}" if asking else ""
        return f"{text}, and NVML lists {len(after)} GPUs with their UUIDs{still}", True
