"""`gpuwarden service` on a Debian 12 that runs: systemd starts what was installed elsewhere than where packages are, and lets go of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuwarden.service.files import LOCAL_UNITS, SERVICE
from gpuwarden.service.installation import MANIFEST
from support.machine import Machine
from support.machine_gpuwarden import ENABLED, code, machine_with_gpus

pytestmark = [pytest.mark.disposable, pytest.mark.xdist_group("systemd")]

HOME = "/srv/tools/gpuwarden"
COMMAND = f"{HOME}/bin/gpuwarden"


@pytest.fixture
def machine() -> Iterator[Machine]:
    with machine_with_gpus() as (machine, gpus):
        code(machine, HOME)
        machine.write(f"/{LOCAL_UNITS}/{SERVICE}.d/50-fake.conf", gpus.environment())
        machine.write("/etc/gpuwarden/gpuwarden.toml", gpus.configuration())
        with machine:
            yield machine


@pytest.mark.slow
def test_the_service_is_installed_runs_and_is_removed(machine: Machine) -> None:
    installed = machine.output(COMMAND, "service", "install")
    assert f"/{LOCAL_UNITS}/{SERVICE}: written\n" in installed
    assert f"{SERVICE} runs; next: gpuwarden doctor" in installed, (
        "in which mode the configuration says, which may be there already"
    )
    for unit in ENABLED:
        assert machine.show(unit, "ActiveState") == "active", machine.journal(unit)
        assert machine.show(unit, "UnitFileState") == "enabled"
    assert COMMAND in machine.show(SERVICE, "ExecStart")
    assert machine.show(SERVICE, "User") == "gpuwarden"
    machine.wait(lambda: "HEALTHY; 2 of 2 GPUs" in machine.show(SERVICE, "StatusText"), "a verdict")
    pid = machine.show(SERVICE, "MainPID")
    again = machine.output(COMMAND, "service", "install")
    assert f"/{LOCAL_UNITS}/{SERVICE}: is there already\n" in again
    assert machine.show(SERVICE, "MainPID") not in ("0", pid), "an upgrade restarts it"
    removed = machine.output(COMMAND, "service", "remove")
    assert f"/{LOCAL_UNITS}/{SERVICE}: removed\n" in removed
    for unit in ENABLED:
        assert machine.show(unit, "LoadState") == "not-found" or machine.show(unit, "ActiveState") == "inactive"
    left = [str(path) for path in machine.path(f"/{LOCAL_UNITS}").rglob("gpuwarden*")]
    assert [Path(path).name for path in left] == [f"{SERVICE}.d"], "with the drop-in that is not its own"
    assert not machine.path(f"/{MANIFEST}").exists()
    assert machine.path("/var/lib/gpuwarden").exists()
    units_of_another_remain(machine)


def units_of_another_remain(machine: Machine) -> None:
    """Assert that a removal with nothing to remove stops no unit of another package."""
    machine.write(
        f"/usr/lib/systemd/system/{SERVICE}", "[Service]\nExecStart=sleep 600\n[Install]\nWantedBy=multi-user.target\n"
    )
    machine.path(f"/{LOCAL_UNITS}/{SERVICE}.d/50-fake.conf").unlink()
    machine.output("systemctl", "daemon-reload")
    machine.output("systemctl", "enable", "--now", SERVICE)
    refused = machine.run(COMMAND, "service", "remove", check=False)
    assert refused.returncode != 0
    assert (machine.show(SERVICE, "ActiveState"), machine.show(SERVICE, "UnitFileState")) == ("active", "enabled")
