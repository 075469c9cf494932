"""The daemon where there is no Slurm: several actuators, each by itself, and the targets of notifications."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuwarden_collectors.pci_facts import PciDevice, PciKind
from gpuwarden_collectors.simulated_pci import remove_device, write_device
from support.commands import USER
from support.daemons import FakeHost, RunningDaemon, alive, slots
from support.receiving import Receiving
from support.whole_lines import whole_lines

FAST = '[policy]\nrestore_passes = 2\nrestore_after = "0s"\nlifted_for = "0s"\nlook_every = "60s"\nlook_often = "5s"\n'
LOAD_BALANCER = """#!{python} -IS
import json, os, pathlib, sys, time
def put(name, text):
    (here / f"{{name}}.new").write_text(text)
    (here / f"{{name}}.new").replace(here / name)
given = json.load(sys.stdin)
here = pathlib.Path("{folder}")
with (here / "calls").open("a") as calls:
    calls.write(given["verb"] + "\\n")
if (here / "hang").exists():
    put("pid", str(os.getpid()))
    time.sleep(1000)
state = here / "reply"
match given["verb"]:
    case "look":
        print(state.read_text() if state.exists() else '{{"excluded":false}}')
    case "exclude":
        put("reply", json.dumps({{"excluded": True, "reason": given["reason"], "since": int(time.time())}}))
    case "restore":
        state.unlink(missing_ok=True)
