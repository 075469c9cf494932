"""The files for systemd as they are written: what cannot be enforced in a machine of the tests is checked here by its text."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gpuwarden.base.paths import STATE_DIR, bundles
from gpuwarden.features.active_test.gate.client import PROBE_WITHIN
from gpuwarden.features.bundle.daemon import ANSWERED_WITHIN
from gpuwarden.features.bundle.options import BundleOptions
from gpuwarden.features.repair.helper import services
from gpuwarden.features.repair.helper.gpus import DRIVER_WITHIN, HOST_WITHIN
from gpuwarden.features.repair.helper.host import Host
from gpuwarden.features.repair.helper.table import LOADED_WITHIN, MODULES, PERSISTENCE_WITHIN, STEPS
from support.needs import systemd_analyze

UNITS = Path(__file__).parents[2] / "systemd"
SERVICE = UNITS / "gpuwarden.service"
LIMITS = {"observe": 2.3, "jobs": 2.6, "enforce": 3.2}
"""Of what `systemd-analyze security` calls exposure."""
HARMFUL = {
    "CAP_SYS_ADMIN",
    "CAP_SYS_PTRACE",
    "CAP_DAC_OVERRIDE",
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_NET_ADMIN",
    "CAP_SYS_BOOT",
}


def settings(*files: Path) -> dict[str, list[str]]:
    """All values of each key, in order; a comment and a section are none."""
    values: dict[str, list[str]] = {}
    for file in files:
        for line in file.read_text().splitlines():
            key, sign, value = line.partition("=")
            if sign and not line.startswith(("#", "[")):
                values.setdefault(key, []).append(value)
    return values


def profile(name: str) -> Path:
    return UNITS / "profiles" / f"{name}.conf"


def exposure(unit: str, root: Path) -> float:
    systemd_analyze()
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", f"--root={root}", "--no-pager", unit],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    score = re.search(rf"exposure level for {re.escape(unit)}: ([\d.]+)", done.stdout)
    assert score is not None, done.stderr
    return float(score[1])


@pytest.mark.parametrize(("name", "limit"), LIMITS.items())
def test_the_exposure_of_a_profile_is_within_its_documented_limit(name: str, limit: float, tmp_path: Path) -> None:
    folder = tmp_path / "etc/systemd/system"
    (folder / "gpuwarden.service.d").mkdir(parents=True)
    shutil.copy(SERVICE, folder)
    shutil.copy(profile(name), folder / "gpuwarden.service.d/10-profile.conf")
    assert exposure("gpuwarden.service", tmp_path) <= limit


@pytest.mark.parametrize("name", ["dstack", "nvhcd"])
def test_who_only_answers_is_closed_to_nearly_everything(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "etc/systemd/system"
    folder.mkdir(parents=True)
    shutil.copy(UNITS / f"gpuwarden-{name}.service", folder)
    shutil.copy(UNITS / f"gpuwarden-{name}.socket", folder)
    assert exposure(f"gpuwarden-{name}.service", tmp_path) <= 1.5


@pytest.mark.parametrize("unit", [*UNITS.glob("*.service"), *UNITS.glob("profiles/*.conf")], ids=lambda file: file.name)
def test_no_unit_needs_user_namespaces_which_hardened_hosts_do_not_have(unit: Path) -> None:
    """A unit with PrivateUsers does not start if `user.max_user_namespaces` is 0, as the STIG of RHEL 9 and its kin
    set it (systemd#34983).
    """
    assert "PrivateUsers" not in settings(unit)


@pytest.mark.parametrize("name", LIMITS)
def test_every_capability_of_a_profile_is_explained_beside_it(name: str) -> None:
    values = settings(profile(name))
    granted = set(" ".join(values["CapabilityBoundingSet"]).split())
    ambient = set(" ".join(values.get("AmbientCapabilities", [])).split())
    comments = "\n".join(line for line in profile(name).read_text().splitlines() if line.startswith("#"))
    assert ambient == (granted if values["User"] != ["root"] else set())
    assert not granted & HARMFUL
    assert {
        capability for capability in granted if capability not in comments and "kernel log" not in comments
    } == set()


def test_without_a_profile_it_has_no_capability() -> None:
    assert settings(SERVICE)["CapabilityBoundingSet"] == [""]


def test_the_daemon_cannot_take_from_jobs_what_is_theirs() -> None:
    values = settings(SERVICE)
    for key in ("MemoryMax", "CPUQuota", "TasksMax", "Nice", "OOMScoreAdjust"):
        assert len(values[key]) == 1
    assert int(values["Nice"][0]) > 0
    assert values["LimitCORE"] == ["0"]


def test_devices_are_named_by_number_too_since_names_are_resolved_once() -> None:
    values = settings(SERVICE)
    assert values["DevicePolicy"] == ["closed"]
    assert "char-195 rw" in values["DeviceAllow"]
    assert "/dev/kmsg r" in values["DeviceAllow"]


def test_it_is_started_stopped_and_watched_as_the_daemon_expects_it() -> None:
    values = settings(SERVICE)
    wanted = {
        "Type": "notify", "NotifyAccess": "main", "KillMode": "process", "WatchdogSec": "90", "TimeoutStartSec": "60",
        "Restart": "always", "RestartPreventExitStatus": "64", "SuccessExitStatus": "75", "RuntimeDirectoryPreserve": "yes",
        "SystemCallErrorNumber": "EPERM", "ProtectSystem": "strict", "ProtectHome": "read-only",
    }  # fmt: skip
    assert {key: values[key] for key in wanted} == {key: [value] for key, value in wanted.items()}
    assert int(values["TimeoutStopSec"][0]) <= 20
    assert int(settings(UNITS / "termination.conf")["TimeoutStopSec"][0]) > 20
    assert "nvidia-persistenced.service" in values["After"][0]


def test_the_service_of_the_return_gate_opens_the_gpus_and_uvm_only_and_has_a_control_group_that_ends_with_it() -> None:
    values = settings(UNITS / "gpuwarden-test@.service")
    assert values["DevicePolicy"] == ["closed"]
    opened = {device.split()[0] for device in values["DeviceAllow"]}
    assert opened == {device for device in opened if device.startswith("char-nvidia")} | {"char-195"}
    assert "char-nvidia-uvm" in opened
    assert (values["KillMode"], values["StandardInput"]) == (["control-group"], ["socket"])
    assert settings(UNITS / "gpuwarden-test.socket")["SocketMode"] == ["0660"]
    assert "gpuwarden-test.socket" not in settings(SERVICE)["Also"][0], "it is for those who want a gate"


def test_the_device_of_uvm_is_made_before_the_rules_of_a_test_name_it_and_by_a_unit_that_may() -> None:
    """ProtectClock and similar settings allow a list of devices, which lacks that of uvm."""
    test, values = settings(UNITS / "gpuwarden-test@.service"), settings(UNITS / "gpuwarden-uvm.service")
    assert "gpuwarden-uvm.service" in test["Wants"][0].split()
    assert "gpuwarden-uvm.service" in test["After"][0].split()
    assert (values["Type"], values["ExecStart"]) == (["oneshot"], ["-/usr/bin/nvidia-modprobe -u -c 0"])
    assert set(values["CapabilityBoundingSet"][0].split()) == {"CAP_SYS_MODULE", "CAP_MKNOD", "CAP_CHOWN", "CAP_FOWNER"}
    assert "@module" in values["SystemCallFilter"][0].split()
    closing = {"ProtectKernelModules", "ProtectClock", "PrivateDevices", "DeviceAllow", "DevicePolicy", "WantedBy"}
    assert not closing & values.keys()
    limits = [int(values[key][0]) for key in ("TimeoutStartSec", "TimeoutStopSec")]
    assert limits[0] + 4 * limits[1] < PROBE_WITHIN / 2


def test_the_exposure_of_the_service_of_the_return_gate_is_no_more_than_its_capabilities_need(tmp_path: Path) -> None:
    folder = tmp_path / "etc/systemd/system"
    folder.mkdir(parents=True)
    for name in ("gpuwarden-test@.service", "gpuwarden-test.socket"):
        shutil.copy(UNITS / name, folder)
    assert exposure("gpuwarden-test@i.service", tmp_path) <= 3.1


def test_the_helper_of_repairs_can_do_what_its_steps_need_and_each_capability_is_explained(tmp_path: Path) -> None:
    file = UNITS / "gpuwarden-repair@.service"
    values, socket = settings(file), settings(UNITS / "gpuwarden-repair.socket")
    comments = "\n".join(line for line in file.read_text().splitlines() if line.startswith("#"))
    assert {
        capability for capability in values["CapabilityBoundingSet"][0].split() if capability not in comments
    } == set()
    assert values["DevicePolicy"] == ["closed"]
    opened = {device.split()[0] for device in values["DeviceAllow"] if not device.endswith(" m")}
    assert opened == {device for device in opened if device.startswith("char-nvidia")} | {"char-195"}
    assert "char-nvidia-uvm" not in opened
    assert (values["StateDirectory"], values["StateDirectoryMode"]) == (["gpuwarden-repair"], ["0700"])
    assert (values["KillMode"], values["ExecStopPost"]) == (["mixed"], [f"{values['ExecStart'][0]} --settle"])
    assert (socket["SocketMode"], socket["SocketGroup"], socket["Accept"]) == (["0660"], ["gpuwarden"], ["yes"])
    assert "gpuwarden-repair.socket" not in settings(SERVICE)["Also"][0], "it is for those who want repairs"
    folder = tmp_path / "etc/systemd/system"
    folder.mkdir(parents=True)
    for name in ("gpuwarden-repair@.service", "gpuwarden-repair.socket"):
        shutil.copy(UNITS / name, folder)
    assert exposure("gpuwarden-repair@i.service", tmp_path) <= 4.6


def test_no_profile_of_the_daemon_can_write_what_the_helper_of_repairs_remembers() -> None:
    notebook = Host().folder
    for file in (SERVICE, *UNITS.glob("profiles/*.conf")):
        values = settings(file)
        written = " ".join(values.get("ReadWritePaths", []) + values.get("StateDirectory", [])).split()
        assert not any(notebook.name == Path(path.lstrip("-")).name for path in written)
    assert settings(SERVICE)["ProtectSystem"] == ["strict"]


def test_only_the_termination_drop_in_lets_ranks_be_signalled_and_stops_the_daemon_before_what_runs_them() -> None:
    values = settings(UNITS / "termination.conf")
    assert values["CapabilityBoundingSet"] == ["CAP_KILL CAP_SYS_PTRACE"]
    assert {"slurmd.service", "docker.service", "containerd.service"} <= set(" ".join(values["After"]).split())


def test_only_root_s_profile_has_the_folder_that_slurm_s_prolog_obeys() -> None:
    """Systemd would give the folder to the user of the other profiles."""
    assert settings(profile("enforce"))["StateDirectory"] == ["gpuwarden-slurm"]
    for file in (SERVICE, profile("observe"), profile("jobs")):
        folders = settings(file).get("StateDirectory", []) + settings(file).get("RuntimeDirectory", [])
        assert not any("-slurm" in folder for folder in folders)
    rows = [line.split() for line in (UNITS / "gpuwarden.tmpfiles").read_text().splitlines() if line.startswith("d ")]
    notes = [row for row in rows if row[1].startswith("/run/gpuwarden-slurm")]
    assert [row[2:5] for row in notes] == [["0750", "root", "gpuwarden"]] * 2


def test_the_timer_of_idle_tests_spreads_a_fleet_and_is_not_enabled_by_itself(tmp_path: Path) -> None:
    timer = settings(UNITS / "gpuwarden-test.timer")
    assert (timer["OnCalendar"], timer["RandomizedDelaySec"], timer["Unit"]) == (
        ["hourly"], ["55min"], ["gpuwarden-test-submit.service"],
    )  # fmt: skip
    assert "gpuwarden-test.timer" not in settings(SERVICE)["Also"][0]
    folder = tmp_path / "etc/systemd/system"
    folder.mkdir(parents=True)
    shutil.copy(UNITS / "gpuwarden-test-submit.service", folder)
    assert exposure("gpuwarden-test-submit.service", tmp_path) <= 4.3
    assert settings(UNITS / "gpuwarden-test-submit.service")["SuccessExitStatus"] == ["3 69 75"]


def test_all_deadlines_of_a_repair_together_are_less_than_its_unit_is_given() -> None:
    units, most_gpus = sum(map(len, services.UNITS.values())), 16
    reads = DRIVER_WITHIN + 2 * HOST_WITHIN + 4 * services.ASK_WITHIN
    stops, starts = units * services.STOP_WITHIN, units * services.START_WITHIN
    persistence = 2 * most_gpus * PERSISTENCE_WITHIN
    reload = len(MODULES) * (2 * STEPS["reload_driver"].within + LOADED_WITHIN)
    looks = HOST_WITHIN + DRIVER_WITHIN
    longest = reads + stops + max(persistence + STEPS["reset_all"].within, reload) + starts + looks
    assert round(longest / 60) == 92
    assert settings(UNITS / "gpuwarden-repair@.service")["RuntimeMaxSec"] == ["2h"]


def test_the_service_of_archives_is_root_s_has_a_folder_of_root_s_own_and_waits_no_longer_than_the_daemon(
    tmp_path: Path,
) -> None:
    values, socket = settings(UNITS / "gpuwarden-bundle@.service"), settings(UNITS / "gpuwarden-bundle.socket")
    assert (values["User"], values["StateDirectory"], values["StateDirectoryMode"]) == (
        ["root"], [bundles(STATE_DIR).name], ["0700"],
    )  # fmt: skip
    assert (values["RuntimeMaxSec"], values["StandardInput"], values["ProtectHome"]) == (["14min"], ["socket"], ["yes"])
    assert ANSWERED_WITHIN > 14 * 60
    assert (socket["SocketMode"], socket["ListenStream"]) == (["0660"], [str(BundleOptions().socket)])
    assert int(socket["MaxConnections"][0]) > 1, "who comes second is told so"
    assert "gpuwarden-bundle.socket" not in settings(SERVICE)["Also"][0], (
        "it is for those who want archives at failures"
    )
    folder = tmp_path / "etc/systemd/system"
    folder.mkdir(parents=True)
    for name in ("gpuwarden-bundle@.service", "gpuwarden-bundle.socket"):
        shutil.copy(UNITS / name, folder)
    assert exposure("gpuwarden-bundle@i.service", tmp_path) <= 4.1
