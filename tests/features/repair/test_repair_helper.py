"""Root's helper, asked through its socket: what it does, what it refuses and why, and that it does nothing twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gpuwarden.features.repair.helper.notebook import HOUR, REST, STEPS_MOST, Entry, Notebook
from support.fake_nvml_library import uuid_of
from support.repair_helper import MODULES, SLOTS, RepairHost

PERSISTENCE, FABRIC, DCGM, IMEX = (
    "nvidia-persistenced.service", "nvidia-fabricmanager.service", "nvidia-dcgm.service", "nvidia-imex.service",
)  # fmt: skip
BEFORE = sorted((PERSISTENCE, DCGM, IMEX))
PERSISTENT_AGAIN = [f"pm -i {slot} -pm 1" for slot in ("00000000:1B:00.0", "00000000:28:00.0")]


def step(name: str, id: str = "try-1", **fields: str) -> dict[str, Any]:  # noqa: A002 - the protocol's word
    return {"verb": "step", "id": id, "step": name, **fields}


def refused(host: RepairHost, request: dict[str, Any]) -> str:
    """Why it was refused: then nothing is changed, and nothing remembered."""
    answer = host.ask(request)
    assert (answer["done"], answer["refused"]) == (False, True), answer
    assert host.effects == []
    assert host.result(request["id"])["state"] == "unknown"
    return str(answer["why"])


# --- what it does


def test_a_gpu_is_reset_while_nothing_holds_it_and_all_that_was_stopped_runs_again(host: RepairHost) -> None:
    *progress, answer = host.lines(host.reset())
    assert answer == {"done": True, "text": f"the GPU at {SLOTS[0]} was reset, and NVML lists 2 GPUs with their UUIDs"}
    assert host.effects == [f"stop {DCGM}", f"stop {PERSISTENCE}", "reset 00000000:1B:00.0", *PERSISTENT_AGAIN]
    assert host.running == BEFORE
    assert [line["progress"] for line in progress][-2:] == [f"starts {PERSISTENCE}", f"starts {DCGM}"]
    assert host.result() == {"state": "done", "text": answer["text"]}


def test_what_the_driver_still_asks_for_after_a_reset_is_said(host: RepairHost) -> None:
    host.fake.reading(0, "remapped_rows_pending", 1)
    assert "the driver still asks for 0000:1b:00.0: a reset" in host.ask(host.reset())["text"]
    host.after_reset()
    host.set("now", f"{1_000_000 + REST}")
    assert "asks" not in host.ask(host.reset(id="try-2"))["text"]


def test_all_gpus_are_reset_in_one_command_without_any_service(host: RepairHost) -> None:
    host.unit(FABRIC, "active")
    assert host.ask(step("reset_all"))["text"].startswith("2 GPUs were reset")
    stopped = [f"stop {unit}" for unit in (DCGM, IMEX, FABRIC, PERSISTENCE)]
    assert host.effects == [*stopped, "reset all", *PERSISTENT_AGAIN]
    assert host.running == sorted((*BEFORE, FABRIC))


def test_the_driver_is_unloaded_in_the_order_of_its_users_and_loaded_again(host: RepairHost) -> None:
    assert host.ask(step("reload_driver"))["done"]
    order = ["gdrdrv", "nvidia_drm", "nvidia_modeset", "nvidia_uvm", "nvidia"]
    assert [effect for effect in host.effects if "load" in effect] == [
        *(f"unload {name}" for name in order), *(f"load {name}" for name in reversed(order)),
    ]  # fmt: skip
    assert host.running == BEFORE


def test_a_driver_that_was_not_loaded_is_loaded(host: RepairHost) -> None:
    for name in MODULES:
        (host.folder / "sys/module" / name / "initstate").unlink()
        (host.folder / "sys/module" / name).rmdir()
    assert "the driver was loaded" in host.ask(step("reload_driver"))["text"]
    assert host.modules == ["nvidia"]


@pytest.mark.parametrize(
    ("service", "unit"), [("persistence", PERSISTENCE), ("dcgm", DCGM), ("imex", IMEX), ("fabric_manager", FABRIC)]
)
def test_a_service_is_restarted(host: RepairHost, service: str, unit: str) -> None:
    assert host.ask(step("restart_service", service=service)) == {"done": True, "text": f"{service} was restarted"}
    assert host.effects == [f"restart {unit}"]


def test_slurm_reboots_the_node_with_the_reason(host: RepairHost) -> None:
    answer = host.ask(step("reboot", reason="gpuwarden: xid 79 of GPU 3 §"))
    assert answer == {"done": True, "text": "Slurm reboots n1 once its jobs have ended"}
    assert host.effects == ["reboot reason=gpuwarden: xid 79 of GPU 3 § n1"]


def test_slurm_s_commands_are_taken_from_the_folder_that_is_configured(host: RepairHost) -> None:
    """Slurm is below /opt on AWS ParallelCluster, for one: the fixed PATH of the helper has none of its commands."""
    (host.folder / "bin/scontrol").unlink()
    place = host.folder / "slurm"
    place.mkdir(parents=True)
    (place / "scontrol").symlink_to(host.folder / "bin/programs.sh")
    unable = host.ask({"verb": "probe"})["unable"]
    assert unable == {"reboot": f"scontrol is not in {host.folder}/bin: set slurm.folder to where Slurm's commands are"}
    host.settings |= {"slurm_folder": str(place)}
    assert host.ask({"verb": "probe"})["unable"] == {}
    assert host.ask(step("reboot", reason="xid 79"))["done"]
    assert host.effects == ["reboot reason=xid 79 n1"]


def test_an_order_that_slurm_did_not_take_is_no_reboot_and_may_be_tried_again(host: RepairHost) -> None:
    """A controller that restarts when the reboot is due costs a wait, and not one of the two tries of the failure."""
    host.set("fails.reboot")
    answer = host.ask(step("reboot", reason="xid 79"))
    assert (answer["done"], answer["refused"]) == (False, True)
    assert "scontrol reboot of n1: exit code 1: scontrol: error: Unable to contact" in answer["why"]
    assert host.result() == {"state": "refused", "text": answer["why"]}
    (host.folder / "fails.reboot").unlink()
    assert host.ask(step("reboot", id="try-2", reason="xid 79"))["done"]


def test_the_site_s_command_reboots_where_it_is_configured_and_gets_the_reason(host: RepairHost) -> None:
    host.settings |= {"slurm": False, "reboot_command": [str(host.folder / "bin/rebooter")]}
    assert host.ask(step("reboot", reason="xid 79; $(touch /x)"))["done"]
    assert host.effects == ["reboot: xid 79; $(touch /x)"]


@pytest.mark.parametrize("mode", [None, 0o644])
def test_a_site_s_command_that_cannot_be_run_is_an_obstacle_and_no_try(host: RepairHost, mode: int | None) -> None:
    command = host.folder / "reboot-me"
    if mode is not None:
        command.touch(mode)
    host.settings |= {"slurm": False, "reboot_command": [str(command), "now"]}
    why = f"{command} of repair.reboot_command does not exist, or cannot be run: install it"
    assert refused(host, step("reboot", reason="xid 79")) == why
    assert host.ask({"verb": "probe"})["unable"] == {"reboot": why}
    command.touch()
    command.chmod(0o755)
    assert host.ask({"verb": "probe"})["unable"] == {}


def test_persistence_mode_that_nvidia_smi_set_holds_the_driver_too(host: RepairHost) -> None:
    host.unit(PERSISTENCE, "inactive")
    assert host.ask(step("reload_driver"))["done"]
    off, on = ([f"pm -i {slot} -pm {mode}" for slot in ("00000000:1B:00.0", "00000000:28:00.0")] for mode in (0, 1))
    assert [effect for effect in host.effects if effect.startswith("pm")] == off + on


def test_persistence_mode_that_nvidia_smi_set_is_off_meanwhile(host: RepairHost) -> None:
    host.unit(PERSISTENCE, "inactive")
    assert host.ask(host.reset())["done"]
    assert host.effects == [
        f"stop {DCGM}",
        "pm -i 00000000:1B:00.0 -pm 0",
        "reset 00000000:1B:00.0",
        "pm -i 00000000:1B:00.0 -pm 1",
    ]


@pytest.mark.parametrize("mode", ["success", "in_use"])
def test_persistence_mode_is_set_anew_once_the_daemon_for_it_runs_that_may_start_without_it(
    host: RepairHost, mode: str
) -> None:
    """The unit of Ubuntu has `--no-persistence-mode`, which is off for all GPUs as it starts; nvidia-smi has told that daemon since."""
    host.fake.reading(1, "persistence_mode", 0)
    host.reset_mode(mode)
    host.ask(host.reset())
    assert [effect for effect in host.effects if effect.startswith("pm")] == PERSISTENT_AGAIN[:1]
    started, set_on = (next(n for n, call in enumerate(host.calls) if word in call) for word in (f"start {PERSISTENCE}", "-pm 1"))  # fmt: skip
    assert started < set_on


def test_what_systemd_stops_with_a_service_is_started_with_it(host: RepairHost) -> None:
    host.unit("slurmd.service", "active")
    host.unit(PERSISTENCE, "active", requires="slurmd.service")
    assert host.ask(host.reset())["done"]
    assert (host.folder / "units/slurmd.service").read_text().split() == ["active"]


def test_what_systemd_stops_with_such_a_unit_is_started_too(host: RepairHost) -> None:
    host.unit("site-agent.service", "active")
    host.unit("idle-agent.service", "inactive")
    host.unit("slurmd.service", "active", requires="site-agent.service idle-agent.service")
    host.unit(PERSISTENCE, "active", requires="slurmd.service")
    host.unit(DCGM, "active", requires="slurmd.service")
    assert host.ask(host.reset())["done"]
    states = {name: (host.folder / "units" / f"{name}.service").read_text().split()[0] for name in ("slurmd", "site-agent", "idle-agent")}  # fmt: skip
    assert states == {"slurmd": "active", "site-agent": "active", "idle-agent": "inactive"}


# --- commands that do not do what they should


def failed(host: RepairHost, request: dict[str, Any]) -> str:
    """Why it failed: then all services run again."""
    answer = host.ask(request)
    assert (answer["done"], answer["refused"]) == (False, False), answer
    assert host.running == BEFORE
    assert sorted(MODULES) == host.modules
    assert host.result() == {"state": "failed", "text": answer["why"]}
    return str(answer["why"])


def test_a_reset_that_nvidia_smi_refuses_is_told_in_its_words(host: RepairHost) -> None:
    host.reset_mode("in_use")
    assert "exit code 255: GPU 00000000:1B:00.0: In use by another client" in failed(host, host.reset())


def test_a_reset_of_another_gpu_is_no_success(host: RepairHost) -> None:
    host.reset_mode("wrong")
    assert failed(host, host.reset()) == f"nvidia-smi was to reset {SLOTS[0]} and reports that it reset {SLOTS[1]}"


def test_a_gpu_that_does_not_come_back_is_no_success(host: RepairHost) -> None:
    host.after_reset("vanish 0")
    assert f"NVML does not list what it should: {SLOTS[0]}" in failed(host, host.reset())


def test_a_command_that_hangs_is_killed_and_what_was_stopped_runs_again(host: RepairHost) -> None:
    host.reset_mode("hangs")
    host.deadlines = {"nvidia-smi": 0.2}
    assert "nvidia-smi did not end within 0.2 s and was killed" in failed(host, host.reset())


def test_a_module_that_is_in_use_leaves_the_driver_loaded(host: RepairHost) -> None:
    host.set("module-in-use")
    assert "cannot unload gdrdrv: modprobe -r: exit code 1: modprobe: FATAL" in failed(host, step("reload_driver"))


def test_a_service_that_does_not_stop_ends_the_step_before_its_command(host: RepairHost) -> None:
    host.set("fails.stop")
    assert f"systemctl stop {DCGM}: exit code 1" in failed(host, host.reset())
    assert host.effects == PERSISTENT_AGAIN


def test_a_service_that_does_not_start_again_is_told_though_the_reset_was_done(host: RepairHost) -> None:
    host.set("fails.start")
    answer = host.ask(host.reset())
    assert not answer["done"]
    assert answer["why"].startswith(f"the GPU at {SLOTS[0]} was reset; and afterwards: systemctl start {PERSISTENCE}")


# --- what it refuses


def _mig(host: RepairHost) -> None:
    host.fake.reading(0, "mig_mode", 1)


def _confidential(host: RepairHost) -> None:
    host.fake.reading("*", "confidential_computing", 1)


def _virtual(mode: int) -> Callable[[RepairHost], object]:
    return lambda host: host.fake.reading(0, "virtualization_mode", mode)


def _process(host: RepairHost) -> None:
    host.fake.process(0, 4711, 1 << 30)


def _holder(host: RepairHost) -> None:
    host.process(4711, "python3", "/dev/null", "/dev/nvidia0")


def _own_reader(host: RepairHost) -> None:
    host.process(4711, "python3", "/dev/nvidia0", unit="gpuwarden.service")


def _no_smi(host: RepairHost) -> None:
    (host.folder / "bin/nvidia-smi").unlink()


def _passed_through(host: RepairHost) -> None:
    driver = host.folder / "sys/bus/pci/devices" / SLOTS[0] / "driver"
    driver.unlink()
    driver.symlink_to("../../../bus/pci/drivers/vfio-pci")


def _jailed(host: RepairHost) -> None:
    host.process(4711, "python3", "/srv/jail/dev/nvidia0")


OBSTACLES = {
    "MIG": (_mig, "MIG is on at the GPU at 0000:1b:00.0"),
    "confidential": (_confidential, "confidential computing is on"),
    "fabric of the hypervisor": (_virtual(1), "belong to a fabric outside this virtual machine"),
    "vgpu": (_virtual(2), "is a vGPU"),
    "vgpu host": (_virtual(3), "is shared as vGPUs"),
    "vfio": (_passed_through, "passed through to a virtual machine (driver vfio-pci)"),
    "process": (_process, "the GPU is in use by process 4711"),
    "open file": (_holder, "the GPU is in use by process 4711 (python3)"),
    "open file in a chroot": (_jailed, "the GPU is in use by process 4711 (python3)"),
    "own reader": (_own_reader, "the GPU is in use by process 4711 (python3, gpuwarden.service)"),
}


def test_a_lost_gpu_has_no_address_before_the_reset_that_brings_it_back(host: RepairHost) -> None:
    host.fake.lost(0)
    host.after_reset()
    answer = host.ask(host.reset())
    assert (answer["done"], "NVML lists 2 GPUs with their UUIDs" in answer["text"]) == (True, True)


@pytest.mark.parametrize("fabric", ["none", "its own"])
def test_a_gpu_is_reset_in_the_virtual_machine_that_has_it(host: RepairHost, fabric: str) -> None:
    """NVML says passthrough there; on the hypervisor it does not list the GPU."""
    host.fake.reading("*", "virtualization_mode", 1)
    if fabric == "none":
        for link in range(18):
            host.fake.link("*", link, "active", 0)
    else:
        host.switch()
        host.unit(FABRIC, "active")
    assert host.ask(host.reset())["done"]


@pytest.mark.parametrize("name", OBSTACLES)
def test_a_gpu_that_must_not_be_reset_is_refused_with_the_reason(host: RepairHost, name: str) -> None:
    breaks, why = OBSTACLES[name]
    breaks(host)
    assert why in refused(host, host.reset())
    assert "in use" in why or why in refused(host, step("reset_all", id="try-2"))


def test_a_missing_nvidia_smi_is_an_obstacle_before_anything_is_stopped(host: RepairHost) -> None:
    _no_smi(host)
    assert "nvidia-smi is not in" in refused(host, host.reset())


def test_another_gpu_s_user_is_no_obstacle_to_one_gpu_and_is_to_all(host: RepairHost) -> None:
    host.process(4711, "python3", "/dev/nvidia1")
    assert "the GPUs are in use by process 4711 (python3)" in refused(host, step("reset_all"))
    assert "in use by process 4711" in refused(host, step("reload_driver", id="try-2"))
    assert "in use by process 4711" in refused(host, step("restart_service", id="try-3", service="fabric_manager"))
    assert host.ask(host.reset(id="try-4"))["done"]


def test_who_uses_the_gpu_counts_whatever_the_driver_answers(host: RepairHost) -> None:
    host.fake.init_error(9)
    _holder(host)
    assert "the GPU is in use by process 4711" in refused(host, host.reset())


def test_a_driver_that_hangs_costs_bounded_time_and_the_bus_names_the_gpu(host: RepairHost) -> None:
    host.deadlines = {"NVML": 0.3}
    host.fake.hang("*", "nvmlInitWithFlags")
    answer = host.ask(host.reset())
    assert not answer["done"]
    assert "was reset, and now NVML cannot be read within 0.3 s" in answer["why"]
    assert "reset 00000000:1B:00.0" in host.effects
    assert host.running == BEFORE


@pytest.mark.parametrize(
    ("slot", "uuid", "why"),
    [
        ("0000:99:00.0", uuid_of(0), "there is no NVIDIA GPU at 0000:99:00.0"),
        (SLOTS[0], uuid_of(1), f"the GPU at {SLOTS[0]} has UUID {uuid_of(0)}, not {uuid_of(1)}"),
        (SLOTS[0], "", f"the GPU at {SLOTS[0]} has UUID {uuid_of(0)}, not an unknown one"),
    ],
)
def test_slot_and_uuid_must_name_the_same_gpu(host: RepairHost, slot: str, uuid: str, why: str) -> None:
    assert why in refused(host, step("reset_gpu", slot=slot, uuid=uuid))


def test_on_an_nvswitch_host_one_gpu_is_reset_while_the_fabric_manager_runs(host: RepairHost) -> None:
    host.switch()
    assert "without a fabric manager" in refused(host, host.reset())
    host.unit(FABRIC, "active")
    host.process(99, "nv-fabricmanager", "/dev/nvidia0", "/dev/nvidia1", unit=FABRIC)
    assert host.ask(host.reset(id="try-2"))["done"]
    assert f"stop {FABRIC}" not in host.effects


def test_old_gpus_that_nvlink_connects_are_reset_together(host: RepairHost) -> None:
    host.fake.write(gpus=2, generation="volta")
    uuid = next(iter(_uuids(host)))
    assert "reset together: reset_all" in refused(host, step("reset_gpu", slot=SLOTS[0], uuid=uuid))
    assert host.ask(step("reset_all", id="try-2"))["done"]


def _uuids(host: RepairHost) -> list[str]:
    answer = host.ask(step("reset_gpu", slot=SLOTS[0], uuid=uuid_of(1), id="try-0"))
    return [word.rstrip(",") for word in answer["why"].split() if word.startswith("GPU-")]


def test_a_module_that_is_not_known_keeps_the_driver_loaded(host: RepairHost) -> None:
    (host.folder / "sys/module/nvidia/holders/nvidia_vgpu_vfio").mkdir(parents=True)
    assert "the modules nvidia_vgpu_vfio use the driver" in refused(host, step("reload_driver"))


def test_a_service_that_is_not_installed_is_refused(host: RepairHost) -> None:
    (host.folder / "units" / IMEX).unlink()
    assert "no unit of imex is installed here: nvidia-imex.service" in refused(
        host, step("restart_service", service="imex")
    )


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"steps": []}, "repair is off"),
        ({"steps": ["reboot"]}, "repair.steps does not name reset_gpu"),
        ({"enforce": False}, 'mode = "observe"'),
    ],
)
def test_what_the_configuration_does_not_allow_is_refused(host: RepairHost, settings: dict[str, Any], why: str) -> None:
    host.settings |= settings
    assert why in refused(host, host.reset())
    assert why in refused(host, step("reset_all", id="try-2"))


REQUESTS = {
    b"": "one line",
    b"{}\n": "verb: expected probe, step or result",
    b'{"verb": "probe", "step": "dance"}\n': "step: expected one of",
    b"[]\n": "not an object",
    b"7\n": "not an object",
    b"\xff\n": "not one line of JSON",
    b"[" * 4000 + b"\n": "not one line of JSON",
    b"x" * 5000: "at most 4096 bytes",
    b'{"verb":"result"}\n': "id: expected",
    b'{"verb":"result","id":"a b"}\n': "id: expected",
    b'{"verb":"result","id":7}\n': "not an object of texts",
    b'{"verb":"result","id":"a","more":"x"}\n': "unknown fields",
    b'{"verb":"step","id":"a","step":"format_disk"}\n': "step: expected one of",
    b'{"verb":"step","id":"a","step":"restart_service","service":"sshd"}\n': "service: not of the required form",
    b'{"verb":"step","id":"a","step":"restart_service","service":"dcgm --now"}\n': "service: not of the required form",
    b'{"verb":"step","id":"a","step":"reset_gpu","slot":"0000:1b:00.0"}\n': "uuid: not of the required form",
    b'{"verb":"step","id":"a","step":"reset_gpu","slot":"-i 0","uuid":""}\n': "slot: not of the required form",
    b'{"verb":"step","id":"a","step":"reboot","reason":""}\n': "reason: not of the required form",
    b'{"verb":"step","id":"a","step":"reboot","reason":"a\\nb"}\n': "reason: not of the required form",
    b'{"verb":"step","id":"a","step":"reboot","reason":"\\ud800"}\n': "reason: not of the required form",
    b'{"verb":"step","id":"a","step":"reset_all","slot":"x"}\n': "unknown fields",
}


@pytest.mark.parametrize("data", REQUESTS, ids=lambda data: repr(data[:60]))
def test_what_is_no_request_is_refused(host: RepairHost, data: bytes) -> None:
    with host.connected() as connection:
        connection.sendall(data)
        connection.shutdown(1)
        answer = json.loads(connection.makefile("rb").readline())
    assert (answer["done"], answer["refused"]) == (False, True)
    assert REQUESTS[data] in answer["why"]
    assert host.calls == []


# --- what it remembers


def test_a_second_request_with_the_same_id_does_nothing_and_gets_the_same_answer(host: RepairHost) -> None:
    first = host.ask(host.reset())
    done = host.effects
    assert host.ask(host.reset()) == first
    assert host.ask(step("reboot", reason="x")) == first
    assert host.effects == done


def test_an_unknown_id_is_unknown(host: RepairHost) -> None:
    assert host.result("never") == {"state": "unknown", "text": "nothing was begun under this id"}


def test_a_step_that_was_refused_after_its_services_were_stopped_is_no_failed_one(host: RepairHost) -> None:
    why = "the GPU is in use by process 4711"
    entry = Entry(id="try-1", step="reset_gpu", subject="", begun=1.0, boot="", state="failed", refused=True, text=why)
    Notebook(host.folder / "state").add(entry)
    assert host.result() == {"state": "refused", "text": why}


def test_no_more_steps_are_begun_in_a_day_than_the_limit_and_one_reboot_in_six_hours(host: RepairHost) -> None:
    assert host.ask(step("reboot", id="r1", reason="x"))["done"]
    assert "a reboot of this node was begun within 6 h" in host.ask(step("reboot", id="r2", reason="x"))["why"]
    host.set("now", f"{1_000_000 + 6.1 * HOUR}")
    assert host.ask(step("reboot", id="r3", reason="x"))["done"]
    for number in range(STEPS_MOST - 2):
        host.set("now", f"{1_000_000 + 6.1 * HOUR + number * REST}")
        assert host.ask(step("restart_service", id=f"s{number}", service="dcgm"))["done"]
    assert f"{STEPS_MOST} steps were begun on this node within 24 h" in host.ask(host.reset())["why"]
    host.set("now", "1000")
    assert "within 24 h" in host.ask(host.reset())["why"], "a clock that was set back frees nothing"
    host.set("now", f"{1_000_000 + 24.1 * HOUR}")
    assert host.ask(host.reset())["done"]


def test_a_step_that_was_just_done_is_not_done_again_for_another_daemon(host: RepairHost) -> None:
    assert host.ask(host.reset())["done"]
    again = host.ask(host.reset(id="of-another"))
    assert again == {
        "done": False,
        "refused": True,
        "why": "it was done less than 120 s ago: check its result first",
    }
    assert host.ask(host.reset(gpu=1, id="of-another-gpu"))["done"]
    host.set("now", f"{1_000_000 + REST}")
    assert host.ask(host.reset(id="after-a-look"))["done"]
    resets = [line for line in host.effects if line.startswith("reset")]
    assert resets == [f"reset 0000{SLOTS[gpu].upper()}" for gpu in (0, 1, 0)]


def test_without_a_notebook_that_can_be_read_nothing_is_done(host: RepairHost) -> None:
    host.set("state/notebook.json", "[{")
    answer = host.ask(host.reset())
    assert not answer["done"]
    assert "cannot read" in answer["why"]
    assert host.effects == []


def test_a_folder_that_others_can_write_is_not_used(host: RepairHost) -> None:
    (host.folder / "state").chmod(0o777)
    assert "only root can write" in host.ask(host.reset())["why"]
    assert host.calls == []


def test_a_driver_that_hangs_is_not_asked_whether_it_can_be_rebooted(host: RepairHost) -> None:
    hangs = host.fake.hangs_once("nvmlDeviceGetCount_v2")
    assert "reboot" in host.ask({"verb": "probe", "step": "reboot"})["able"]
    assert not hangs.exists()
    host.deadlines = {"NVML": 0.1}
    assert "reset_gpu" in host.ask({"verb": "probe", "step": "reset_gpu"})["able"], "a reset may be what it needs"
    assert hangs.exists()


def test_a_probe_says_what_can_be_done_and_changes_nothing(host: RepairHost) -> None:
    every = ["restart_service", "reset_gpu", "reset_all", "reload_driver", "reboot"]
    assert host.ask({"verb": "probe"}) == {"able": every, "unable": {}}
    host.switch()
    _no_reboot = host.settings | {"slurm": False, "steps": ("reset_gpu", "reboot")}
    host.settings = _no_reboot
    answer = host.ask({"verb": "probe"})
    assert answer["able"] == ["reset_all"]
    assert answer["unable"]["reset_gpu"].startswith("without a fabric manager")
    assert answer["unable"]["reboot"].startswith("nothing reboots this node")
    assert answer["unable"]["reload_driver"] == "repair.steps does not name reload_driver"
    assert host.effects == []
