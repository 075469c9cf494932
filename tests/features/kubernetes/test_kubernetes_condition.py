"""The condition `GpuwardenHealthy` shows the daemon's health, at once when that changes."""

from __future__ import annotations

import asyncio
import functools
import re
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from pathlib import Path

import pytest
from aiohttp import web

from gpuwarden.config.model import Config
from gpuwarden.features.kubernetes import condition as module
from gpuwarden.features.kubernetes.condition import OSMO_TYPE, TYPE, ConditionWriter
from gpuwarden.features.kubernetes.node import written_at
from gpuwarden.features.kubernetes.node_actuator import KubernetesActuator
from gpuwarden.features.kubernetes.options import ConditionTypes, KubernetesOptions, misfits
from gpuwarden.health.conditions import CONDITIONS
from gpuwarden.health.model import NODE, Advice, Health, Severity, gpu
from gpuwarden.policy.model import Act, Intent, NodeState, Owner, Why
from gpuwarden.policy.situation import excluded
from gpuwarden.policy.state import Hold, PolicyState
from gpuwarden.publish.snapshot import Snapshot, Wanted
from gpuwarden_collectors.base import host_clock
from support.kubernetes_api import BUILT_IN, ApiServer, Json, node, refusing
from support.kubernetes_api import status as refusing_reply
from support.snapshots import finding, slot, snapshot
from support.waiting import until

EXCLUSION = Intent(
    act=Act.EXCLUDE, actuator="kubernetes", why=Why.FAILURE, reason="gpuwarden: failure gpu=3 xid=79", key="k", at=host_clock()
)  # fmt: skip
KEYS = [key.name for key in fields(ConditionTypes)]
BOOT = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"


def shown(health: Health, *reasons: str) -> Snapshot:
    now = host_clock()
    made = snapshot()
    return replace(
        made, ready=True, observed=now, made=now, verdict=replace(made.verdict, health=health, reasons=reasons, findings=())
    )  # fmt: skip


def condition(server: ApiServer, kind: str = TYPE) -> Json:
    return condition_in(server.nodes["n1"], kind)


def condition_in(live: Json, kind: str) -> Json:
    matching = [c for c in live["status"]["conditions"] if c["type"] == kind]
    return matching[0] if matching else {}


@asynccontextmanager
async def keeper(
    server: ApiServer, folder: Path, heartbeat: float = 300.0, *, osmo: bool = True, **more: object
) -> AsyncIterator[ConditionWriter]:
    options = KubernetesOptions(
        kubeconfig=server.kubeconfig(folder),
        node="n1",
        heartbeat=heartbeat,
        osmo=osmo,
        **more,  # type: ignore[arg-type]
    )
    acts = KubernetesActuator(
        options,
        clock=host_clock,
        hostname="n1",
        boot_id=BOOT,
        inherited={},
    )
    keeps = ConditionWriter(acts, options, clock=host_clock)
    keeps.run()
    yield keeps
    await keeps.stop()
    await acts.close()


async def test_a_change_is_published_at_once_and_its_transition_time_survives_a_restart(tmp_path: Path) -> None:
    async with ApiServer(node("n1")) as server:
        async with keeper(server, tmp_path) as first:
            first.publish(shown(Health.HEALTHY))
            await until(lambda: condition(server).get("status") == "True")
            assert condition(server, OSMO_TYPE)["status"] == "False"
            server.edit("n1", lambda live: _since(live, "2026-01-02T03:04:05Z"))
        async with keeper(server, tmp_path) as second:
            second.publish(shown(Health.WARNING, "thermal_limit"))
            await until(lambda: condition(server)["reason"] == "thermal_limit")
            assert condition(server)["lastTransitionTime"] == "2026-01-02T03:04:05Z"
            second.publish(shown(Health.FAILURE, "xid"))
            await until(lambda: condition(server)["status"] == "False")
            assert condition(server)["lastTransitionTime"] != "2026-01-02T03:04:05Z"
            assert condition(server, OSMO_TYPE)["status"] == "True"
            second.publish(shown(Health.UNKNOWN, "driver"))
            await until(lambda: condition(server)["status"] == condition(server, OSMO_TYPE)["status"] == "Unknown")
            assert [c["type"] for c in server.nodes["n1"]["status"]["conditions"]] == ["Ready", TYPE, OSMO_TYPE]


def _since(live: Json, time: str) -> None:
    for condition in live["status"]["conditions"]:
        condition["lastTransitionTime"] = time


