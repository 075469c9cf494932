"""When dstack's agent may be stopped, and whose stop it was: its own answers on a real port, systemd's as it prints them."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from gpuwarden.actuators.base import ActuatorRefused, ActuatorUnavailable
from gpuwarden.actuators.dstack_shim.actuator import DstackShimActuator
from gpuwarden.actuators.dstack_shim.systemd import Systemd
from gpuwarden.actuators.dstack_shim.tasks import COLLECTED_WITHIN, TasksUnknown, parsed
from gpuwarden.actuators.dstack_shim.tasks import Shim as Agent
from gpuwarden.actuators.fleet_count import NoCounter
from gpuwarden.actuators.marker_file import MarkerFile, marker_text
from gpuwarden.actuators.reconciler import Outbox
from gpuwarden.base.addresses import Address
from gpuwarden.config.dstack import DstackOptions
from gpuwarden.config.model import Config
from gpuwarden.doctor.dstack import dstack
from gpuwarden.doctor.row import Grade
from gpuwarden.policy.model import Act, Intent, Owner, Result, Standing, Why
from gpuwarden.policy.reasons import operator
from gpuwarden_collectors.facts import Stamp
from support.acting_rig import LIMITS, Rig
from support.policy_story import xid
from support.schedulers import Client, Cluster, Node
from support.shims import Shim, shim

BOOT, RUN, EARLIER_RUN = "1b4e28ba-2fa1-11d2-883f-0016d3cca427", "a1" * 16, "b2" * 16
UNKNOWN = "whether a job is on this host cannot be asked"
NOW = Stamp(1_000.0, 1_772_366_400.25)
FAILED = "gpuwarden: failure gpu=3 xid=79"
SHOWN = {"LoadState": "loaded", "ActiveState": "active", "SubState": "running", "Job": "", "InvocationID": RUN,
         "ActiveExitTimestampMonotonic": "5001500000", "IPAddressDeny": "", "IPAddressAllow": ""}  # fmt: skip
"""As `systemctl show` of systemd 252 has it."""


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> Stamp:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now = replace(self.now, boottime=self.now.boottime + seconds)


@pytest.mark.parametrize(
    ("body", "running", "trouble"),
    [
        (b'{"tasks":[]}', "", ""),
        (b'{"tasks":[{"id":"a","status":"running"},{"id":"b","status":"pulling"},{"id":"c","status":"running"}]}',
         "1 pulling, 2 running", ""),
        (b'{"tasks":[{"id":"a","status":"terminated"}]}', "", ""),
        (b'{"tasks":[{"id":"a"},{"id":"b","status":"\\u001b[2J"},7]}', "3 unknown", ""),
        (b'{"ids":[]}', "", ""),
        (b'{"ids":["a","b"]}', "2 unknown", ""),
        (b'{"tasks":null,"ids":null}', "", "something else"),
        (b'{"tasks":null}', "", "something else"),
        (b"[]", "", "something else"),
        (b"not json", "", "something else"),
        (b"[" * 10_000, "", "something else"),
    ],
)  # fmt: skip
def test_what_has_not_ended_counts_and_what_is_not_understood_is_no_idle_host(
    body: bytes, running: str, trouble: str
) -> None:
    if trouble:
        with pytest.raises(TasksUnknown, match=trouble):
            parsed(body)
    else:
        assert parsed(body).running == running


async def test_tasks_that_have_ended_are_left_to_dstacks_server_for_a_while() -> None:
    clock = Clock()
    async with shim() as told:
        agent = Agent(Address("127.0.0.1", told.port), clock)
        assert await agent.busy() == ""
        told.tasks = b'{"tasks":[{"id":"a","status":"running"}]}'
        assert "(1 running)" in await agent.busy()
        told.tasks = b'{"tasks":[{"id":"a","status":"terminated"}]}'
        assert "take note of how the last task ended" in await agent.busy()
        clock.pass_by(COLLECTED_WITHIN - 1)
        assert await agent.busy()
        clock.pass_by(2)
        assert await agent.busy() == ""
        clock.pass_by(600)
        told.tasks = b'{"tasks":[{"id":"a","status":"terminated"},{"id":"b","status":"terminated"}]}'
        assert await agent.busy(), "another task begins another while, however long nobody looked"
        clock.pass_by(COLLECTED_WITHIN)
        assert await agent.busy() == ""
        assert set(told.asked_from) == {"127.0.0.2"}, "by that address the firewall knows us"


async def test_an_agent_that_cannot_be_asked_is_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuwarden.actuators.dstack_shim.tasks.ANSWERS_WITHIN", 0.1)
    async with shim(Shim(status=404)) as told:
        assert await unknown(told.port) == f"{UNKNOWN}: its agent answers 404"
    async with shim(Shim(silent=True)) as told:
        assert "no answer within" in await unknown(told.port)
    assert (await unknown(told.port)).startswith(UNKNOWN)


async def unknown(port: int) -> str:
    with pytest.raises(TasksUnknown) as raised:
        await Agent(Address("127.0.0.1", port), Clock()).busy()
    return str(raised.value)


def manager(folder: Path, shown: Mapping[str, str], script: str = "") -> Systemd:
    """A `systemctl` that prints these properties, and does with everything else what `script` says."""
    text = "".join(f"{key}={value}\n" for key, value in shown.items())
    (folder / "shown").write_text(text)
    program = folder / "systemctl"
    program.write_text(f'#!/bin/sh\necho "$@" >>{folder}/calls\n[ "$1" = show ] && exec cat {folder}/shown\n{script}\n')
    program.chmod(stat.S_IRWXU)
    return Systemd({"PATH": f"{folder}:{os.defpath}"})


def actuator(folder: Path, systemd: Systemd, port: int = 1) -> DstackShimActuator:
    return DstackShimActuator(
        marker(folder), address=Address("127.0.0.1", port), node="n1", boot_id=BOOT,
        counter=NoCounter("n1", allowed=True), clock=Clock(), systemd=systemd,
    )  # fmt: skip


def marker(folder: Path) -> MarkerFile:
    return MarkerFile("dstack_shim", folder / "excluded/dstack_shim", node="n1", make_folder=True)


def intent(act: Act = Act.EXCLUDE) -> Intent:
    return Intent(act=act, actuator="dstack_shim", why=Why.FAILURE, reason=FAILED, key="k", at=NOW)


async def marked(folder: Path, run: str, boot: str = BOOT, at: str = "5001.250") -> None:
    await marker(folder).write(marker_text(intent(), node="n1", boot_id=boot, since=NOW.wall, stopped=f"{run} {at}"))


@pytest.mark.parametrize(
    ("shown", "run", "owner", "state"),
    [
        ({"ActiveState": "active"}, RUN, Owner.NONE, "active"),
        ({"ActiveState": "inactive"}, RUN, Owner.OURS, "inactive"),
        ({"ActiveState": "failed"}, RUN, Owner.OURS, "failed"),
        ({"ActiveState": "inactive"}, EARLIER_RUN, Owner.FOREIGN, "inactive"),
        ({"ActiveState": "inactive", "InvocationID": ""}, "", Owner.FOREIGN, "inactive"),
        ({"ActiveState": "inactive", "LoadState": "masked"}, RUN, Owner.FOREIGN, "masked"),
    ],
)
async def test_a_stop_is_ours_if_it_ended_the_invocation_that_our_marker_names(
    tmp_path: Path, shown: dict[str, str], run: str, owner: Owner, state: str
) -> None:
    await marked(tmp_path, run)
    found = await actuator(tmp_path, manager(tmp_path, SHOWN | shown)).look()
    assert (found.owner, found.state, found.schedulable) == (owner, state, owner is Owner.NONE)
    assert (found.reason == FAILED) is (owner is Owner.OURS)


async def test_a_stop_without_a_marker_or_with_one_of_an_earlier_boot_is_somebody_elses(tmp_path: Path) -> None:
    one = actuator(tmp_path, manager(tmp_path, SHOWN | {"ActiveState": "inactive"}))
    assert (await one.look()).owner is Owner.FOREIGN
    await marked(tmp_path, RUN, boot="9e107d9d-372b-4826-881d-8f2a1c6b7e55")
    found = await one.look()
    assert (found.owner, found.reason) == (Owner.FOREIGN, "dstack-shim.service is inactive")


@pytest.mark.parametrize("at", ["5001.600", "4900.000", "", "nan", "soon"])
async def test_a_stop_that_we_began_and_a_person_made_is_theirs(tmp_path: Path, at: str) -> None:
    await marked(tmp_path, RUN, at=at)
    one = actuator(tmp_path, manager(tmp_path, SHOWN | {"ActiveState": "inactive"}))
    assert (await one.look()).owner is Owner.FOREIGN


@pytest.mark.parametrize("state", ["activating", "deactivating", "maintenance", ""])
async def test_between_two_states_it_is_asked_again_later(tmp_path: Path, state: str) -> None:
    with pytest.raises(ActuatorUnavailable, match=r"dstack-shim\.service is"):
        await actuator(tmp_path, manager(tmp_path, SHOWN | {"ActiveState": state})).look()


async def test_an_agent_that_is_about_to_be_started_was_stopped_by_nobody(tmp_path: Path) -> None:
    """As at boot, when it waits for the network."""
    shown = SHOWN | {"ActiveState": "inactive", "SubState": "dead", "InvocationID": "", "Job": "76"}
    with pytest.raises(ActuatorUnavailable, match="about to change"):
        await actuator(tmp_path, manager(tmp_path, shown)).look()


async def test_a_restart_that_somebody_ordered_is_not_interfered_with(tmp_path: Path) -> None:
    with pytest.raises(ActuatorUnavailable, match="about to change"):
        await actuator(tmp_path, manager(tmp_path, SHOWN | {"Job": "76"})).apply(intent(), Standing(at=NOW))
    assert {line.split()[0] for line in (tmp_path / "calls").read_text().splitlines()} == {"show"}


async def test_a_host_without_the_unit_is_in_no_ssh_fleet(tmp_path: Path) -> None:
    with pytest.raises(ActuatorRefused, match="not to be stopped"):
        await actuator(
            tmp_path, manager(tmp_path, SHOWN | {"LoadState": "not-found", "ActiveState": "inactive"})
        ).look()


async def test_a_person_mends_what_may_not_be_done_and_what_hangs_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = manager(tmp_path, SHOWN, 'echo "Access denied" >&2; exit 4')
    with pytest.raises(ActuatorRefused, match=r"cannot start dstack-shim.service: .* exits with 4: Access denied"):
        await actuator(tmp_path, refusing).apply(intent(Act.RESTORE), Standing(at=NOW))
    denied = manager(tmp_path, SHOWN, 'echo "Failed to start: Interactive authentication required." >&2; exit 1')
    with pytest.raises(ActuatorRefused):
        await actuator(tmp_path, denied).apply(intent(Act.RESTORE), Standing(at=NOW))
    failing = manager(tmp_path, SHOWN, "exit 1")
    with pytest.raises(ActuatorUnavailable):
        await actuator(tmp_path, failing).apply(intent(Act.RESTORE), Standing(at=NOW))
    monkeypatch.setattr("gpuwarden.actuators.dstack_shim.actuator.STARTS_WITHIN", 0.1)
    hanging = manager(tmp_path, SHOWN, "exec sleep 1000")
    with pytest.raises(ActuatorUnavailable, match="has not ended"):
        await actuator(tmp_path, hanging).apply(intent(Act.RESTORE), Standing(at=NOW))


async def test_what_it_is_stopped_for_changes_without_another_stop(tmp_path: Path) -> None:
    """A person's word, or an announced end, takes the place of a failure."""
    await marked(tmp_path, RUN)
    one = actuator(tmp_path, manager(tmp_path, SHOWN | {"ActiveState": "inactive"}))
    reason = operator("alice", "rack move")
    await one.apply(replace(intent(), why=Why.OPERATOR, reason=reason), await one.look())
    found = await one.look()
    assert (found.owner, found.why, found.reason) == (Owner.OURS, Why.OPERATOR, reason)
    assert {line.split()[0] for line in (tmp_path / "calls").read_text().splitlines()} == {"show"}