"""


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    host = FakeHost(tmp_path, gpus=2)
    host.seclude()
    return host


@pytest.fixture
def receiving() -> Iterator[Receiving]:
    with Receiving() as server:
        yield server


def program(folder: Path, text: str = LOAD_BALANCER, name: str = "lb") -> Path:
    path = folder / name
    path.write_text(text.format(python=sys.executable, folder=folder))
    path.chmod(stat.S_IRWXU)
    return path


def configure(host: FakeHost, mode: str = "enforce", *, timeout: str = "20s") -> None:
    """Write the configuration. The timeout is for a program that hangs: on a busy machine one takes seconds to start."""
    host.configure(
        f'[breaker]\nuncounted = "allow"\nrecount_after = "1s"\n[dstack]\nenabled = true\n[file]\npath = "{host.folder}/out"\n'
        f'[exec.exclude]\ncommand = ["{program(host.folder)}"]\ntimeout = "{timeout}"\n{FAST}'
    )
    host.config.write_text(f'mode = "{mode}"\n{host.config.read_text()}')


def schedulers(daemon: RunningDaemon) -> dict[str, dict[str, Any]]:
    return {scheduler["actuator"]: scheduler for scheduler in daemon.status()["actions"]["schedulers"]}


def notifications(daemon: RunningDaemon) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = daemon.status()["actions"]["notifications"]
    return rows


def wanted(daemon: RunningDaemon) -> set[str]:
    return {row["actuator"] for row in daemon.status()["actions"]["wanted"]}


def excluded(daemon: RunningDaemon) -> set[str]:
    return set(daemon.heartbeat()["excluded_by"])


@pytest.mark.slow
def test_one_actuator_is_done_while_another_hangs_and_a_third_refuses_and_each_reports_it(host: FakeHost) -> None:
    configure(host, timeout="10s")
    (host.run_dir / "excluded").mkdir(parents=True)
    (host.run_dir / "excluded/dstack").write_text("somebody else's\n")
    (host.folder / "hang").touch()
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        host.xid(1, 95)
        daemon.wait(lambda: excluded(daemon) == {"file:failure"}, "the file alone")
        assert json.loads((host.folder / "out").read_text())["cause"] == "failure"
        daemon.wait(lambda: daemon.is_now("failure", "actuator_refused"), "the refusal to be reported")
        daemon.wait(
            lambda: "has not ended" in schedulers(daemon)["exec"]["error"], "the hanging program to be reported"
        )
        shown = schedulers(daemon)
        assert "not a marker of this node" in shown["dstack"]["error"]
        assert (shown["file"]["excluded"], shown["file"]["reachable"]) == ("failure", True)
        assert (shown["exec"]["reachable"], shown["dstack"]["reachable"]) == (False, False)
        daemon.wait(lambda: wanted(daemon) == {"exec", "dstack"}, "the file to be counted once more")
        page = daemon.get("/metrics")[1].decode()
        assert 'gpuwarden_excluded{actuator="file",owner="gpuwarden",cause="failure"} 1' in page
        assert 'gpuwarden_excluded{actuator="exec",owner="gpuwarden",cause="failure"} 0' in page
        assert 'gpuwarden_actuator_up{actuator="exec"} 0' in page
        assert 'gpuwarden_excluded_since_timestamp_seconds{actuator="file",owner="gpuwarden",cause="failure"}' in page
        # What hung is mended, and what was in the way is gone: the others follow by themselves, or on a person's order.
        hanging = int((host.folder / "pid").read_text())
        (host.folder / "hang").unlink()
        (host.run_dir / "excluded/dstack").unlink()
        daemon.wait(lambda: {"file:failure", "exec:failure"} <= excluded(daemon), "the program to be asked again")
        assert not alive(hanging)
        done = host.order("restore", "--force")
        assert done.returncode == 0, done.stderr
        daemon.wait(lambda: excluded(daemon) == set(), "everything to be back")
        assert not (host.folder / "out").exists()
        assert not (host.folder / "reply").exists()
        assert daemon.stop() == 0
    assert (host.folder / "calls").read_text().split().count("exclude") == 1


@pytest.mark.slow
def test_a_restore_after_an_exclude_leaves_marker_and_program_out_for_the_failure_without_a_moment_between(
    host: FakeHost,
) -> None:
    configure(host)
    marks = [host.folder / "out", host.run_dir / "excluded/dstack", host.folder / "reply"]

    def reasons() -> set[str]:
        return {json.loads(path.read_text())["reason"] for path in marks}

    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        host.xid(1, 95)
        daemon.wait(lambda: {"file:failure", "dstack:failure", "exec:failure"} <= excluded(daemon), "all to be out")
        (failed,) = reasons()
        done = host.order("exclude", "--reason", "replacing a fan")
        assert (done.returncode, reasons()) == (0, {f"gpuwarden: operator by={USER} replacing a fan"})
        done = host.order("restore")
        assert (done.returncode, "gpuwarden restore --force" in done.stdout + done.stderr) == (1, True)
        daemon.kill()
    with host.daemon() as daemon:
        daemon.wait(lambda: reasons() == {failed}, "the failure's reason in all places")
        daemon.wait(lambda: {"file:failure", "dstack:failure", "exec:failure"} <= excluded(daemon), "status to show it")
        done = host.order("restore")
        assert (done.returncode, reasons()) == (64, {failed})
        assert "restore" not in (host.folder / "calls").read_text().split()
        host.kernel_line(f"nvidia {slots(2)[1]}: reset done")
        daemon.wait(lambda: not any(path.exists() for path in marks), "the node to come back by itself")
    assert (host.folder / "calls").read_text().split().count("restore") == 1


def test_an_order_is_carried_out_where_it_can_be_and_undone_only_there(host: FakeHost) -> None:
    configure(host, mode="observe")
    (host.folder / "reply").write_text('{"excluded":true,"reason":"rack move","since":1772366400}')
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        daemon.wait(lambda: excluded(daemon) == {"exec:foreign"}, "the foreign exclusion to be seen")
        done = host.order("exclude", "--reason", "fan")
        assert "exec: not done: it is excluded by another party: rack move" in done.stderr
        assert "file: done" in done.stderr
        marker = json.loads((host.run_dir / "excluded/dstack").read_text())
        assert (marker["cause"], marker["actuator"], marker["node"]) == ("person", "dstack", "node7")
        assert {"operator", "file:operator", "dstack:operator"} <= excluded(daemon)
        host.order("restore")
        daemon.wait(lambda: excluded(daemon) == {"exec:foreign"}, "gpuwarden's exclusion to be gone")
        assert not (host.run_dir / "excluded/dstack").exists()
        assert (host.folder / "reply").exists()
    assert "exclude" not in (host.folder / "calls").read_text().split()
    assert "restore" not in (host.folder / "calls").read_text().split()


def test_in_mode_observe_nothing_is_marked_and_notifications_are_sent(host: FakeHost, receiving: Receiving) -> None:
    key = host.folder / "key"
    key.write_text("s3cret\n")
    key.chmod(0o600)
    spool = host.folder / "spool"
    script = program(host.folder, f"#!/bin/sh\ncat >> {spool}\n", "log")
    hook = f'[notify.webhook.pager]\nurl = "{receiving.url}"\nkey = "{key}"\n'
    configure(host, mode="observe")
    host.config.write_text(
        host.config.read_text().replace(f'command = ["{host.folder}/lb"]', "command = []")
        + f'{hook}[notify.exec.log]\ncommand = ["{script}"]\nevents = ["health"]\n'
    )
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        host.xid(0, 95)
        intended = "exclusion/intent/file"  # of several, one after the other
        daemon.wait(lambda: intended in [notified["subject"] for notified in receiving.bodies()], "what would be done")
        notified = {body["subject"]: body for body in receiving.bodies()}
        assert {body["mode"] for body in notified.values()} == {"observe"}
        assert notified["finding/xid.95@gpu/0000:1b:00.0"]["event"] == "raised"
        assert notified[intended]["data"]["observed"] is True
        assert notified["health"]["data"]["to"] == "failure"
        daemon.wait(lambda: whole_lines(spool).count("\n") >= 2, "the program to be run")
        assert {json.loads(line)["event"] for line in whole_lines(spool).splitlines()} == {"health"}
        receiving.answer = 403
        host.xid(1, 95)
        daemon.wait(lambda: daemon.is_now("failure", "notification_refused"), "the finding")
        assert "403" in notifications(daemon)[0]["error"]
        daemon.kill()
    assert not (host.folder / "out").exists()
    assert not (host.run_dir / "excluded").exists()
    assert "s3cret" not in daemon.lines()


def page(host: FakeHost, receiving: Receiving, groups: str = '"health", "finding", "exclusion"') -> None:
    configure(host)
    hook = f'[notify.webhook.pager]\nurl = "{receiving.url}"\nevents = [{groups}]\n'
    host.config.write_text(host.config.read_text() + hook)


def states(receiving: Receiving) -> dict[str, str]:
    """Return the key of the last message of each subject."""
    return {body["subject"]: body["id"] for body in receiving.bodies()}


BAD = ("health", "finding/xid.95@gpu/0000:28:00.0", "exclusion/file")


@pytest.mark.slow
def test_after_kill_9_what_lasts_is_sent_again_with_its_keys_though_nothing_was_delivered_before(
    host: FakeHost, receiving: Receiving
) -> None:
    page(host, receiving)
    receiving.answer = 503
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        host.xid(1, 95)
        daemon.wait(
            lambda: {"file:failure", "exec:failure", "dstack:failure"} <= excluded(daemon), "the node to be out"
        )
        daemon.wait(lambda: notifications(daemon)[0]["queued"] > 1, "messages to wait")
        daemon.kill()
    with Receiving(answer=204) as other:  # the first one may yet take in what the killed daemon has sent
        page(host, other)
        with host.daemon() as daemon:
            daemon.wait(lambda: set(BAD) <= set(states(other)), "what lasts")
            daemon.wait(lambda: notifications(daemon)[0]["queued"] == 0, "the queue to be empty")
            events = {body["event"] for body in other.bodies() if body["subject"] in BAD}
            assert events == {"health", "raised", "excluded"}
            assert daemon.stop() == 0
        assert len(other.bodies()) == len(states(other))
    assert not list(host.state_dir.glob("notify*"))


@pytest.mark.slow
def test_a_daemon_that_is_restarted_in_a_loop_sends_once(host: FakeHost, receiving: Receiving) -> None:
    page(host, receiving, '"finding"')
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        host.xid(1, 95)
        daemon.wait(receiving.bodies, "the notification")
        daemon.kill()
    with host.daemon() as daemon:
        daemon.wait(lambda: len(receiving.bodies()) > 1, "the notification again")
        daemon.kill()
    with host.daemon() as daemon:
        daemon.wait(
            lambda: [finding["confirmed"] for finding in daemon.status()["findings"]] == [True], "it to be found again"
        )
        host.xid(0, 95)
        daemon.wait(lambda: len(receiving.bodies()) > 2, "what is new")
        assert daemon.stop() == 0
    first, again, new = receiving.bodies()
    assert (first["subject"], first["id"]) == (again["subject"], again["id"]) == (BAD[1], again["id"])
    assert new["subject"] == "finding/xid.95@gpu/0000:1b:00.0"


@pytest.mark.slow
def test_a_stop_delivers_what_waits(host: FakeHost, receiving: Receiving) -> None:
    page(host, receiving, '"finding"')
    receiving.answer, receiving.more = 503, {"Retry-After": "200"}
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        host.xid(1, 95)
        daemon.wait(lambda: notifications(daemon)[0]["later"] == 1, "the first attempt")
        receiving.requests.clear()
        receiving.answer = 204
        assert daemon.stop() == 0
    assert BAD[1] in states(receiving)
    assert "undelivered" not in daemon.lines()


@pytest.mark.slow
def test_a_lost_gpu_and_its_switches_are_one_notification_and_one_incident(
    host: FakeHost, receiving: Receiving
) -> None:
    configure(host, mode="observe")
    host.config.write_text(
        f'{host.config.read_text()}[notify.webhook.pager]\nurl = "{receiving.url}"\nevents = ["finding"]\n'
    )
    for number in (5, 6):
        write_device(host.sysfs, PciDevice(slot=f"0000:0{number}:00.0", kind=PciKind.SWITCH, device_id=0x22A3))
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        host.fake.vanish(1)
        remove_device(host.sysfs, slots(2)[1])
        lost = f"xid.79@gpu/{slots(2)[1]}"
        host.xid(1, 79)
        daemon.wait(receiving.bodies, "the notification")
        for number in (5, 6):
            host.kernel_line(
                f"nvidia-nvswitch{number}: SXid (PCI:0000:0{number}:00.0): 20034, Fatal, Link 48 LTSSM Fault Up"
            )
        switches = {f"sxid.20034@switch/0000:0{number}:00.0" for number in (5, 6)}
        daemon.wait(lambda: switches <= {finding["id"] for finding in daemon.status()["findings"]}, "the complaints")
        (incident,) = daemon.status()["incidents"]
        page = daemon.get("/metrics")[1].decode()
        host.xid(0, 95)
        daemon.wait(lambda: len(receiving.bodies()) > 1, "another notification")
        daemon.kill()
    assert incident["cause"] == lost
    assert switches <= set(incident["consequences"])
    assert 'gpuwarden_incidents{severity="failure"} 1' in page
    assert "sxid.20034 x2" in page
    notified = [body["finding"] for body in receiving.bodies()]
    assert notified[-1] == f"xid.95@gpu/{slots(2)[0]}"
    assert lost in notified
    assert set(notified) <= {
        lost,
        f"gpu_missing@gpu/{slots(2)[1]}",
        notified[-1],
    }  # which of the two comes first is chance
