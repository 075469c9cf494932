"""dstack's agent is stopped on an idle host and nowhere else: with a real systemd and a kernel that holds connections back.

One machine, booted once; the tests follow each other. dstack's agent is played by a small server with its routes.
"""

from __future__ import annotations

import json
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import dstack_agent
from support.machine import Machine, debian_tree
from support.machine_gpuwarden import HOME, FakeGpus, install, require_same_python, set_profile

pytestmark = [pytest.mark.disposable, pytest.mark.xdist_group("systemd")]

UNIT, SHIM, PORT = "gpuwarden.service", "dstack-shim.service", 10998
CONFIGURATION = """
[collectors.kernel_log]
enabled = false
[breaker]
uncounted = "allow"
recount_after = "1s"
[dstack]
stop_shim_when_idle = true
[policy]
restore_passes = 2
restore_after = "0s"
look_every = "1m"
look_often = "5s"
[checks.gpu_missing]
rise = "1s"
fall = "1s"
"""
ASK = """
import http.client, json, sys
http = http.client.HTTPConnection("127.0.0.1", 10998, timeout=30)
http.request(sys.argv[1], sys.argv[2], json.dumps({"id": "job"}))
print(http.getresponse().read().decode())
"""
DRIVE = """
import asyncio, contextlib, http.client, json, os, random, signal, socket, subprocess, sys, threading, time
from pathlib import Path
from gpuwarden.actuators.base import ActuatorError
from gpuwarden.actuators.fleet_count import NoCounter
from gpuwarden.actuators.dstack_shim import firewall
from gpuwarden.actuators.dstack_shim.actuator import UNIT, DstackShimActuator
from gpuwarden.actuators.marker_file import MarkerFile
from gpuwarden.base.addresses import Address
from gpuwarden.policy.model import Act, Intent, Why
from gpuwarden.policy.reasons import operator
from gpuwarden_collectors.base import host_clock
from gpuwarden_collectors.host import boot_id

class Said:
    def __init__(self):
        self.http = http.client.HTTPConnection("127.0.0.1", 10998, timeout=3)
        self.http.connect()
    def submit(self, name):
        self.http.request("POST", "/api/tasks", json.dumps({"id": name}))
        return self.http.getresponse().read()

def shown(name):
    done = subprocess.run(["systemctl", "show", "--value", f"--property={name}", UNIT], capture_output=True, text=True)
    return done.stdout.strip()

def wait(condition, what):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)

def actuator():
    file = MarkerFile("dstack_shim", Path("/run/gpuwarden/excluded/dstack_shim"), node="machine", make_folder=True)
    return DstackShimActuator(
        file, address=Address("127.0.0.1", 10998), node="machine", boot_id=boot_id(Path("/proc")),
        counter=NoCounter("machine", allowed=True), clock=host_clock,
    )

def intent(act):
    reason = operator("root", "rack move")
    return Intent(act=act, actuator="dstack_shim", why=Why.OPERATOR, reason=reason, key="k", at=host_clock())

async def apply(act):
    one = actuator()
    try:
        return await one.apply(intent(act), await one.look()) or "done"
    except ActuatorError as error:
        return ("for good: " if error.permanent else "for now: ") + str(error)
    finally:
        await one.close()

def begin():
    subprocess.run(["systemctl", "restart", UNIT], check=True)
    for name in ("ended", "accepted"):
        Path("/root", name).unlink(missing_ok=True)
    def answers():
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", 10998)) == 0
    wait(answers, "the agent")
"""