async def test_what_somebody_else_stopped_is_not_marked_as_ours(tmp_path: Path) -> None:
    one = actuator(tmp_path, manager(tmp_path, SHOWN | {"ActiveState": "inactive"}))
    with pytest.raises(ActuatorUnavailable, match="and not by gpuwarden"):
        await one.apply(intent(), Standing(at=NOW))
    assert (await one.look()).owner is Owner.FOREIGN


async def test_a_start_that_failed_leaves_the_stop_ours(tmp_path: Path) -> None:
    await marked(tmp_path, RUN)
    one = actuator(tmp_path, manager(tmp_path, SHOWN | {"ActiveState": "inactive"}, "exit 1"))
    with pytest.raises(ActuatorUnavailable):
        await one.apply(intent(Act.RESTORE), Standing(at=NOW))
    assert (await one.look()).owner is Owner.OURS


async def test_without_a_timer_nothing_is_closed(tmp_path: Path) -> None:
    """No firewall is closed that nobody would open: here there is no `systemd-run` that works."""
    (tmp_path / "systemd-run").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "systemd-run").chmod(stat.S_IRWXU)
    with pytest.raises(ActuatorUnavailable, match="cannot set a timer"):
        await actuator(tmp_path, manager(tmp_path, SHOWN)).apply(intent(), Standing(at=NOW))
    calls = (tmp_path / "calls").read_text()
    assert "set-property" not in calls
    assert "stop dstack-shim.service" not in calls


