"""gpuwarden as a service of a real systemd, in a machine of its own: started, hung, killed, frozen, and shut down.

One machine for all of it; the tests follow each other, and each leaves the daemon running.
"""

from __future__ import annotations

import json
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.machine import Machine, debian_tree
from support.machine_gpuwarden import HOME, UNITS, FakeGpus, install, require_same_python, set_profile
from support.mounts import ext4, frozen

pytestmark = [pytest.mark.disposable, pytest.mark.xdist_group("systemd")]

UNIT = "gpuwarden.service"
DROP_INS = f"/etc/systemd/system/{UNIT}.d"
QUICK = "[Service]\nRestartSec=100ms\nTimeoutAbortSec=1\n"
"""Only what would be waited for."""
NOT_LOADED, UNKNOWN = 9, 999  # nvml.h
CAPABILITIES = {"CHOWN": 0, "DAC_READ_SEARCH": 2, "SYSLOG": 34}
BESIDE = ("/var/lib/gpuwarden-slurm", "/run/gpuwarden-slurm", "/run/gpuwarden-slurm/jobs")
"""By what lies there root's scripts for Slurm go."""
DENIED = {"Read-only file system", "Permission denied", "Operation not permitted"}
CONFIGURATION = """
deadline = "2s"
[collectors.kernel_log]
enabled = false
[collectors.storage]
interval = "1s"
expected = ["/home/data"]
[plugins.who]
command = ["/bin/sh", "-c", "id -un; exit 1"]
interval = "1s"
[termination]
sources = ["shutdown"]
[checks.ledger_unavailable]
rise = "1s"
[checks.mount_missing]
rise = "1s"
fall = "1s"
[checks.device_permission]
fall = "1s"
"""
SEES_UVM = """
[Service]
ExecStartPre=/bin/sh -c 'if [ -c /dev/nvidia-uvm ]; then echo yes; else echo no; fi > /run/gpuwarden/seen'
"""
MAKES_UVM = """#!/bin/sh
sleep 0.5
[ -e /dev/nvidia-uvm ] || mknod -m 666 /dev/nvidia-uvm c 1 3
echo "$*" > /dev/made
"""
PROBE = """
import json, socket, sys
talk = socket.socket(socket.AF_UNIX)
talk.settimeout(60)
talk.connect(sys.argv[1])
talk.sendall(sys.argv[2].encode() + b"\\n")
print(talk.makefile().readline())
"""