class Host:
    """The machine, and what is typed there."""

    def __init__(self, machine: Machine, gpus: FakeGpus) -> None:
        self.machine = machine
        self.fake = gpus.fake

    def gpuwarden(self, *words: str) -> str:
        done = self.machine.run(f"{HOME}/bin/gpuwarden", *words, check=False)
        return done.stdout + done.stderr

    def acting(self) -> dict[str, list[dict[str, object]]]:
        said: dict[str, dict[str, list[dict[str, object]]]] = json.loads(
            self.machine.say(f"{HOME}/bin/gpuwarden", "status", "--json") or "{}"
        )
        return said.get("acting", {})

    def waits_for(self, text: str) -> None:
        self.machine.wait(lambda: text in json.dumps(self.acting().get("wanted")), text)

    def excluded(self) -> bool:
        return any(one.get("excluded") for one in self.acting().get("schedulers", ()))

    def shim(self) -> str:
        return self.machine.show(SHIM, "ActiveState")

    def ask(self, method: str, path: str) -> str:
        return self.machine.run("python3", "/root/ask.py", method, path).stdout

    def drive(self, program: str) -> list[str]:
        """What a program writes that is run there, after what is in DRIVE."""
        self.machine.write("/root/drive.py", DRIVE + textwrap.dedent(program))
        return self.machine.run(f"{HOME}/bin/python3", "/root/drive.py").stdout.splitlines()

    def is_open(self) -> bool:
        return not self.machine.show(SHIM, "IPAddressDeny") + self.machine.show(SHIM, "IPAddressAllow")

    def in_the_end(self) -> list[dict[str, str]]:
        """The tasks that the agent had, each time that it was stopped."""
        return [json.loads(line) for line in self.machine.say("cat", "/root/ended").splitlines()]


def booted(folder: Path, *, bpf: bool) -> tuple[Machine, FakeGpus]:
    require_same_python()
    folder.chmod(0o755)
    gpus = FakeGpus(folder)
    machine = Machine(debian_tree(), folder, binds=gpus.binds, bpf=bpf)
    install(machine, gpus, 'mode = "enforce"\n' + gpus.configuration(CONFIGURATION))
    set_profile(machine, "enforce")
    machine.copy(Path(dstack_agent.__file__), "/root/dstack_agent.py")
    machine.write(f"/etc/systemd/system/{SHIM}", dstack_agent.UNIT.format(port=PORT))
    wants = machine.path(f"/etc/systemd/system/multi-user.target.wants/{SHIM}")
    wants.parent.mkdir(parents=True, exist_ok=True)
    wants.symlink_to(f"../{SHIM}")
    machine.write("/root/ask.py", ASK)
    return machine, gpus


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with tempfile.TemporaryDirectory(prefix="gw-") as name:
        machine, gpus = booted(Path(name), bpf=True)
        with machine:
            yield Host(machine, gpus)


def test_while_a_job_runs_the_agent_is_left_alone_and_the_operator_is_told_what_it_waits_for(host: Host) -> None:
    host.machine.wait(lambda: host.shim() == "active" and "HEALTHY" in host.gpuwarden("status"), "a healthy node")
    host.ask("POST", "/api/tasks")
    host.fake.lost(1)
    host.waits_for("is stopped when no task is left on this host (1 running)")
    assert (host.shim(), host.excluded(), host.is_open()) == ("active", False, True)


def test_it_is_stopped_when_dstack_has_taken_note_of_the_last_job(host: Host) -> None:
    host.ask("POST", "/api/tasks/job/terminate")
    host.waits_for("has yet to take note of how the last task ended")
    assert host.shim() == "active"
    host.ask("POST", "/api/tasks/job/remove")
    host.machine.wait(host.excluded, "the exclusion")
    assert (host.shim(), host.in_the_end()) == ("inactive", [{}])
    host.machine.wait(host.is_open, "the firewall to be open")
    assert "gpuwarden-dstack-firewall" not in host.machine.say("systemctl", "list-units", "--all", "--plain")
    assert json.loads(host.machine.say("cat", "/run/gpuwarden/excluded/dstack_shim"))["cause"] == "failure"


def test_it_is_ours_to_a_daemon_that_was_killed_meanwhile(host: Host) -> None:
    host.machine.run("systemctl", "kill", "--signal=KILL", "--kill-whom=main", UNIT)
    host.machine.wait(host.excluded, "another daemon that knows of it")
    assert host.shim() == "inactive"


def test_a_person_who_takes_the_node_out_keeps_it_stopped(host: Host) -> None:
    assert "dstack_shim: done" in host.gpuwarden("exclude", "--reason", "rack move")
    assert json.loads(host.machine.say("cat", "/run/gpuwarden/excluded/dstack_shim"))["cause"] == "person"
    assert (host.shim(), host.excluded(), len(host.in_the_end())) == ("inactive", True, 1)


def test_it_is_started_again_when_the_node_is_restored(host: Host) -> None:
    host.fake.clear()
    host.machine.wait(lambda: "HEALTHY" in host.gpuwarden("status"), "a healthy node")
    assert "dstack_shim: done" in host.gpuwarden("restore")
    assert host.shim() == "active"
    assert host.machine.say("ls", "/run/gpuwarden/excluded") == ""