async def test_that_it_cannot_be_asked_is_no_job_that_is_waited_for(tmp_path: Path) -> None:
    """An exclusion that never comes is told; one that waits for a job is in order."""
    found = await actuator(tmp_path, manager(tmp_path, SHOWN)).look()
    assert (found.reachable, found.trouble.startswith(UNKNOWN), found.waits) == (True, True, False)
    async with shim(Shim(tasks=b'{"tasks":[{"id":"a","status":"running"}]}')) as told:
        found = await actuator(tmp_path, manager(tmp_path, SHOWN), told.port).look()
    assert (found.trouble, found.waits) == ("", True)


# --- a node that is busy


async def test_a_busy_node_is_looked_at_often_and_counted_only_when_it_is_free() -> None:
    rig = Rig(Cluster(time.time, {"n1": Node(busy="a job runs")}))
    rig.acting.run()
    rig.passes(xid())
    await rig.until(lambda: rig.client.calls.count("look") > 5)
    assert rig.client.calls.count("census") <= 1
    assert [(wanted.text, wanted.waits) for wanted in rig.acting.shown().pending] == [("a job runs", True)]
    rig.cluster.nodes["n1"] = Node()
    await rig.until(lambda: rig.state.holds)
    assert [act for _, act, _ in rig.cluster.writes] == ["exclude"]
    await rig.kill()


