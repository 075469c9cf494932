"""Kubernetes: our taint, label and annotation come and go, and nobody else's is touched."""

from __future__ import annotations

import copy
import random
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web

from gpuwarden.actuators.base import ActuatorError, ActuatorRefused, ActuatorUnavailable
from gpuwarden.config.model import Config
from gpuwarden.features.kubernetes import node_actuator as module
from gpuwarden.features.kubernetes.node import ANNOTATION
from gpuwarden.features.kubernetes.node_actuator import KubernetesActuator
from gpuwarden.features.kubernetes.options import KubernetesOptions, misfits
from gpuwarden.policy.model import Act, Intent, Owner, Why
from gpuwarden.policy.preconditions import answer, stands
from gpuwarden_collectors.base import host_clock
from support.kubernetes_api import (
    BUILT_IN,
    TOKEN,
    ApiServer,
    Fault,
    Json,
    endless,
    garbage,
    half_closed,
    node,
    refusing,
    silent,
)
from support.waiting import until
from support.web_certificates import authority, pem

REASON = "gpuwarden: failure gpu=3 xid=79"
KEY = "gpuwarden.io/failure"


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer(node("n1"), node("n2"), node("cpu1", gpu=False)) as running:
        yield running


def actuator(server: ApiServer, folder: Path, boot_id: str = "", **options: object) -> KubernetesActuator:
    settings = KubernetesOptions(**{"kubeconfig": server.kubeconfig(folder), "node": "n1", **options})  # type: ignore[arg-type]
    return KubernetesActuator(settings, clock=host_clock, hostname="N1", boot_id=boot_id, inherited={})


def intent(act: Act, reason: str = REASON, why: Why = Why.FAILURE) -> Intent:
    return Intent(act=act, actuator="kubernetes", why=why, reason=reason, key="k", at=host_clock())


async def exclude(acts: KubernetesActuator, reason: str = REASON, why: Why = Why.FAILURE) -> None:
    await acts.apply(intent(Act.EXCLUDE, reason, why), await acts.read())


async def restore(acts: KubernetesActuator, reason: str = REASON) -> None:
    await acts.apply(intent(Act.RESTORE, reason), await acts.read())


def plain(live: Json) -> Json:
    """Return the node without the fields that the server itself writes."""
    live = copy.deepcopy(live)
    live["metadata"].pop("resourceVersion")
    live["metadata"].pop("managedFields")
    return live


def _taint(live: Json, key: str) -> None:
    live["spec"].setdefault("taints", []).append({"key": key, "effect": "NoSchedule"})


async def test_an_exclusion_is_a_taint_a_label_and_an_annotation_and_its_restoration_leaves_no_trace(
    server: ApiServer, tmp_path: Path
) -> None:
    before = plain(server.nodes["n1"])
    acts = actuator(server, tmp_path)
    assert (await acts.read()).owner is Owner.NONE
    await exclude(acts)
    current = server.nodes["n1"]
    assert current["spec"]["taints"] == [BUILT_IN, {"key": KEY, "value": "failure", "effect": "NoSchedule"}]
    assert current["metadata"]["labels"][KEY] == "failure"
    assert "unschedulable" not in current["spec"]
    read = await acts.read()
    assert (read.owner, read.why, read.reason, read.schedulable) == (Owner.OURS, Why.FAILURE, REASON, False)
    assert read.since > 0
    await restore(acts)
    assert plain(server.nodes["n1"]) == before
    assert (await acts.read()).owner is Owner.NONE
    await acts.close()