class Watched:
    """The machine, its GPUs, and the status of its daemon."""

    def __init__(self, machine: Machine, gpus: FakeGpus, disk: Path) -> None:
        self.machine = machine
        self.fake = gpus.fake
        self.environment = gpus.environment()
        self.disk = disk

    def pid(self) -> int:
        return int(self.machine.show(UNIT, "MainPID"))

    def restarts(self) -> int:
        return int(self.machine.show(UNIT, "NRestarts"))

    def workers(self) -> list[int]:
        """Return the workers of the running daemon, as numbers of the machine."""
        proc, daemon = self.machine.path("/proc"), self.pid()
        try:
            pids = (proc / f"{daemon}/task/{daemon}/children").read_text().split()
            return [int(pid) for pid in pids if b"NvmlReader" in (proc / pid / "cmdline").read_bytes()]
        except OSError:  # one of them has just ended
            return []

    def signal(self, pid: int, number: signal.Signals) -> None:
        self.machine.run("python3", "-c", f"import os; os.kill({pid}, {number})")

    def in_d_state(self, pid: int) -> bool:
        try:
            stats = list(self.machine.path(f"/proc/{pid}/task").glob("*/stat"))
            return any(stat.read_text().rpartition(") ")[2].startswith("D") for stat in stats)
        except OSError:  # a thread has just ended
            return False

    def shown(self) -> dict[str, str]:
        names = "MainPID,ActiveState,StatusText"
        lines = self.machine.output("systemctl", "show", f"--property={names}", UNIT).splitlines()
        properties = {name: value for name, _, value in (line.partition("=") for line in lines)}
        return {name: properties.get(name, "") for name in names.split(",")}

    def status_shows(self, text: str) -> bool:
        return text in self.shown()["StatusText"]

    def active(self) -> bool:
        return self.shown()["ActiveState"] == "active"

    def wait_status_shows(self, *texts: str) -> None:
        """Wait until the status of a ready daemon shows all of these texts."""

        def found() -> bool:
            shown = self.shown()
            return shown["ActiveState"] == "active" and all(text in shown["StatusText"] for text in texts)

        self.machine.wait(found, f"{texts}; at first it was {self.machine.show(UNIT, 'StatusText')}")

    def observed(self) -> bool:
        """Return True if the last pass of NVML came to its end: the first may take longer than its deadline."""
        status = json.loads(self.machine.output(f"{HOME}/bin/gpuwarden", "status", "--json") or "{}")
        return any(each["name"] == "nvml" and each["outcome"] == "observed" for each in status.get("collectors", ()))

    def wait_another(self, pid: int) -> None:
        def another() -> bool:
            shown = self.shown()
            return shown["MainPID"] not in ("0", str(pid)) and shown["ActiveState"] == "active"

        self.machine.wait(another, "another daemon that is ready")

    def drop_in(self, text: str) -> None:
        self.machine.write(f"{DROP_INS}/60-test.conf", text)
        self.machine.run("systemctl", "daemon-reload")


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    require_same_python()
    tree = debian_tree()
    with tempfile.TemporaryDirectory(prefix="gw-") as name, ext4(Path(name) / "disk") as disk:
        folder = Path(name)
        folder.chmod(0o755)
        disk.chmod(0o777)
        gpus = FakeGpus(folder)
        machine = Machine(tree, folder, binds={**gpus.binds, disk: "/frozen"})
        install(machine, gpus, gpus.configuration(CONFIGURATION))
        machine.write(
            "/etc/fstab", "tmpfs /home/data tmpfs size=1m,mode=0755\ntmpfs /home/private/data tmpfs size=1m\n"
        )
        machine.path("/home/private").mkdir(parents=True, mode=0o700)
        machine.write(f"{DROP_INS}/55-quick.conf", QUICK)
        machine.write("/root/ask.py", PROBE)
        machine.copy(Path(__file__).parents[1] / "support/probe.py", "/root/probe.py")
        gpus.fake.hang("*", "nvmlInitWithFlags")
        with machine:
            yield Watched(machine, gpus, disk)


@pytest.mark.slow
def test_a_driver_that_hangs_in_its_initialisation_is_a_verdict_and_no_start_that_never_ends(watched: Watched) -> None:
    watched.machine.wait(watched.active, "to be ready with a driver that hangs")
    assert watched.status_shows("UNKNOWN")
    assert watched.restarts() == 0

    def ready() -> list[str]:
        return [line for line in watched.machine.journal(UNIT).splitlines() if '"event": "ready"' in line]

    watched.machine.wait(ready, "the journal to have it")
    assert len(ready()) == 1
    print(ready()[0])  # noqa: T201 - the figure is wanted, and asserted nowhere
    watched.fake.clear()
    watched.wait_status_shows("2 of 2 GPUs")