def test_whoever_starts_it_lifts_the_exclusion_and_whoever_stops_it_then_is_heeded(host: Host) -> None:
    host.gpuwarden("exclude", "--reason", "rack move")
    host.machine.wait(host.excluded, "the exclusion")
    host.machine.run("systemctl", "start", SHIM)
    host.machine.wait(lambda: not host.excluded(), "the exclusion to be seen lifted")
    assert host.shim() == "active"
    host.machine.run("systemctl", "stop", SHIM)
    said = host.gpuwarden("restore")
    assert "somebody else" in said
    assert host.shim() == "inactive"
    host.machine.run("systemctl", "start", SHIM)
    host.machine.run("systemctl", "stop", UNIT)


def test_a_job_that_came_before_it_is_closed_is_seen_and_what_was_sent_meanwhile_is_not_lost(host: Host) -> None:
    said = host.drive("""
        begin()
        said = Said()
        said.submit("early")
        sent = []
        def later():
            wait(lambda: shown("IPAddressDeny"), "the firewall to be closed")
            sent.append(said.submit("late"))
        client = threading.Thread(target=later)
        client.start()
        print(asyncio.run(apply(Act.EXCLUDE)))
        client.join()
        print(len(sent), shown("ActiveState"), shown("IPAddressDeny") or "open")
    """)
    assert said[-2:] == [
        "for now: dstack's agent is stopped when no task is left on this host (1 running)",
        "1 active open",
    ]


def test_a_job_that_comes_while_it_is_closed_never_arrives(host: Host) -> None:
    said = host.drive("""
        begin()
        said = Said()
        met = []
        def later():
            wait(lambda: shown("IPAddressDeny"), "the firewall to be closed")
            try:
                met.append(said.submit("late"))
            except OSError as error:
                met.append(type(error).__name__)
        client = threading.Thread(target=later)
        client.start()
        print(asyncio.run(apply(Act.EXCLUDE)))
        client.join()
        print(shown("ActiveState"), Path("/root/accepted").exists(), bytes not in map(type, met))
        print(asyncio.run(apply(Act.RESTORE)), shown("ActiveState"))
    """)
    assert said == ["done", "inactive False True", "done active"]


def test_whenever_a_job_comes_the_agent_is_never_stopped_with_one(host: Host) -> None:
    """Before the attempt, at any moment of it, in the middle of it."""
    said = host.drive("""
        outcomes = []
        for after in (0.0, *(random.uniform(0.0, 1.6) for _ in range(8)), 0.9):
            begin()
            said = Said()
            def submit():
                time.sleep(after)
                try:
                    said.submit("job")
                except OSError:
                    pass
            client = threading.Thread(target=submit)
            client.start()
            if not after:
                client.join()
            outcomes.append((asyncio.run(apply(Act.EXCLUDE)), shown("ActiveState")))
            if outcomes[-1][1] == "inactive":
                outcomes[-1] += (json.loads(Path("/root/ended").read_text()),)
            client.join()
        print(json.dumps(outcomes))
    """)
    print(said[0])  # noqa: T201 - how often it went which way
    outcomes = json.loads(said[0])
    for outcome, *state in outcomes:
        assert (outcome == "done" and state == ["inactive", {}]) or ("1 running" in outcome and state == ["active"])
    assert ("1 running" in outcomes[0][0], outcomes[-1][0]) == (True, "done")


def test_a_stop_that_is_held_up_is_taken_back_before_anybody_is_let_through(host: Host) -> None:
    follower(host, seconds=60)
    said = host.drive("""
        from gpuwarden.actuators.dstack_shim import actuator as module
        module.STOPS_WITHIN = 1.0
        begin()
        subprocess.run(["systemctl", "start", "follower"], check=True)
        print(asyncio.run(apply(Act.EXCLUDE)))
        print(shown("ActiveState"), shown("Job") or "no job", shown("IPAddressDeny") or "open", Said().submit("job"))
        subprocess.run(["systemctl", "kill", "--signal=KILL", "follower"], check=True)
        time.sleep(1)
        print(shown("ActiveState"))
    """)
    assert said[0].startswith("for now: cannot stop dstack-shim.service: systemctl has not ended within 1 s")
    assert said[1:] == ["active no job open b'{}'", "active"]