async def test_conditions_that_gpuwarden_no_longer_keeps_are_removed_and_no_other(tmp_path: Path) -> None:
    """OSMO keeps a node out for as long as its condition is True, whoever wrote it."""
    theirs = {"type": "osmo.nvidia.com/DiskFailure", "status": "False", "reason": "x"}
    async with ApiServer(node("n1")) as server:
        server.edit("n1", lambda live: live["status"]["conditions"].append(theirs))
        for options, types in (({}, [TYPE, OSMO_TYPE]), ({"osmo": False}, [TYPE]), ({"condition": False}, [])):
            wanted = ["Ready", theirs["type"], *types]
            async with keeper(server, tmp_path, **options) as keeps:
                keeps.publish(shown(Health.FAILURE, "xid"))
                await until(functools.partial(_has_types, server, wanted))


async def test_what_was_left_is_cleared_with_the_first_verdict_though_no_condition_is_kept(tmp_path: Path) -> None:
    """A daemon has no verdict when it starts; the next heartbeat is minutes later."""
    async with ApiServer(node("n1")) as server:
        async with keeper(server, tmp_path) as keeps:
            keeps.publish(shown(Health.HEALTHY))
            await until(functools.partial(_has_types, server, ["Ready", TYPE, OSMO_TYPE]))
        async with keeper(server, tmp_path, condition=False) as keeps:
            keeps.publish(replace(shown(Health.HEALTHY), ready=False))
            await asyncio.sleep(0.05)
            keeps.publish(shown(Health.HEALTHY))
            await until(functools.partial(_has_types, server, ["Ready"]))
            await until(lambda: keeps._written is not None)  # and knows that the server has done it
            requests = len(server.requests)
            keeps.publish(shown(Health.FAILURE, "xid"))
            assert await _settled(server) == requests


async def test_an_exclusion_under_an_old_key_moves_to_the_new_one_and_keeps_its_time(tmp_path: Path) -> None:
    async with ApiServer(node("n1")) as server:
        old = {
            "kubeconfig": server.kubeconfig(tmp_path),
            "node": "n1",
            "key": "old.io/failure",
            "effect": "PreferNoSchedule",
        }
        acts = KubernetesActuator(KubernetesOptions(**old), clock=host_clock, hostname="n1", inherited={})  # type: ignore[arg-type]
        await acts.apply(EXCLUSION, await acts.read())
        await acts.close()
        before = written_at(server.nodes["n1"])
        other = {"key": "old.io/failure", "value": "theirs", "effect": "NoExecute"}
        server.edit("n1", lambda live: live["spec"]["taints"].append(other))
        async with keeper(server, tmp_path) as keeps:
            keeps.publish(shown(Health.FAILURE, "xid"))
            await until(lambda: condition(server).get("status") == "False")
            live = server.nodes["n1"]
            new = {"key": "gpuwarden.io/failure", "value": "failure", "effect": "NoSchedule"}
            assert live["spec"]["taints"] == [BUILT_IN, other, new]
            assert {key for key in live["metadata"]["labels"] if "failure" in key} == {"gpuwarden.io/failure"}
            assert before == written_at(live) > 0


async def test_a_move_that_is_refused_keeps_no_condition_back(tmp_path: Path) -> None:
    """A condition that stayed bad would have a repaired machine replaced, with its jobs."""
    async with ApiServer(node("n1")) as server:
        old = {"kubeconfig": server.kubeconfig(tmp_path), "node": "n1", "key": "old.io/failure"}
        acts = KubernetesActuator(KubernetesOptions(**old), clock=host_clock, hostname="n1", inherited={})  # type: ignore[arg-type]
        await acts.apply(EXCLUSION, await acts.read())
        await acts.close()
        server.of_patch = refusing(403, "gpuwarden may change only labels of its own keys")
        async with keeper(server, tmp_path) as keeps:
            keeps.publish(shown(Health.FAILURE, "xid"))
            await until(lambda: condition(server).get("status") == "False")
            await until(lambda: "rbac.keys" in keeps.error)


REPAIRS = ConditionTypes(
    reboot="GpuNeedsReboot", reset_gpu="GpuNeedsReboot", contact_support="AcceleratedHardwareReady=False"
)


def out(
    advice: Advice, *, pending: bool = False, owner: Owner = Owner.OURS, reachable: bool = True, held: bool = True
) -> Snapshot:
    """Return a node that is excluded for a failure with this advice. `pending`: the breaker has not counted again yet. `held`: the
    ledger has the exclusion.
    """
    made = shown(Health.FAILURE, "xid")
    failure = replace(finding("xid", gpu(slot(3)), detail="79"), advice=advice)
    why = Why.FAILURE if owner is Owner.OURS else None
    state = NodeState(at=host_clock(), owner=owner, why=why, reachable=reachable)
    hold = Hold(actuator="kubernetes", why=Why.FAILURE, reason="gpuwarden: failure gpu=3", at=host_clock(), boot_id="b")
    holds = {"kubernetes": hold} if held else {}
    wanted = (Wanted(intent=EXCLUSION, text=""),) if pending else ()
    found_out = tuple(excluded(PolicyState(holds=holds), {"kubernetes"}, {"kubernetes": state}, {"kubernetes": state}))
    enforced = replace(made.enforced, node_states={"kubernetes": state}, pending=wanted, excluded=found_out)
    return replace(made, verdict=replace(made.verdict, findings=(failure,)), enforced=enforced)


