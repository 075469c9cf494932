"""Puts back what a step took away, whatever its result: by its own helper, or by the next one if that was killed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpuwarden.features.repair.helper import commands
from gpuwarden.features.repair.helper.host import Host
from gpuwarden.features.repair.helper.notebook import Entry, Notebook
from gpuwarden.features.repair.helper.services import ServiceError, Services
from gpuwarden.features.repair.helper.table import LOADED_WITHIN, PERSISTENCE_WITHIN

_TURN_WITHIN = 0.2
"""Seconds. A process that only checks has the lock for a moment."""
KILLED = {
    "before": "the helper was killed before its command: it was not run",
    "command": "the helper was killed while its command ran: its effect is unknown",
    "after": "the helper was killed after its command, which had failed",
}


def put_back(entry: Entry, services: Services, host: Host, held: int | None, say: Callable[[str], object]) -> str:
    """Load modules, start units and set persistence mode of an entry. Tries each; returns what failed, or "".

    Persistence mode is set last, since the daemon for it starts with the mode of its command line.
    """
    missing = []
    for name in reversed(entry.load):
        ended = host.run((host.program("modprobe") or "modprobe", name), LOADED_WITHIN, held)
        if ended.code != 0:
            missing.append(f"modprobe {name}: {ended.why}")
    for unit in reversed(entry.start):
        say(f"starts {unit}")
        try:
            services.start(unit)
        except ServiceError as error:
            missing.append(str(error))
    for slot in entry.persist:
        ended = host.run(commands.persistence(host, slot, on=True), PERSISTENCE_WITHIN, held)
        if ended.code != 0:
            missing.append(f"persistence mode of {slot}: {ended.why}")
    return "; ".join(missing)


def settle(host: Host, notebook: Notebook, *, boots_only: bool = False) -> None:
    """Put back what a killed helper left, and close its entry; with `boots_only` only entries that a boot ended, which
    is quick.

    Does nothing while a helper, or a command of one, still runs. Raises NotebookError.
    """
    if not _running(notebook):
        return  # takes no lock, which a step may need
    with notebook.lock("helper", 0.0 if boots_only else _TURN_WITHIN) as alone:
        if alone is None:
            return
        with notebook.lock("commands") as held:
            for entry in _running(notebook):
                if entry.boot != host.boot():
                    _close_after_boot(entry, host, notebook)
                elif held is not None and not boots_only:
                    missing = put_back(entry, Services(host, held), host, held, lambda _: None)
                    _close(entry, missing, host, notebook)


def _running(notebook: Notebook) -> list[Entry]:
    return [entry for entry in notebook.entries if entry.state == "running"]


def _close(entry: Entry, missing: str, host: Host, notebook: Notebook) -> None:
    text = KILLED[entry.stage]
    if entry.succeeded:
        text = "its command has ended well; the helper was killed after it"
    if entry.start or entry.load or entry.persist:
        text += (
            f"; what it had stopped could not be started again: {missing}"
            if missing
            else "; what it had stopped runs again"
        )
    notebook.end(entry, "done" if entry.succeeded and not missing else "failed", text, host.now())


def _close_after_boot(entry: Entry, host: Host, notebook: Notebook) -> None:
    rebooted = entry.step == "reboot"
    text = "the node has booted since" if rebooted else f"{KILLED[entry.stage]}; the node has booted since"
    notebook.end(replace(entry, start=(), load=(), persist=()), "done" if rebooted else "failed", text, host.now())
