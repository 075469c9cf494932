"""Steps of root's helper, killed -9 at each program that it runs, and what must hold afterwards."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from gpuwarden.features.repair.helper.notebook import Notebook
from support.fake_nvml_library import uuid_of
from support.repair_helper import BEFORE, MODULES, SLOTS, RepairHost

REQUESTS: Mapping[str, Mapping[str, str]] = {
    "restart_service": {"service": "dcgm"},
    "reset_gpu": {"slot": SLOTS[0], "uuid": uuid_of(0)},
    "reset_all": {},
    "reload_driver": {},
    "reboot": {"reason": "xid 79"},
}
DOES = {
    "restart_service": "restart nvidia-dcgm.service",
    "reset_gpu": "reset 00000000:1B:00.0",
    "reset_all": "reset all",
    "reload_driver": "unload nvidia",
    "reboot": "reboot reason=xid 79 n1",
}
"""The effect of the step's command, once."""
HOW = ("both", "alone", "after")
"""`support/repair_programs.sh`."""


def request(step: str) -> dict[str, Any]:
    return {"verb": "step", "id": "try-1", "step": step, **REQUESTS[step]}


def calls_of(host: RepairHost, step: str) -> int:
    """Return how many programs a step runs that nobody kills."""
    assert host.ask(request(step))["done"]
    return len(host.calls)


def killed_at(host: RepairHost, step: str, call: int, how: str) -> None:
    """Carry out a step whose helper is killed at this program, and check what the next helper says and does."""
    host.forget()
    host.kill(call, how)
    assert host.ask(request(step)) == {}, "a killed helper answers nothing"
    check(host, step)


def took(host: RepairHost, step: str) -> float:
    """Return the seconds of a step that nobody kills."""
    host.forget()
    begun = time.monotonic()
    assert host.ask(request(step))["done"]
    return time.monotonic() - begun


def killed_after(host: RepairHost, step: str, seconds: float) -> str:
    """Carry out a step whose helper is killed so many seconds after it was asked, check as `killed_at`, and return the result."""
    host.forget()
    host.kill_after = seconds
    host.ask(request(step))
    host.kill_after = 0.0
    said = str(host.settled()["state"])
    check(host, step)
    return said


def check(host: RepairHost, step: str) -> None:
    """Check what must hold after a helper was killed, or was not."""
    said = host.settled()
    notebook = Notebook(host.folder / "state")
    host.wait(lambda: not notebook.is_locked("commands"))  # of a helper killed before it had an entry
    was_done = host.effects.count(DOES[step])
    assert was_done <= 1
    if said["state"] == "unknown":
        assert not any(effect for effect in host.effects), said
    elif said["state"] == "done":
        assert was_done == 1, said
    else:
        assert "the helper was killed" in said["text"], said
        assert was_done == 0 or "it was not run" not in said["text"], said
    assert host.running == BEFORE
    assert host.modules == sorted(MODULES)
    again = host.ask(request(step))
    assert host.effects.count(DOES[step]) == (1 if said["state"] == "unknown" else was_done)
    assert again["done"] == (said["state"] != "failed"), again
    assert host.result()["state"] == ("failed" if said["state"] == "failed" else "done")