@pytest.mark.parametrize(
    ("published", "reboot", "accelerated"),
    [
        (out(Advice.REBOOT), "True", "True"),
        (out(Advice.RESET_GPU), "True", "True"),
        (out(Advice.CONTACT_SUPPORT), "False", "False"),
        (out(Advice.INSPECT_HARDWARE), "False", "True"),
        (out(Advice.REBOOT, pending=True), "False", "True"),
        (out(Advice.REBOOT, owner=Owner.FOREIGN), "False", "True"),
        (out(Advice.REBOOT, owner=Owner.NONE), "False", "True"),
        (out(Advice.REBOOT, owner=Owner.NONE, reachable=False), "True", "True"),
        (out(Advice.REBOOT, owner=Owner.NONE, reachable=False, held=False), "False", "True"),
        (shown(Health.UNKNOWN), "Unknown", "Unknown"),
    ],
)
async def test_a_repair_is_asked_for_while_the_node_is_out_for_a_failure_with_that_advice(
    tmp_path: Path, published: Snapshot, reboot: str, accelerated: str
) -> None:
    async with ApiServer(node("n1")) as server, keeper(server, tmp_path, conditions=REPAIRS) as keeps:
        keeps.publish(replace(published, observed=host_clock()))
        await until(lambda: condition(server, "AcceleratedHardwareReady"))
        assert condition(server, "GpuNeedsReboot")["status"] == reboot
        assert condition(server, "AcceleratedHardwareReady")["status"] == accelerated
        if reboot == "True":
            assert condition(server, "GpuNeedsReboot")["reason"] == "xid"
        if reboot == "False":  # not "no repair": another one may be asked for
            assert condition(server, "GpuNeedsReboot")["message"] == "no failure has the advice reboot or reset_gpu"


def test_the_example_of_the_page_asks_for_a_repair_of_each_failure_of_hardware() -> None:
    page = (Path(__file__).parents[3] / "docs/use/kubernetes.md").read_text()
    (example,) = re.findall(r"```toml\n(\[kubernetes\][^`]*\[kubernetes\.conditions\][^`]*)```", page)
    types = tomllib.loads(example)["kubernetes"]["conditions"]
    hardware = [
        row
        for row in CONDITIONS.values()
        if row.severity is Severity.FAILURE and row.advice in KEYS and row.advice != "restart_service"
    ]
    assert {row.code for row in hardware} >= {"gpu_missing", "row_remap_failed"}
    assert {row.code: row.advice for row in hardware if row.advice not in types} == {}


def test_the_advices_that_can_ask_for_a_repair_are_advices_of_findings() -> None:
    assert {advice for advice, _, _ in ConditionTypes(**dict.fromkeys(KEYS, "X")).by_advice()} <= set(Advice)


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ({"reboot": "Ready"}, "another program keeps that"),
        ({"reboot": "Needs reboot"}, "expected the type of a condition"),
        ({"reboot": "X=no"}, "expected the type of a condition"),
        ({"reboot": "X", "reset_gpu": "X=False"}, "one bad status"),
    ],
)
def test_a_type_that_cannot_be_kept_is_a_fault_of_the_configuration(conditions: dict[str, str], message: str) -> None:
    options = KubernetesOptions(conditions=ConditionTypes(**conditions))
    assert any(message in text for _, text in misfits(Config(kubernetes=options)))  # type: ignore[call-arg]
    assert not list(misfits(Config(kubernetes=KubernetesOptions(conditions=REPAIRS))))  # type: ignore[call-arg]


async def test_a_condition_for_repair_that_another_program_keeps_is_left_to_it(tmp_path: Path) -> None:
    """The monitoring agent of EKS keeps AcceleratedHardwareReady: two writers would end each other's repairs."""
    async with ApiServer(node("n1")) as server:
        theirs = {"type": "AcceleratedHardwareReady", "status": "True", "reason": "theirs"}
        server.edit("n1", lambda live: live["status"]["conditions"].append(theirs))
        async with keeper(server, tmp_path, conditions=REPAIRS) as keeps:
            keeps.publish(replace(out(Advice.CONTACT_SUPPORT), observed=host_clock()))
            await until(lambda: "AcceleratedHardwareReady: choose another type" in keeps.error)
            assert condition(server, "AcceleratedHardwareReady") == theirs
            assert condition(server)["status"] == "False"
        async with keeper(server, tmp_path) as keeps:
            keeps.publish(shown(Health.HEALTHY))
            await until(functools.partial(_has_types, server, ["Ready", theirs["type"], TYPE, OSMO_TYPE]))