@pytest.mark.slow
def test_the_units_are_without_fault(watched: Watched) -> None:
    units = [unit.name.replace("@.", "@1.") for kind in ("service", "socket") for unit in UNITS.glob(f"*.{kind}")]
    assert len(units) >= 8
    done = watched.machine.run("systemd-analyze", "verify", "--man=no", *units)
    assert done.stdout + done.stderr == ""
    assert watched.machine.output("systemctl", "--failed", "--quiet", "--plain") == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("profile", "user", "capabilities"),
    [
        ("observe", "gpuwarden", {"SYSLOG"}),
        ("jobs", "gpuwarden", {"SYSLOG", "DAC_READ_SEARCH"}),
        ("enforce", "root", {"SYSLOG", "DAC_READ_SEARCH", "CHOWN"}),
    ],
)
def test_a_profile_gives_what_is_promised_and_no_more(
    watched: Watched, profile: str, user: str, capabilities: set[str]
) -> None:
    machine = watched.machine
    set_profile(machine, profile)
    machine.run("install", "-m", "0644", "/dev/null", "/run/gpuwarden-slurm/jobs/4711")
    answers = probed(machine, profile)
    beside = {answer for name in BESIDE if (answer := answers.pop(f"write {name}/probe"))}
    assert beside == {"written"} if user == "root" else beside <= {*DENIED, "No such file or directory"}
    assert answers.pop("user") == int(machine.output("id", "-u", user))
    assert answers.pop("capabilities") == sorted(CAPABILITIES[name] for name in capabilities)
    assert answers.pop("systemctl") == "dbus.service"
    assert answers.pop("network") == "listens"
    assert answers.pop("/home/private/data") == ("True" if "DAC_READ_SEARCH" in capabilities else "Permission denied")
    assert answers.pop("become another") == "refused"
    assert answers.pop("set the host's name") in DENIED
    own = {"write /run/gpuwarden/probe", "write /var/lib/gpuwarden/probe", "write /tmp/probe"}
    assert {answers.pop(name) for name in own} == {"written"}
    refused = {name: answer for name, answer in answers.items() if name.startswith("write ")}
    assert set(refused.values()) <= DENIED, refused
    assert {answer for name, answer in answers.items() if name not in refused} == {"True"}, answers

    machine.run("systemctl", "restart", UNIT)
    watched.wait_status_shows("2 of 2 GPUs")


@pytest.mark.slow
def test_what_root_s_scripts_obey_and_write_by_stays_root_s_when_the_daemon_becomes_another_user(
    watched: Watched,
) -> None:
    machine = watched.machine
    for profile, owner in (("enforce", "root"), ("observe", "gpuwarden")):
        set_profile(machine, profile)
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "restart", UNIT)
        watched.wait_status_shows("2 of 2 GPUs")
        owners = machine.output(
            "stat", "-c", "%U %a", "/var/lib/gpuwarden", "/var/lib/gpuwarden-slurm", "/run/gpuwarden-slurm", "/run/gpuwarden-slurm/jobs"
        )  # fmt: skip
        assert owners.split("\n") == [f"{owner} 750", "root 750", "root 750", "root 750"]


@pytest.mark.slow
def test_what_is_mounted_and_unmounted_on_the_host_is_seen_in_the_sandbox(watched: Watched) -> None:
    watched.machine.run("umount", "/home/data")
    watched.wait_status_shows("mount_missing")
    watched.machine.run("mount", "/home/data")
    watched.machine.wait(lambda: not watched.status_shows("mount_missing"), "the mount's return")


def probed(machine: Machine, profile: str) -> dict[str, object]:
    """Return what a process may do that is started by the rules of our unit."""
    away = (
        "Type=",
        "ExecStart=",
        "ExecReload=",
        "Restart",
        "Watchdog",
        "Success",
        "Sockets=",
        "RuntimeDirectoryPreserve",
    )
    lines = [line for line in (UNITS / UNIT).read_text().splitlines() if not line.startswith(away)]
    service = "Type=oneshot\nRuntimeDirectoryPreserve=yes\nExecStart=/usr/bin/python3 /usr/lib/probe.py /var/lib/gpuwarden/probed\n"
    machine.write("/etc/systemd/system/probe.service", "\n".join(lines).replace("[Service]\n", f"[Service]\n{service}"))
    machine.copy(Path(__file__).parents[1] / "support/probe.py", "/usr/lib/probe.py")
    machine.copy(UNITS / "profiles" / f"{profile}.conf", "/etc/systemd/system/probe.service.d/10-profile.conf")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "stop", UNIT)
    machine.run("systemctl", "start", "probe.service")
    answers: dict[str, object] = json.loads(machine.path("/var/lib/gpuwarden/probed").read_text())
    return answers


