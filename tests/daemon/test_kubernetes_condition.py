"""The condition `GpuwardenHealthy` tells what the daemon says, at once when that changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from gpuwarden.actuators.kubernetes.actuator import KubernetesActuator
from gpuwarden.actuators.kubernetes.condition import OSMO_TYPE, TYPE, ConditionKeeper
from gpuwarden.config_kubernetes import KubernetesOptions
from gpuwarden.health.model import Health
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden_collectors.base import host_clock
from support.kubernetes_api import ApiServer, Json, node, refusing
from support.snapshots import snapshot

PATIENCE = 60.0


def shown(health: Health, *reasons: str) -> Snapshot:
    now = host_clock()
    made = snapshot()
    return replace(
        made, ready=True, observed=now, made=now, verdict=replace(made.verdict, health=health, reasons=reasons, findings=())
    )  # fmt: skip


def condition(server: ApiServer, kind: str = TYPE) -> Json:
    found = [c for c in server.nodes["n1"]["status"]["conditions"] if c["type"] == kind]
    return found[0] if found else {}


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not true():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def keeper(server: ApiServer, folder: Path, heartbeat: float = 300.0) -> AsyncIterator[ConditionKeeper]:
    acts = KubernetesActuator(
        KubernetesOptions(kubeconfig=server.kubeconfig(folder), node="n1"),
        clock=host_clock,
        hostname="n1",
        inherited={},
    )
    keeps = ConditionKeeper(acts, heartbeat=heartbeat, osmo=True, clock=host_clock)
    keeps.run()
    yield keeps
    await keeps.stop()
    await acts.close()


async def test_a_change_is_told_at_once_and_since_when_it_holds_outlives_a_restart(tmp_path: Path) -> None:
    async with ApiServer(node("n1")) as server:
        async with keeper(server, tmp_path) as first:
            first.publish(shown(Health.HEALTHY))
            await until(lambda: condition(server).get("status") == "True")
            assert condition(server, OSMO_TYPE)["status"] == "False"
            server.edit("n1", lambda found: _since(found, "2026-01-02T03:04:05Z"))
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


def _since(found: Json, time: str) -> None:
    for one in found["status"]["conditions"]:
        one["lastTransitionTime"] = time


async def test_the_same_is_told_again_with_each_heartbeat_and_a_server_that_fails_is_not_stormed(
    tmp_path: Path,
) -> None:
    async with ApiServer(node("n1")) as server, keeper(server, tmp_path, heartbeat=0.05) as keeps:
        keeps.publish(shown(Health.HEALTHY))
        await until(lambda: len(server.writes) >= 3)
        server.always = refusing(403)
        await until(lambda: "rbac.yaml" in keeps.trouble)
        asked = len(server.requests)
        for number in range(50):
            keeps.publish(shown(Health.FAILURE, f"check_{number}"))
            await asyncio.sleep(0.005)
        assert len(server.requests) == asked