async def test_a_second_writer_of_a_condition_for_repair_is_known_while_both_write_the_same_status(
    tmp_path: Path,
) -> None:
    """The agent of EKS writes its own status at each heartbeat. Found out at the first repair, it would have undone it."""
    kind = "AcceleratedHardwareReady"
    theirs = {"status": "True", "reason": "NvidiaGPUIsReady", "lastHeartbeatTime": "2026-01-02T03:04:05Z"}
    async with ApiServer(node("n1")) as server, keeper(server, tmp_path, 0.05, conditions=REPAIRS) as keeps:
        keeps.publish(shown(Health.HEALTHY))
        await until(lambda: condition(server, kind))
        assert not keeps.error
        server.edit("n1", lambda live: condition_in(live, kind).update(theirs))
        await until(lambda: f"{kind}: choose another type" in keeps.error)
        keeps.publish(replace(out(Advice.CONTACT_SUPPORT), observed=host_clock()))
        await until(lambda: condition(server)["status"] == "False")
        assert condition(server, kind).items() >= theirs.items()


async def _settled(server: ApiServer) -> int:
    """Return the number of requests once no more come."""
    count = -1
    while count != len(server.requests):
        count = len(server.requests)
        await asyncio.sleep(0.3)
    return count


def _has_types(server: ApiServer, wanted: list[str]) -> bool:
    return [entry["type"] for entry in server.nodes["n1"]["status"]["conditions"]] == wanted


async def test_a_node_that_is_missing_or_of_another_machine_is_reported_if_that_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kubelet that boots causes no error; the first condition is published once it has registered its node."""
    monkeypatch.setattr(module, "RETRY_FIRST", 0.01)
    monkeypatch.setattr(module, "RETRY_MOST", 0.01)
    async with ApiServer() as server, keeper(server, tmp_path) as keeps:
        keeps.publish(shown(Health.HEALTHY))
        await until(lambda: len(server.requests) >= 2)
        assert not keeps.error
        await until(lambda: "no such node" in keeps.error)
        server.nodes["n1"] = node("n1")
        server.edit("n1", lambda live: live["status"].update(nodeInfo={"bootID": "another"}))
        await until(lambda: "another machine" in keeps.error)
        assert server.writes == []
        server.edit("n1", lambda live: live["status"].update(nodeInfo={"bootID": BOOT}))
        await until(lambda: condition(server).get("status") == "True" and not keeps.error)


async def test_a_second_daemon_for_the_same_node_is_reported_and_a_lost_response_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_FIRST", 0.01)
    lost: list[int] = []

    async def done_and_lost(request: web.Request) -> web.StreamResponse:
        server.take("n1", await request.json(), request, "status")
        lost.append(len(server.writes))
        return refusing_reply(500, "etcd did not answer in time")

    async with ApiServer(node("n1")) as server, keeper(server, tmp_path, heartbeat=0.05) as keeps:
        keeps.publish(shown(Health.HEALTHY))
        await until(lambda: len(server.writes) >= 2)
        server.of_patch = done_and_lost
        await until(lambda: lost and len(server.writes) > lost[0] + 1)
        assert not keeps.error
        server.edit("n1", lambda live: _heartbeat(live, "2026-01-02T03:04:05Z"))
        await until(lambda: "second daemon" in keeps.error)
        await until(lambda: not keeps.error)


def _heartbeat(live: Json, time: str) -> None:
    for condition in live["status"]["conditions"]:
        condition["lastHeartbeatTime"] = time


async def test_an_unchanged_condition_is_published_at_each_heartbeat_and_a_failing_server_is_not_flooded(
    tmp_path: Path,
) -> None:
    async with ApiServer(node("n1")) as server, keeper(server, tmp_path, heartbeat=0.05) as keeps:
        keeps.publish(shown(Health.HEALTHY))
        await until(lambda: len(server.writes) >= 3)
        server.always = refusing(403)
        await until(lambda: "rbac.yaml" in keeps.error)
        asked = len(server.requests)
        for number in range(50):
            keeps.publish(shown(Health.FAILURE, f"check_{number}"))
            await asyncio.sleep(0.005)
        assert len(server.requests) == asked


def test_what_is_in_the_shadow_is_no_text_of_the_condition() -> None:
    now, made = host_clock(), shown(Health.HEALTHY)
    findings = (
        replace(finding("gpu_missing", gpu(slot(1))), shadow=True),
        finding("disk_full", NODE, Severity.WARNING),
    )
    text = module.condition_of(replace(made, verdict=replace(made.verdict, findings=findings)), now).message
    assert "disk_full" in text
    assert "gpu_missing" not in text