def test_a_site_check_runs_as_its_own_user_outside_and_only_if_it_is_configured(watched: Watched) -> None:
    watched.wait_status_shows("plugin_who")
    findings = json.loads(watched.machine.output(f"{HOME}/bin/gpuwarden", "status", "--json"))
    assert "gpuwarden-checks" in json.dumps(findings)
    asked = watched.machine.run("python3", "/root/ask.py", "/run/gpuwarden-checks.sock", "/bin/sh")
    assert "no site check" in asked.stdout
    nobody = ("setpriv", "--reuid=65534", "--clear-groups")
    refused = watched.machine.run(*nobody, "python3", "/root/ask.py", "/run/gpuwarden-checks.sock", "who", check=False)
    assert "PermissionError" in refused.stderr


@pytest.mark.slow
def test_a_test_before_a_return_runs_in_its_own_unit_and_its_workers_as_a_user_without_rights(watched: Watched) -> None:
    """The test gets as far as its workers, which see that this machine is no host."""
    machine, path = watched.machine, "/run/gpuwarden-test.sock"
    watched.wait_status_shows("2 of 2 GPUs")
    machine.write("/etc/systemd/system/gpuwarden-test@.service.d/50-fake.conf", watched.environment)
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", "gpuwarden-test.socket")
    probed = json.loads(machine.run("python3", "/root/ask.py", path, '{"verb": "probe"}').stdout)
    assert "libcuda.so.1" in probed["lacking"]
    answer = json.loads(machine.run("python3", "/root/ask.py", path, '{"verb": "test", "level": "gate"}').stdout)
    assert {(gpu["obstacle"], gpu["verdict"]) for gpu in answer["gpus"]} == {("unsupported", "no_verdict")}, answer
    assert all("in the host's PID namespace" in gpu["text"] for gpu in answer["gpus"]), answer
    assert answer["notes"] == []
    assert "test_begun" in machine.output(f"{HOME}/bin/gpuwarden", "events", "--since", "10m")
    owner = machine.output("stat", "--format=%U %a", "/var/lib/gpuwarden-test").strip()
    assert owner == "gpuwarden 700"
    nobody = ("setpriv", "--reuid=65534", "--clear-groups")
    refused = machine.run(*nobody, "python3", "/root/ask.py", path, '{"verb": "probe"}', check=False)
    assert "PermissionError" in refused.stderr
    machine.run("systemctl", "stop", "gpuwarden-test.socket")


@pytest.mark.slow
def test_the_device_of_uvm_is_made_before_a_test_each_time_that_it_is_missing_and_its_maker_may_be_missing_too(
    watched: Watched,
) -> None:
    """The machine has no driver: where one would show in /proc and /sys there is another folder."""
    machine, unit, device = watched.machine, "gpuwarden-uvm.service", "/dev/nvidia-uvm"
    text = (UNITS / unit).read_text().replace("/proc/driver/nvidia/", "/run/driver/").replace("/sys/module/", "/run/")
    machine.write(f"/etc/systemd/system/{unit}", text)
    machine.write("/etc/systemd/system/gpuwarden-test@.service.d/60-order.conf", SEES_UVM)
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", "gpuwarden-test.socket")
    machine.run("rm", "-rf", "/run/driver", "/run/nvidia_uvm", device)

    def seen() -> str:
        """Return whether the device was there when a test began."""
        machine.run("python3", "/root/ask.py", "/run/gpuwarden-test.sock", "{}", check=False)
        return machine.output("cat", "/run/gpuwarden/seen")

    machine.write("/usr/bin/nvidia-modprobe", MAKES_UVM, mode=0o755)
    assert seen() == "no", "there is no driver"
    machine.write("/run/driver/version", "")
    machine.write("/run/nvidia_uvm/initstate", "live")
    assert seen() == "yes"
    assert machine.output("cat", "/dev/made") == "-u -c 0"
    machine.run("rm", "/dev/made")
    assert seen() == "yes"
    assert machine.output("cat", "/dev/made") == "", "it is there already"
    machine.run("rm", "-r", "/run/nvidia_uvm")
    assert (seen(), machine.output("cat", "/dev/made")) == ("yes", "-u -c 0"), "the module was removed"
    machine.run("rm", "/usr/bin/nvidia-modprobe", device)
    assert seen() == "no"
    assert machine.output("systemctl", "--failed", "--quiet", "--plain") == ""
    machine.run("systemctl", "stop", "gpuwarden-test.socket")
    machine.run("rm", f"/etc/systemd/system/{unit}", "/etc/systemd/system/gpuwarden-test@.service.d/60-order.conf")
    machine.run("systemctl", "daemon-reload")