async def test_a_busy_node_that_heals_is_left_alone() -> None:
    rig = Rig(Cluster(time.time, {"n1": Node(busy="a job runs")}))
    rig.acting.run()
    rig.passes(xid())
    await rig.until(lambda: rig.acting.shown().pending and rig.acting.shown().pending[0].text == "a job runs")
    rig.passes()
    await rig.until(lambda: not rig.state.pending)
    rig.cluster.nodes["n1"] = Node()
    for _ in range(20):
        rig.passes()
        await asyncio.sleep(0.01)
    assert rig.cluster.writes == []
    await rig.kill()


async def test_being_busy_is_asked_at_a_steady_pace_however_long_it_takes() -> None:
    cluster = Cluster(time.time, {"n1": Node(busy="a job runs")})
    limits = replace(LIMITS, busy=7.0)

    async def committed() -> bool:
        return True

    box = Outbox(
        Client(cluster, "n1", Clock()), committed=committed, wanted=lambda _: True, looked=lambda: None, limits=limits, clock=Clock()
    )  # fmt: skip
    pauses = []
    for _ in range(10):
        outcome, pause = await box.attempt(intent())
        assert (outcome.result, outcome.text) == (Result.RETRY, "a job runs")
        pauses.append(pause)
    assert all(7.0 <= pause <= 10.5 for pause in pauses)


# --- what the doctor says


async def test_the_doctor_says_who_answers_dstack_and_who_does_not() -> None:
    async with shim() as told, shim() as other:
        config = Config(dstack=DstackOptions(enabled=True, shim=Address("127.0.0.1", told.port)))
        rows = await dstack(config, Address("127.0.0.1", other.port))
        assert [(row.check, row.grade) for row in rows] == [("server", Grade.OK), ("agent", Grade.OK)]
        assert "answers as dstack-shim 0.22.5" in rows[0].found
    rows = await dstack(config, Address("127.0.0.1", other.port))
    assert {row.grade for row in rows} == {Grade.FAIL}
    assert "systemctl enable --now gpuwarden-dstack.socket" in rows[0].to_do
    assert await dstack(Config()) == []


async def test_the_doctor_says_whether_the_agent_could_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config(dstack=DstackOptions(stop_shim_when_idle=True))
    config = replace(config, run=replace(config.run, dir=tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}")
    manager(tmp_path, SHOWN | {"LoadState": "not-found"})
    assert (await row(config)).startswith("fail there is no dstack-shim.service")
    manager(tmp_path, SHOWN | {"ActiveState": "inactive"})
    assert await row(config) == "warn dstack-shim.service is inactive, and not by gpuwarden"
    manager(tmp_path, SHOWN)
    assert (await row(config)).startswith(f"warn {UNKNOWN}")
    manager(tmp_path, SHOWN | {"IPAddressDeny": "::/0 0.0.0.0/0", "IPAddressAllow": "127.0.0.2/32"})
    assert "dstack cannot reach it" in await row(config)
    manager(tmp_path, SHOWN | {"IPAddressDeny": "192.0.2.0/24"})
    assert (await row(config)).startswith("fail dstack-shim.service has IPAddressDeny=192.0.2.0/24")
    manager(tmp_path, SHOWN)
    async with shim() as told:
        moved = replace(config.dstack, enabled=True, shim=Address("127.0.0.1", told.port))
        *_, last = await dstack(replace(config, dstack=moved), moved.shim)
    assert (last.grade, last.found) == (Grade.OK, "dstack-shim.service is active")


async def row(config: Config) -> str:
    (found,) = await dstack(config)
    return f"{found.grade.value} {found.found}"