def test_ended_in_the_middle_of_a_stop_that_is_held_up_it_takes_the_stop_back(host: Host) -> None:
    follower(host, seconds=60)
    said = host.drive("""
        begin()
        subprocess.run(["systemctl", "start", "follower"], check=True)
        async def cancelled():
            attempt = asyncio.create_task(apply(Act.EXCLUDE))
            while not shown("Job"):
                await asyncio.sleep(0.1)
            attempt.cancel()
            await asyncio.wait([attempt])
        asyncio.run(cancelled())
        print(shown("ActiveState"), shown("Job") or "no job", shown("IPAddressDeny") or "open", Said().submit("job"))
        subprocess.run(["systemctl", "kill", "--signal=KILL", "follower"], check=True)
        subprocess.run(["systemctl", "stop", UNIT], check=True)
        print(asyncio.run(actuator().look()).owner)
    """)
    assert said == ["active no job open b'{}'", "foreign"]


def test_killed_in_the_middle_of_it_nobody_is_let_through_before_it_is_over_and_it_is_ours(host: Host) -> None:
    """Nor by the next daemon, which leaves a stop alone that is still to come."""
    follower(host, seconds=12)
    said = host.drive("""
        begin()
        subprocess.run(["systemctl", "start", "follower"], check=True)
        said = Said()
        attempt = os.fork()
        if attempt == 0:
            asyncio.run(apply(Act.EXCLUDE))
        wait(lambda: shown("Job"), "the stop")
        os.kill(attempt, signal.SIGKILL)
        print(asyncio.run(apply(Act.EXCLUDE)))
        print(shown("ActiveState"), bool(shown("Job")), bool(shown("IPAddressDeny")))
        time.sleep(firewall.CLOSED_MOST)
        try:
            print(said.submit("job"))
        except OSError as error:
            print("nobody")
        wait(lambda: shown("ActiveState") == "inactive", "the stop")
        print(Path("/root/ended").read_text().strip(), asyncio.run(actuator().look()).owner)
        wait(lambda: not shown("IPAddressDeny"), "the firewall to be opened")
    """)
    waits = "for now: dstack-shim.service is active (running), and about to change"
    assert said == [waits, "active True True", "nobody", "{} ours"]


def test_a_stop_that_outlives_systemctl_is_waited_for_before_anybody_is_let_through(host: Host) -> None:
    """As in an upgrade of systemd."""
    follower(host, seconds=9)
    said = host.drive("""
        begin()
        subprocess.run(["systemctl", "start", "follower"], check=True)
        said = Said()
        def upgrade():
            wait(lambda: shown("Job"), "the stop")
            subprocess.run(["systemctl", "daemon-reexec"], check=True)
        client = threading.Thread(target=upgrade)
        client.start()
        print(asyncio.run(apply(Act.EXCLUDE)).startswith("for now: cannot stop"))
        client.join()
        try:
            print(said.submit("job"))
        except OSError as error:
            print("nobody")
        wait(lambda: shown("ActiveState") == "inactive", "the stop")
        print(Path("/root/ended").read_text().strip(), asyncio.run(actuator().look()).owner)
        wait(lambda: not shown("IPAddressDeny"), "the firewall to be opened")
    """)
    assert said == ["True", "nobody", "{} ours"]
    host.machine.run("rm", "/etc/systemd/system/follower.service")
    host.machine.run("systemctl", "daemon-reload")


def follower(host: Host, seconds: int) -> None:
    """A unit that is stopped with the agent and before it, and takes its time."""
    unit = (
        f"[Unit]\nPartOf={SHIM}\nAfter={SHIM}\n[Service]\nType=oneshot\nRemainAfterExit=yes\nTimeoutStopSec=90\n"
        f"ExecStart=/bin/true\nExecStop=/bin/sleep {seconds}\n"
    )
    host.machine.run("systemctl", "kill", "--signal=KILL", "follower.service", check=False)
    host.machine.write("/etc/systemd/system/follower.service", unit)
    host.machine.run("systemctl", "daemon-reload")