@pytest.mark.slow
def test_jobs_and_containers_see_the_same_folder_and_socket_whatever_becomes_of_the_daemon(watched: Watched) -> None:
    machine = watched.machine
    run_dir, job = machine.path("/run/gpuwarden"), machine.path("/run/gpuwarden/job.sock")
    before = run_dir.stat().st_ino, job.stat().st_ino
    machine.run("systemctl", "restart", UNIT)
    machine.run("systemctl", "stop", UNIT)
    assert (run_dir.stat().st_ino, job.stat().st_ino) == before
    asked = machine.run("python3", "/root/ask.py", "/run/gpuwarden/job.sock", '{"verb": "status"}')  # which starts it
    assert json.loads(asked.stdout)["ok"]
    assert (run_dir.stat().st_ino, job.stat().st_ino) == before


@pytest.mark.slow
def test_the_daemon_brings_its_socket_of_jobs_whichever_of_them_is_started_first(watched: Watched) -> None:
    machine, both = watched.machine, (UNIT, "gpuwarden-job.socket")
    for start in (("enable", "--now", *both), ("start", UNIT)):
        machine.run("systemctl", "stop", *both)
        machine.run("systemctl", *start)
        assert [machine.show(each, "ActiveState") for each in both] == ["active"] * 2
    machine.run("systemctl", "stop", both[1])
    machine.run("systemctl", "restart", UNIT)
    assert machine.show(both[1], "ActiveState") == "active"


@pytest.mark.slow
def test_a_faulty_configuration_starts_with_the_last_good_one_or_is_tried_once_and_a_check_reports_why_it_was_not_run(
    watched: Watched,
) -> None:
    machine = watched.machine
    fault = "/etc/gpuwarden/conf.d/99-fault.toml"
    machine.write(fault, "[plugins.who]\nnonsense = 1\n")
    asked = machine.run("python3", "/root/ask.py", "/run/gpuwarden-checks.sock", "who", check=False)
    assert "exit_code" not in asked.stdout
    machine.wait(lambda: "nonsense" in machine.journal("gpuwarden-checks@*"), "the reason in the journal")

    machine.run("systemctl", "stop", UNIT)
    asked = machine.run("python3", "/root/ask.py", "/run/gpuwarden/job.sock", '{"verb": "status"}')
    assert json.loads(asked.stdout)["ok"]
    watched.wait_status_shows("2 of 2 GPUs", "config_faulty")

    machine.run("systemctl", "stop", UNIT)
    machine.run("find", "/var/lib", "-name", "last-good-configuration.json", "-delete")
    started = machine.journal(UNIT).count("Starting gpuwarden.service")
    asked = machine.run("python3", "/root/ask.py", "/run/gpuwarden/job.sock", '{"verb": "status"}', check=False)
    assert "ok" not in asked.stdout
    machine.wait(lambda: machine.show(UNIT, "ActiveState") == "failed", "the refusal to start")
    assert machine.show(UNIT, "ExecMainStatus") == "64"
    assert machine.show("gpuwarden-job.socket", "ActiveState") == "active"
    machine.wait(
        lambda: machine.journal(UNIT).count("Starting gpuwarden.service") > started, "the start in the journal"
    )
    assert machine.show(UNIT, "NRestarts") == "0"
    machine.run("rm", fault)
    machine.run("systemctl", "start", UNIT)
    watched.wait_status_shows("2 of 2 GPUs")


