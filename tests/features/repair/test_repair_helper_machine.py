"""Root's helper under systemd in a booted machine, in the sandbox of its unit: it can do its step, and is settled if it is killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from support.daemons import slots
from support.fake_nvml_library import uuid_of
from support.machine import Machine, debian_tree
from support.machine_gpuwarden import FakeGpus, install, require_same_python

pytestmark = [pytest.mark.disposable, pytest.mark.slow, pytest.mark.xdist_group("machine")]

CONFIGURATION = """
mode = "enforce"
[breaker]
uncounted = "allow"
[file]
path = "/run/gpuwarden/out"
[repair]
steps = ["reset_gpu", "restart_service"]
"""
SOCKET, FOLDER, SERVICE = "/run/gpuwarden-repair.sock", "/var/lib/gpuwarden-repair", "nvidia-persistenced.service"
ASK = """
import socket, sys
talk = socket.socket(socket.AF_UNIX)
talk.settimeout(120)
talk.connect(sys.argv[1])
talk.sendall(sys.argv[2].encode() + b"\\n")
print((talk.makefile().read().splitlines() or ["{}"])[-1])
"""
NVIDIA_SMI = f"""#!/bin/sh
echo "$*" >> {FOLDER}/calls
if [ -e {FOLDER}/kill ]; then rm {FOLDER}/kill; kill -9 $PPID; exec sleep 600; fi
echo "GPU $3 was successfully reset."
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    require_same_python()
    folder = tmp_path_factory.mktemp("gw")
    for parent in (folder, folder.parent):
        parent.chmod(0o755)
    gpus = FakeGpus(folder)
    made = Machine(debian_tree(), folder, binds=gpus.binds)
    install(made, gpus)
    made.write("/etc/gpuwarden/conf.d/50-repair.toml", CONFIGURATION)
    made.write("/etc/systemd/system/gpuwarden-repair@.service.d/50-fake.conf", gpus.environment())
    made.write(f"/etc/systemd/system/{SERVICE}", "[Service]\nExecStart=/bin/sleep infinity\n")
    made.write("/usr/local/bin/nvidia-smi", NVIDIA_SMI, 0o755)
    made.write("/root/ask.py", ASK)
    with made:
        made.run("systemctl", "stop", "gpuwarden.service")
        made.run("systemctl", "start", SERVICE, "gpuwarden-repair.socket")
        yield made


def ask(machine: Machine, **request: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(machine.run("python3", "/root/ask.py", SOCKET, json.dumps(request)).stdout)
    return answer


def reset(machine: Machine, id: str, gpu: int = 1) -> dict[str, Any]:  # noqa: A002 - the protocol's word
    return ask(machine, verb="step", id=id, step="reset_gpu", slot=slots(2)[gpu], uuid=uuid_of(gpu))


def test_a_step_is_taken_in_the_sandbox_of_the_unit(machine: Machine) -> None:
    probed = ask(machine, verb="probe")
    assert probed["able"] == ["restart_service", "reset_gpu", "reset_all"], probed
    assert probed["unable"] == {step: f"repair.steps does not name {step}" for step in ("reload_driver", "reboot")}
    before = machine.show(SERVICE, "MainPID")
    answer = reset(machine, "try-1")
    assert answer["done"], answer
    assert machine.show(SERVICE, "ActiveState") == "active"
    assert machine.show(SERVICE, "MainPID") != before
    reset_one, *persistent = machine.output("cat", f"{FOLDER}/calls").splitlines()
    assert reset_one == "--gpu-reset -i 00000000:28:00.0"
    assert persistent == ["-i 00000000:1B:00.0 -pm 1", "-i 00000000:28:00.0 -pm 1"]
    assert machine.output("stat", "--format=%U %a", FOLDER) == "root 700"
    assert ask(machine, verb="step", id="try-2", step="restart_service", service="persistence")["done"]


def test_nobody_else_reaches_it(machine: Machine) -> None:
    nobody = ("setpriv", "--reuid=65534", "--clear-groups")
    refused = machine.run(*nobody, "python3", "/root/ask.py", SOCKET, '{"verb": "probe"}', check=False)
    assert "PermissionError" in refused.stderr


def test_what_a_killed_helper_has_stopped_is_started_without_anybody_asking(machine: Machine) -> None:
    machine.write(f"{FOLDER}/kill", "")
    assert "progress" in reset(machine, "try-3", gpu=0), "it was killed before its answer"
    machine.wait(lambda: machine.show(SERVICE, "ActiveState") == "active", "the persistence daemon to run again")
    machine.wait(lambda: '"running"' not in machine.output("cat", f"{FOLDER}/notebook.json"), "its entry to be closed")
    result = ask(machine, verb="result", id="try-3")
    assert result["state"] == "failed"
    assert result["text"].startswith("the helper was killed while its command ran: its effect is unknown")
    calls = machine.output("cat", f"{FOLDER}/calls")
    assert reset(machine, "try-3", gpu=0)["why"] == result["text"]
    assert machine.output("cat", f"{FOLDER}/calls") == calls


def test_a_configuration_with_a_fault_lets_nothing_be_done_and_says_so(machine: Machine) -> None:
    machine.write("/etc/gpuwarden/conf.d/60-fault.toml", "[repair]\nsteps = 7\n")
    answer = reset(machine, "try-4")
    assert (answer["done"], answer["refused"]) == (False, True)
    assert "repair.steps" in answer["why"]
    machine.run("rm", "/etc/gpuwarden/conf.d/60-fault.toml")