@pytest.mark.slow
async def test_taints_of_others_survive_a_hundred_concurrent_edits(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody writes the node before nearly every patch of gpuwarden, until a hundred have been written."""
    monkeypatch.setattr(module, "PAUSE", 0.0)
    chance = random.Random(7)
    added: list[str] = []

    def somebody() -> None:
        if len(added) < 100 and chance.random() < 0.85:
            added.append(f"other.io/{len(added)}")
            server.edit("n1", lambda live: _taint(live, added[-1]))

    server.before_patch = somebody
    acts = actuator(server, tmp_path)
    turns = 0
    while len(added) < 100 and turns < 400:
        turns += 1
        for step in (exclude, restore):
            try:
                await step(acts)
            except ActuatorUnavailable as error:  # it was written twenty times meanwhile, or between read and write
                assert "conflicted with others" in str(error) or "changed since" in str(error)  # noqa: PT017
    server.before_patch = lambda: None
    await exclude(acts)
    keys = [taint["key"] for taint in server.nodes["n1"]["spec"]["taints"]]
    assert keys == ["nvidia.com/gpu", *added, KEY]
    assert len(added) == 100
    await acts.close()


@pytest.mark.parametrize("cordon", [False, True])
async def test_where_somebody_writes_the_node_all_the_time_it_is_changed_within_a_few_attempts(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cordon: bool
) -> None:
    """Whoever writes neither taints nor cordon is not in the way; a taint of others that comes in that moment is kept."""
    monkeypatch.setattr(module, "PAUSE", 0.0)
    before = plain(server.nodes["n1"])
    acts = actuator(server, tmp_path, cordon=cordon)
    if cordon:
        await exclude(acts)
    written: list[int] = []

    def somebody() -> None:
        written.append(len(written))
        server.edit("n1", lambda live: live["metadata"]["annotations"].update(beat=str(len(written))))
        if len(written) == 5:
            server.edit("n1", lambda live: _taint(live, "other.io/x"))

    server.before_patch = somebody
    if not cordon:
        await exclude(acts)
        assert (await acts.read()).owner is Owner.OURS
    await restore(acts)
    server.before_patch = lambda: None
    after = plain(server.nodes["n1"])
    assert len(written) <= 10
    assert after["metadata"]["annotations"].pop("beat")
    keys = [taint["key"] for taint in after["spec"]["taints"]]
    assert keys == ["nvidia.com/gpu", *["other.io/x"] * (len(written) >= 5)]
    assert {**after, "spec": {**after["spec"], "taints": [BUILT_IN]}} == before
    await acts.close()


@pytest.mark.parametrize("by_hand", ["nothing", "uncordoned", "cordoned before"])
async def test_only_a_cordon_of_gpuwarden_is_lifted(server: ApiServer, tmp_path: Path, by_hand: str) -> None:
    acts = actuator(server, tmp_path, cordon=True)
    read = await acts.read()
    if by_hand == "cordoned before":
        server.edit("n1", lambda live: live["spec"].update(unschedulable=True))
        read = await acts.read()
        assert (read.owner, read.closed) == (Owner.NONE, "cordoned")
    await acts.apply(intent(Act.EXCLUDE), read)
    assert server.nodes["n1"]["spec"]["unschedulable"] is True
    if by_hand == "uncordoned":
        server.edit("n1", lambda live: live["spec"].pop("unschedulable"))
    assert (await acts.read()).owner is Owner.OURS
    await restore(acts)
    assert server.nodes["n1"]["spec"].get("unschedulable", False) is (by_hand == "cordoned before")
    assert server.nodes["n1"]["spec"]["taints"] == [BUILT_IN]
    await acts.close()


@pytest.mark.parametrize("cordon", [False, True])
async def test_an_exclusion_stands_beside_a_cordon_of_somebody_else_and_leaves_it_alone(
    server: ApiServer, tmp_path: Path, cordon: bool
) -> None:
    """A drain script or an autoscaler cordons and uncordons at any time, and knows nothing of the GPUs."""
    acts = actuator(server, tmp_path, cordon=cordon)
    server.edit("n1", lambda live: live["spec"].update(unschedulable=True))
    read = await acts.read()
    assert answer(intent(Act.EXCLUDE), read) is None, "the cordon is in the way"
    server.edit("n1", lambda live: live["spec"].pop("unschedulable"))  # meanwhile: it is no change of what matters
    await acts.apply(intent(Act.EXCLUDE), read)
    server.edit("n1", lambda live: live["spec"].update(unschedulable=True))
    read = await acts.read()
    assert (read.owner, read.state) == (Owner.OURS, f"cordoned, taint {KEY}")
    if not cordon:
        assert read.closed == "cordoned"
        await restore(acts)
        assert server.nodes["n1"]["spec"] == {"podCIDR": "10.0.1.0/24", "taints": [BUILT_IN], "unschedulable": True}
    await acts.close()


async def test_a_taint_with_gpuwardens_key_but_without_its_annotation_is_foreign(
    server: ApiServer, tmp_path: Path
) -> None:
    server.edit("n1", lambda live: _taint(live, KEY))
    acts = actuator(server, tmp_path)
    read = await acts.read()
    assert (read.owner, read.reason) == (Owner.FOREIGN, f"taint {KEY} without gpuwarden's annotation")
    await restore(acts)
    assert server.writes == []
    await acts.close()


@pytest.mark.parametrize("before", [None, "fan of rack 4"])
async def test_the_reason_of_its_cordon_is_left_for_slinky_unless_somebody_else_left_one(
    server: ApiServer, tmp_path: Path, before: str | None
) -> None:
    annotation = "nodeset.slinky.slurm.net/node-cordon-reason"
    if before:
        server.edit("n1", lambda live: live["metadata"]["annotations"].update({annotation: before}))
    acts = actuator(server, tmp_path, cordon=True, slinky=True)
    await exclude(acts)
    assert server.nodes["n1"]["metadata"]["annotations"][annotation] == (before or REASON)
    await restore(acts)
    assert server.nodes["n1"]["metadata"]["annotations"].get(annotation) == before
    server.edit("n1", lambda live: live["spec"].update(unschedulable=True))
    await exclude(acts)
    assert server.nodes["n1"]["metadata"]["annotations"].get(annotation) == before, "the cordon is not gpuwarden's"
    await acts.close()


async def test_each_exclusion_and_restoration_is_an_event_of_the_node_and_none_is_waited_for(
    server: ApiServer, tmp_path: Path
) -> None:
    acts = actuator(server, tmp_path)
    await exclude(acts)
    await restore(acts)
    await until(lambda: len(server.events) == 2)
    shown = {(event["type"], event["reason"], event["message"]) for event in server.events}
    assert shown == {("Warning", "GpuwardenExcluded", REASON), ("Normal", "GpuwardenRestored", f"restored: {REASON}")}
    assert {event["involvedObject"]["uid"] for event in server.events} == {"uid-of-n1"}
    server.denied = {("create", "events")}
    await exclude(acts)
    assert (await acts.read()).owner is Owner.OURS
    await acts.close()
    assert len(server.events) == 2


@pytest.mark.parametrize("changed", [{}, {"key": "site.io/out", "effect": "PreferNoSchedule"}])
async def test_a_taint_of_its_key_with_another_effect_is_kept_and_its_own_is_known_under_another_key(
    server: ApiServer, tmp_path: Path, changed: dict[str, object]
) -> None:
    acts = actuator(server, tmp_path)
    await exclude(acts)
    theirs = {"key": KEY, "value": "other", "effect": "NoExecute"}
    server.edit("n1", lambda live: live["spec"]["taints"].append(theirs))
    await acts.close()
    acts = actuator(server, tmp_path, **changed)  # type: ignore[arg-type]
    assert (await acts.read()).owner is Owner.OURS
    await exclude(acts, "gpuwarden: failure gpu=3 xid=95")
    assert theirs in server.nodes["n1"]["spec"]["taints"]
    await restore(acts, "gpuwarden: failure gpu=3 xid=95")
    assert server.nodes["n1"]["spec"]["taints"] == [BUILT_IN, theirs]
    assert KEY not in server.nodes["n1"]["metadata"]["labels"]
    assert (await acts.read()).owner is (Owner.NONE if changed else Owner.FOREIGN)
    await acts.close()


async def test_a_taint_that_was_taken_away_by_hand_is_no_exclusion_and_does_not_count(
    server: ApiServer, tmp_path: Path
) -> None:
    acts = actuator(server, tmp_path)
    await exclude(acts)
    assert [held.node for held in (await acts.fleet_count()).held] == ["n1"]
    server.edit("n1", lambda live: live["spec"].update(taints=[BUILT_IN]))
    assert (await acts.read()).owner is Owner.NONE
    assert (await acts.fleet_count()).held == ()
    await acts.close()


async def test_a_later_cordon_is_foreign_though_gpuwardens_annotation_was_left_behind(
    server: ApiServer, tmp_path: Path
) -> None:
    """Somebody lifted our exclusion by hand, and cordons the node for maintenance afterwards."""
    acts = actuator(server, tmp_path, cordon=True)
    await exclude(acts)
    server.edit("n1", lambda live: live["spec"].update(taints=[BUILT_IN], unschedulable=False))
    assert (await acts.read()).owner is Owner.NONE
    server.edit("n1", lambda live: live["spec"].update(unschedulable=True))
    read = await acts.read()
    assert (read.owner, read.closed) == (Owner.NONE, "cordoned")
    assert (await acts.fleet_count()).held == ()
    await acts.apply(intent(Act.RESTORE), read)
    assert server.nodes["n1"]["spec"]["unschedulable"] is True
    await acts.apply(intent(Act.EXCLUDE), await acts.read())
    await restore(acts)
    assert server.nodes["n1"]["spec"]["unschedulable"] is True
    await acts.close()


async def test_a_node_that_changed_between_read_and_write_is_read_again(server: ApiServer, tmp_path: Path) -> None:
    acts = actuator(server, tmp_path)
    read = await acts.read()
    server.edit("n1", lambda live: _taint(live, KEY))
    with pytest.raises(ActuatorUnavailable, match="changed since"):
        await acts.apply(intent(Act.EXCLUDE), read)
    assert server.writes == []
    await acts.close()


async def test_the_census_is_in_the_order_of_the_servers_clock_and_of_failures_alone(tmp_path: Path) -> None:
    """1,200 nodes with GPUs are counted over three pages, and only those with our label are read."""
    nodes = [node(f"n{number}") for number in range(1200)]
    async with ApiServer(*nodes, node("cpu1", gpu=False)) as server:
        for number, why in ((3, Why.FAILURE), (1, Why.FAILURE), (2, Why.TERMINATION)):
            acts = actuator(server, tmp_path, node=f"n{number}")
            await exclude(acts, f"gpuwarden: {why.value} x=1", why)
            await acts.close()
        server.edit("n3", lambda live: _stamp(live, "2026-01-01T00:00:09Z"))
        server.edit("n1", lambda live: _stamp(live, "2026-01-01T00:00:10Z"))
        acts = actuator(server, tmp_path)
        fleet_count = await acts.fleet_count()
        assert fleet_count.pool == 1200
        asked = len(server.requests)
        await acts.fleet_count()
        assert len(server.requests) == asked + 1, "the pool is not counted again for the second count"
        assert [held.node for held in sorted(fleet_count.held)] == ["n3", "n1"]
        assert (await acts.read()).pool == 1200
        assert abs(fleet_count.now - host_clock().wall) < 3600
        await acts.close()


async def test_the_nvlink_domain_of_an_excluded_node_is_known_to_the_others_by_its_annotation(
    server: ApiServer, tmp_path: Path
) -> None:
    here, other = actuator(server, tmp_path), actuator(server, tmp_path, node="n2")
    await exclude(here, "gpuwarden: failure domain=8f3c6a1e.0 gpu=3 xid=79")
    await exclude(other)
    counted = {held.node: held.domain for held in (await other.fleet_count()).held}
    assert counted == {"n1": "8f3c6a1e.0", "n2": ""}
    await here.close()
    await other.close()


async def test_the_first_read_of_a_big_cluster_is_two_small_requests(tmp_path: Path) -> None:
    """Writes are spread by the size of the cluster, without going through its nodes: all of them may be started at once."""
    async with ApiServer(*(node(f"n{number}") for number in range(1200))) as server:
        acts = actuator(server, tmp_path)
        assert (await acts.read()).pool == acts.pool == 1200
        await acts.read()
        assert len(server.requests) == 3
        await acts.close()


async def test_a_node_with_more_than_ten_field_managers_is_dated_by_its_annotation(
    server: ApiServer, tmp_path: Path
) -> None:
    """The server then has merged our entry with others."""
    acts = actuator(server, tmp_path)
    await exclude(acts)
    server.edit("n1", lambda live: live["metadata"].update(managedFields=[]))
    fleet_count = await acts.fleet_count()
    assert abs(fleet_count.held[0].since - fleet_count.now) < 60
    assert (await acts.read()).owner is Owner.OURS
    await acts.close()


async def test_an_exclusion_that_took_the_server_seconds_is_still_ours_once_its_writer_is_forgotten(
    server: ApiServer, tmp_path: Path
) -> None:
    """A webhook may examine it first; with more than ten field managers the server drops the oldest."""
    acts = actuator(server, tmp_path)
    await exclude(acts)
    written = datetime.fromtimestamp((await acts.read()).since + 5.0, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    server.edit("n1", lambda live: _stamp(live, written))
    before = await acts.read()
    server.edit("n1", lambda live: live["metadata"].update(managedFields=[]))
    assert stands(REASON, before.since, await acts.read())
    await restore(acts)
    assert (await acts.read()).owner is Owner.NONE
    await acts.close()


async def test_a_node_of_another_machine_is_neither_written_nor_counted_as_gpuwardens(
    server: ApiServer, tmp_path: Path
) -> None:
    """A configuration that was copied, a node that was renamed: whose boot the kubelet reports is not this machine."""
    here, there = "1b4e28ba-2fa1-11d2-883f-0016d3cca427", "6fa459ea-ee8a-3ca4-894e-db77e160355e"
    acts = actuator(server, tmp_path, boot_id=here)
    read = await acts.read()
    server.edit("n1", lambda live: live["status"].update(nodeInfo={"bootID": there}))
    for call in (acts.read(), acts.apply(intent(Act.EXCLUDE), read)):
        with pytest.raises(ActuatorUnavailable, match=r"n1 is another machine \(boot 6fa459ea, here 1b4e28ba"):
            await call
    assert server.writes == []
    server.edit("n1", lambda live: live["status"].update(nodeInfo={"bootID": here}))
    await exclude(acts)
    assert (await acts.read()).owner is Owner.OURS
    await acts.close()


async def test_a_recreated_node_has_no_exclusion_of_gpuwarden_and_one_without_a_version_is_not_written(
    server: ApiServer, tmp_path: Path
) -> None:
    acts = actuator(server, tmp_path)
    read = await acts.read()
    await exclude(acts)
    server.nodes.pop("n1")
    with pytest.raises(ActuatorUnavailable, match="no such node"):
        await acts.read()
    server.nodes["n1"] = node("n1")
    assert (await acts.read()).owner is Owner.NONE
    await exclude(acts)
    assert (await acts.read()).owner is Owner.OURS
    server.nodes["n1"] = {**(bare := node("n1")), "metadata": {**bare["metadata"], "resourceVersion": None}}
    writes = len(server.writes)
    with pytest.raises(ActuatorUnavailable, match="no resourceVersion"):
        await acts.apply(intent(Act.EXCLUDE), read)
    assert len(server.writes) == writes
    await acts.close()


def _stamp(live: Json, time: str) -> None:
    for entry in live["metadata"]["managedFields"]:
        if entry["manager"] == "gpuwarden":
            entry["time"] = time


@pytest.mark.parametrize(
    ("fault", "permanent", "message"),
    [
        (refusing(401), False, "does not accept the token"),
        (refusing(403), True, "rbac.yaml"),
        (refusing(400), True, "kubernetes.pool"),
        (refusing(404), False, "kubectl get nodes"),
        (refusing(422), True, "invalid"),
        (refusing(429, **{"Retry-After": "1"}), False, "too many requests"),
        (refusing(500), False, "500"),
        (refusing(301, Location="http://127.0.0.1:9/elsewhere"), False, "301"),
        (garbage, False, "not a JSON"),
        (half_closed, False, "cannot read node n1"),
        (silent, False, "no response within 3 s"),
        (endless, False, "longer than 16 MiB"),
    ],
    ids=["401", "403", "400", "404", "422", "429", "500", "redirect", "garbage", "half-closed", "silent", "endless"],
)  # fmt: skip
async def test_every_bad_response_is_one_error_with_a_remedy(
    server: ApiServer, tmp_path: Path, fault: Fault, permanent: bool, message: str
) -> None:
    """The next call sends a new request."""
    acts = actuator(server, tmp_path, timeout=3.0 if fault is silent else 20.0)
    server.faults += [fault, fault] if message.startswith("does not accept") else [fault]  # a token is read again once
    with pytest.raises(ActuatorError, match=message) as caught:
        await acts.read()
    assert caught.value.permanent is permanent
    assert (await acts.read()).owner is Owner.NONE
    await acts.close()


async def test_conflicts_without_end_are_given_up_and_nothing_is_written(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSE", 0.0)
    server.before_patch = lambda: server.edit("n1", lambda live: _taint(live, "other.io/x"))
    acts = actuator(server, tmp_path)
    with pytest.raises(ActuatorUnavailable, match="20 writes in a row"):
        await exclude(acts)
    assert KEY not in server.nodes["n1"]["metadata"]["labels"]
    await acts.close()


async def test_a_renewed_token_is_taken_up_by_the_next_call(server: ApiServer, tmp_path: Path) -> None:
    acts = actuator(server, tmp_path)
    await acts.read()
    server.tokens = {"another"}
    with pytest.raises(ActuatorUnavailable):
        await acts.read()
    (tmp_path / "token").write_text("another")
    assert (await acts.read()).owner is Owner.NONE
    await acts.close()


async def test_a_pod_uses_its_service_account_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain, key = pem(authority("servers").issue_cert("127.0.0.1"))
    for name, content in (
        ("server.pem", chain + key), ("ca.crt", authority("servers").cert_pem.bytes()), ("token", TOKEN.encode()),
        ("namespace", b"gpuwarden"),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(content)
    async with ApiServer(node("n1"), tls=_tls(tmp_path / "server.pem")) as server:
        host, port = server.url.removeprefix("https://").split(":")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        options = KubernetesOptions(service_account=tmp_path, pool="")
        acts = KubernetesActuator(options, clock=host_clock, hostname="x", inherited={"NODE_NAME": "n1"})
        assert (await acts.read()).pool == 1
        await acts.close()
        (tmp_path / "ca.crt").write_bytes(authority("strangers").cert_pem.bytes())
        with pytest.raises(ActuatorUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await acts.read()
        await acts.close()


def _tls(path: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(path)
    return context


async def test_an_unusable_kubeconfig_is_an_error_that_names_the_file_and_the_cause(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("clusters: [")
    for path, message in ((tmp_path / "absent", "absent"), (broken, "cannot be used")):
        options = KubernetesOptions(kubeconfig=path, node="n1")
        acts = KubernetesActuator(options, clock=host_clock, hostname="n1", inherited={})
        with pytest.raises(ActuatorRefused, match=message):
            await acts.read()
    options = KubernetesOptions(service_account=tmp_path, node="n1")
    with pytest.raises(ActuatorRefused, match="token"):
        await KubernetesActuator(options, clock=host_clock, hostname="n1", inherited={}).read()


@pytest.mark.slow
async def test_a_write_that_timed_out_may_still_take_effect_and_the_next_read_shows_it(
    server: ApiServer, tmp_path: Path
) -> None:
    acts = actuator(server, tmp_path, timeout=4.0)
    read = await acts.read()

    async def late(request: web.Request) -> web.StreamResponse:
        server.take("n1", await request.json(), request)
        return await silent(request)

    server.faults += [None, late]
    with pytest.raises(ActuatorUnavailable, match="no response"):
        await acts.apply(intent(Act.EXCLUDE), read)
    assert (await acts.read()).owner is Owner.OURS
    assert ANNOTATION in server.nodes["n1"]["metadata"]["annotations"]
    await acts.close()


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (KEY, ""),
        ("failure", "expected prefix/name as of a label"),
        ("node.kubernetes.io/failure", "expected a prefix of your own"),
        ("status-taint.cluster-autoscaler.kubernetes.io/gpuwarden", ""),
        ("startup-taint.cluster-autoscaler.kubernetes.io/gpuwarden", "expected a prefix of your own"),
    ],
)
def test_a_key_has_a_prefix_of_the_site_or_that_of_the_cluster_autoscaler_for_a_state(key: str, message: str) -> None:
    """The autoscaler takes a node as the model of a new one: with any other taint it makes no node for a waiting pod."""
    faults = [text for _, text in misfits(Config(kubernetes=KubernetesOptions(key=key)))]  # type: ignore[call-arg]
    assert [text.partition(",")[0] for text in faults] == ([message] if message else [])