def test_roots_check_of_the_configuration_finds_a_file_that_the_daemons_user_may_not_read(watched: Watched) -> None:
    machine, drop_in = watched.machine, "/etc/gpuwarden/conf.d/70-mine.toml"
    profile = Path(machine.output("readlink", f"{DROP_INS}/10-profile.conf")).stem
    set_profile(machine, "observe")
    machine.run("systemctl", "daemon-reload")
    check = (f"{HOME}/bin/gpuwarden", "config", "check")
    machine.write(drop_in, '[log]\nlevel = "info"\n', mode=0o600)
    done = machine.run(*check, check=False)
    assert done.returncode == 64
    assert f"the daemon's user, gpuwarden, the configuration has a fault:\n  {drop_in}: cannot be read" in done.stderr
    assert "chgrp gpuwarden and chmod g+r" in done.stderr
    machine.run("chgrp", "gpuwarden", drop_in)
    machine.run("chmod", "g+r", drop_in)
    assert machine.run(*check).stdout.startswith("the configuration is valid")
    machine.path(drop_in).unlink()
    set_profile(machine, profile)
    machine.run("systemctl", "daemon-reload")


def test_nothing_of_systemds_reaches_a_child_of_the_daemon(watched: Watched) -> None:
    watched.machine.wait(watched.workers, "a worker")
    environment = watched.machine.path(f"/proc/{watched.workers()[0]}/environ").read_bytes()
    names = {entry.partition(b"=")[0].decode() for entry in environment.split(b"\0")}
    assert not names & {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"}


def test_a_worker_that_is_killed_is_replaced_and_the_daemon_stays(watched: Watched) -> None:
    watched.wait_status_shows("2 of 2 GPUs")
    daemon, (worker, *_) = watched.pid(), watched.workers()
    watched.signal(worker, signal.SIGKILL)
    watched.machine.wait(lambda: watched.workers() not in ([], [worker]), "another worker")
    watched.wait_status_shows("2 of 2 GPUs")
    assert watched.pid() == daemon


@pytest.mark.slow
def test_beside_a_worker_in_d_state_restart_and_watchdog_bring_the_daemon_back(watched: Watched) -> None:
    machine = watched.machine
    watched.drop_in("[Service]\nWatchdogSec=20\nReadWritePaths=/frozen\n")
    machine.run("systemctl", "restart", UNIT)
    watched.wait_status_shows("2 of 2 GPUs")
    with frozen(watched.disk):
        first = stuck_worker(watched, "first")
        daemon, begun = watched.pid(), time.monotonic()
        machine.run("systemctl", "restart", UNIT)
        print(f"systemctl restart beside a worker in D state: {time.monotonic() - begun:.1f} s")  # noqa: T201 - as above
        assert watched.pid() not in (0, daemon)
        assert machine.show(UNIT, "Result") == "success"  # no part of it ran into TimeoutStopSec
        watched.wait_status_shows("2 of 2 GPUs")
        assert watched.in_d_state(first)

        second = stuck_worker(watched, "second")
        daemon, before = watched.pid(), watched.restarts()
        watched.signal(daemon, signal.SIGSTOP)
        watched.wait_another(daemon)
        assert watched.restarts() > before
        machine.wait(lambda: "Watchdog timeout" in machine.journal(UNIT), "the reason in the journal")
        watched.wait_status_shows("2 of 2 GPUs")
        assert watched.in_d_state(second)
    watched.drop_in("")  # for the next start


def stuck_worker(watched: Watched, name: str) -> int:
    """The NVML worker of the daemon, asleep in the kernel: it makes a file on a frozen disk. The next one will not."""
    watched.machine.wait(watched.workers, "a worker")
    worker = watched.workers()[0]
    watched.fake.add(f"hang * nvmlDeviceGetCount_v2 once=/frozen/{name}")
    watched.machine.wait(lambda: watched.in_d_state(worker), "a worker in D state")
    watched.fake.clear()
    return worker


@pytest.mark.slow
def test_a_full_disk_and_a_state_directory_that_is_removed_stop_neither_the_daemon_nor_the_next(
    watched: Watched,
) -> None:
    machine = watched.machine
    machine.run("systemctl", "stop", UNIT)
    machine.run("mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", "/var/lib/gpuwarden")
    machine.run("systemctl", "start", UNIT)
    watched.wait_status_shows("2 of 2 GPUs")

    fill = ("dd", "if=/dev/zero", "of=/var/lib/gpuwarden/fill", "bs=4k", "oflag=append", "conv=notrunc")

    def failed() -> bool:
        machine.run(*fill, check=False)  # each time: to open the ledger again frees the room of its log
        watched.fake.xid(1, 95)  # a listener that starts later gets the next one
        status = watched.shown()["StatusText"]
        return "FAILURE" in status and "ledger_unavailable" in status

    machine.wait(failed, "a failure that is judged without a ledger")
    watched.fake.clear()

    machine.run("systemctl", "stop", UNIT)
    machine.run("umount", "/var/lib/gpuwarden")
    machine.run("rm", "-r", "/var/lib/gpuwarden")
    machine.run("systemctl", "start", UNIT)
    assert watched.active()
    machine.wait(machine.path("/var/lib/gpuwarden/ledger.db").exists, "a new ledger")


@pytest.mark.slow
def test_a_driver_that_comes_later_and_may_not_be_opened_is_reported_and_restarts_the_daemon_once(
    watched: Watched,
) -> None:
    machine = watched.machine
    set_profile(machine, "observe")
    watched.fake.instead().init_error(NOT_LOADED)
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", UNIT)
    machine.wait(watched.observed, "a pass of NVML")
    before, daemon = watched.restarts(), watched.pid()
    machine.run("mknod", "--mode=0600", "/dev/nvidiactl", "c", "195", "255")
    watched.fake.instead().init_error(UNKNOWN)
    watched.wait_another(daemon)
    assert watched.restarts() == before + 1
    machine.wait(lambda: "the driver came after the start" in machine.journal(UNIT), "the reason in the journal")
    watched.wait_status_shows("UNKNOWN", "device_permission")

    watched.fake.instead().init_error(NOT_LOADED)
    machine.run("systemctl", "restart", UNIT)
    machine.wait(lambda: watched.active() and not watched.status_shows("device_permission"), "no driver")
    machine.wait(watched.observed, "a pass of NVML")
    daemon = watched.pid()
    watched.fake.instead().init_error(UNKNOWN)
    watched.wait_status_shows("UNKNOWN", "device_permission")
    assert watched.pid() == daemon  # once in a boot
    machine.run("rm", "/dev/nvidiactl")
    watched.fake.clear()
    watched.wait_status_shows("2 of 2 GPUs")


@pytest.mark.slow
def test_the_shutdown_of_the_machine_is_a_notice_before_it_is_an_end(watched: Watched) -> None:
    machine = watched.machine
    set_profile(machine, "enforce")
    machine.copy(UNITS / "termination.conf", "/etc/systemd/system/gpuwarden.service.d/20-termination.conf")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", UNIT)
    machine.wait(lambda: "gpuwarden" in machine.output("systemd-inhibit", "--list"), "an inhibitor")
    machine.poweroff()
    lines = machine.journal(UNIT).splitlines()
    noticed = next(n for n, line in enumerate(lines) if "PrepareForShutdown" in line)
    stopped = next(n for n, line in enumerate(lines) if n > noticed and "Stopping gpuwarden.service" in line)
    assert '"event": "stopped"' in "\n".join(lines[stopped:])
