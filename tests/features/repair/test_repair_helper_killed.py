"""Root's helper is killed -9 before, in and after each thing that it does: a look tells the truth, and what was stopped runs again."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.quick import first_quick
from support.repair_helper import BEFORE, PATIENCE, RepairHost
from support.repair_kills import DOES, HOW, calls_of, killed_at, request

CASES = [
    *((step, how) for step in ("restart_service", "reboot") for how in HOW),
    *(
        ("reset_gpu", "alone"),
        ("reset_gpu", "both"),
        ("reset_gpu", "after"),
        ("reset_all", "both"),
        ("reload_driver", "alone"),
    ),
]


@pytest.mark.parametrize(("step", "how"), first_quick(7, CASES))
def test_a_helper_killed_at_any_of_its_programs_leaves_the_truth(host: RepairHost, step: str, how: str) -> None:
    for call in range(1, calls_of(host, step) + 1):
        killed_at(host, step, call, how)


def test_a_command_that_outlives_its_helper_is_running_and_nothing_but_a_reboot_goes_on_beside_it(
    host: RepairHost,
) -> None:
    calls = calls_of(host, "reset_gpu")
    command = next(at for at, call in enumerate(host.calls, 1) if call.startswith("nvidia-smi"))
    assert command < calls
    host.forget()
    host.reset_mode("waits")
    host.kill(command, "alone")
    assert host.ask(request("reset_gpu")) == {}
    assert host.result()["state"] == "running"
    other = host.ask({**request("restart_service"), "id": "try-2"})
    assert (other["refused"], other["why"]) == (
        True,
        "a command of an earlier step has not ended: if it hangs in the kernel, only a reboot ends it",
    )
    assert host.ask({**request("reboot"), "id": "try-3"})["done"]
    host.set("go")
    assert host.settled()["text"].startswith("the helper was killed while its command ran: its effect is unknown")
    assert host.running == BEFORE


def test_a_boot_ends_what_was_running_and_a_reboot_was_done_then(host: RepairHost) -> None:
    for step, state in (("reboot", "done"), ("reset_gpu", "failed")):
        calls = calls_of(host, step)
        host.forget()
        host.kill(calls, "both")
        assert host.ask(request(step)) == {}
        host.set("boot", "boot-2")
        host.set("calls")
        said = host.settled()
        assert said["state"] == state
        assert said["text"].endswith("the node has booted since")
        assert host.calls == [], "the boot has started the services"
        host.forget()


def test_two_requests_for_a_step_are_one_and_another_step_waits_for_its_turn(host: RepairHost) -> None:
    host.reset_mode("waits")
    host.deadlines = {"turn": 0.1}
    with ThreadPoolExecutor() as pool:
        first = pool.submit(host.ask, request("reset_gpu"))
        host.wait((host.folder / "waiting").exists)
        assert host.ask({**request("reboot"), "id": "try-2"})["why"] == "another step runs on this node"
        assert host.result()["state"] == "running"
        second = pool.submit(host.ask, request("reset_gpu"))
        host.set("go")
        assert first.result(PATIENCE) == second.result(PATIENCE)
    assert host.effects.count(DOES["reset_gpu"]) == 1


def test_a_step_that_is_only_checked_yet_is_no_unknown_one(host: RepairHost) -> None:
    hangs = host.fake.hangs_once("nvmlDeviceGetCount_v2")
    with ThreadPoolExecutor() as pool:
        step = pool.submit(host.ask, request("reset_gpu"))
        host.wait(hangs.exists)
        assert host.effects == []
        assert host.result()["state"] == "running"
        host.fake.clear()
        step.result(PATIENCE)
    assert host.result("another")["state"] == "unknown"


def test_a_step_goes_on_if_nobody_waits_for_its_answer(host: RepairHost) -> None:
    with host.connected() as connection:
        connection.sendall(json.dumps(request("reset_gpu")).encode() + b"\n")
        assert b"begins reset_gpu" in connection.recv(4096)
    host.wait(lambda: host.result()["state"] == "done")
    assert host.running == BEFORE


def test_a_step_is_not_begun_for_a_daemon_that_died_while_it_was_checked(host: RepairHost) -> None:
    hangs = host.fake.hangs_once("nvmlDeviceGetCount_v2")
    with host.connected() as connection:
        connection.sendall(json.dumps(request("reset_gpu")).encode() + b"\n")
        host.wait(hangs.exists)
    host.fake.clear()
    assert host.settled()["state"] == "unknown"
    assert host.effects == []