def test_an_agent_that_was_started_anew_in_between_is_stopped_by_us_all_the_same(host: Host) -> None:
    said = host.drive("""
        begin()
        one = actuator()
        async def attempt():
            ask = one._shim.busy
            async def busy():
                subprocess.run(["systemctl", "restart", UNIT], check=True)
                wait(lambda: shown("ActiveState") == "active", "the agent")
                for _ in range(100):
                    with contextlib.suppress(ActuatorError):  # it does not listen yet
                        return await ask()
                    await asyncio.sleep(0.05)
            one._shim.busy = busy
            await one.apply(intent(Act.EXCLUDE), None)
            return await one.look()
        print(asyncio.run(attempt()).owner)
        print(asyncio.run(apply(Act.RESTORE)), shown("ActiveState"))
    """)
    assert said == ["ours", "done active"]


def test_while_it_waits_to_be_started_it_was_stopped_by_nobody(host: Host) -> None:
    wait = "[Service]\nType=oneshot\nExecStart=/bin/sleep 3\n"
    host.machine.write("/etc/systemd/system/network-wait.service", wait)
    host.machine.write(
        f"/etc/systemd/system/{SHIM}.d/10-wait.conf", "[Unit]\nWants=network-wait.service\nAfter=network-wait.service\n"
    )
    host.machine.run("systemctl", "daemon-reload")
    host.machine.run("systemctl", "stop", SHIM)
    host.machine.run("systemctl", "start", "--no-block", SHIM)
    said = host.drive("""
        try:
            print(asyncio.run(actuator().look()))
        except ActuatorError as error:
            print(error)
        wait(lambda: shown("ActiveState") == "active", "the agent")
    """)
    assert said == ["dstack-shim.service is inactive (dead), and about to change"]
    host.machine.run("rm", "-r", f"/etc/systemd/system/{SHIM}.d")
    host.machine.run("systemctl", "daemon-reload")


def test_where_systemd_is_too_slow_nothing_is_stopped(host: Host) -> None:
    said = host.drive("""
        firewall.RELIED_UPON = 0.0
        begin()
        print(asyncio.run(apply(Act.EXCLUDE)), shown("ActiveState"), shown("IPAddressDeny") or "open")
    """)
    assert said == ["for now: dstack-shim.service is not stopped: systemd is too slow just now active open"]


def test_a_firewall_whose_keeper_was_killed_is_opened_by_systemd(host: Host) -> None:
    said = host.drive("""
        begin()
        if os.fork() == 0:
            firewall.CLOSED_MOST = 3.0
            firewall.SETTLES = 1000.0
            asyncio.run(apply(Act.EXCLUDE))
        wait(lambda: shown("IPAddressDeny"), "the firewall to be closed")
        pid = int(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        wait(lambda: not shown("IPAddressDeny"), "the firewall to be opened")
        said = Said()
        print(shown("ActiveState"))
    """)
    assert said == ["active"]


def test_a_unit_with_rules_of_its_own_is_left_alone(host: Host) -> None:
    host.machine.run("systemctl", "set-property", "--runtime", SHIM, "IPAddressDeny=192.0.2.0/24")
    said = host.drive("""
        begin()
        print(asyncio.run(apply(Act.EXCLUDE)), shown("ActiveState"), shown("IPAddressDeny"))
    """)
    assert "for good: dstack-shim.service has IPAddressDeny=192.0.2.0/24" in said[0]
    assert said[0].endswith("active 192.0.2.0/24")
    host.machine.run("systemctl", "set-property", "--runtime", SHIM, "IPAddressDeny=")


def test_without_a_unit_it_is_no_host_of_an_ssh_fleet(host: Host) -> None:
    host.machine.run("systemctl", "disable", "--now", SHIM)
    host.machine.run("rm", f"/etc/systemd/system/{SHIM}")
    host.machine.run("systemctl", "daemon-reload")
    said = host.drive("""print(asyncio.run(apply(Act.EXCLUDE)))""")
    assert said[0].startswith("for good: there is no dstack-shim.service")


def test_where_systemd_cannot_hold_connections_back_nothing_is_stopped(tmp_path: Path) -> None:
    machine, gpus = booted(tmp_path, bpf=False)
    with machine:
        host = Host(machine, gpus)
        said = host.drive("""
            begin()
            print(asyncio.run(apply(Act.EXCLUDE)), shown("ActiveState"), shown("IPAddressDeny") or "open")
        """)
        assert "for good: dstack-shim.service is not stopped: systemd cannot hold connections to it back" in said[0]
        assert said[0].endswith("active open")
