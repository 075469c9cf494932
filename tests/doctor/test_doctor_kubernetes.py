"""The doctor shows whether the API server responds, under which account, with which permissions, and what to type if not."""

from __future__ import annotations

import copy
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from gpuwarden.config.model import Config
from gpuwarden.doctor.row import Grade, Row
from gpuwarden.features.kubernetes.api import EVENTS
from gpuwarden.features.kubernetes.condition import OSMO_TYPE
from gpuwarden.features.kubernetes.examination import NEEDED, kubernetes
from gpuwarden.features.kubernetes.node_actuator import KubernetesActuator
from gpuwarden.features.kubernetes.options import KubernetesOptions
from gpuwarden.policy.model import Act, Intent, Why
from gpuwarden_collectors.base import host_clock
from support.kubernetes_api import ApiServer, node, refusing


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer(node("n1"), node("n2"), node("cpu1", gpu=False)) as running:
        yield running


async def rows(server: ApiServer, folder: Path, **options: object) -> dict[str, Row]:
    settings = KubernetesOptions(**{"enabled": True, "kubeconfig": server.kubeconfig(folder), "node": "n1", **options})  # type: ignore[arg-type]
    all_rows = await kubernetes(Config(kubernetes=settings), {})  # type: ignore[call-arg]
    return {row.check: row for row in all_rows}


async def test_where_all_is_well_each_check_is_ok_and_nothing_is_written(server: ApiServer, tmp_path: Path) -> None:
    by_check = await rows(server, tmp_path)
    assert list(by_check) == ["node name", "account", "rights", "admission", "pool", "clock", "leftovers"]
    assert {row.grade for row in by_check.values()} == {Grade.OK}, by_check
    assert by_check["account"].found == "system:serviceaccount:kube-system:gpuwarden"
    assert by_check["pool"].found == "2 nodes with 'nvidia.com/gpu.present=true'"
    assert server.stored == []


def test_the_manifest_grants_exactly_the_rights_that_are_checked() -> None:
    manifest = (Path(__file__).parents[2] / "kubernetes/rbac.yaml").read_text()
    rules = re.findall(r"resources: \[(.+?)\]\n +verbs: \[(.+?)\]", manifest)
    granted = [(verb, resource) for resource, verbs in rules for verb in verbs.split(", ")]
    assert sorted(granted) == sorted(NEEDED)
    role = next(document for document in yaml.safe_load_all(manifest) if document["kind"] == "Role")
    assert role["metadata"]["namespace"] == EVENTS


def test_the_policy_holds_each_field_of_a_nodes_spec_that_the_server_lets_others_set() -> None:
    """An update may set a providerID and address ranges where there are none (run on 1.36); taints and cordon have rules of their own."""
    manifest = (Path(__file__).parents[2] / "kubernetes/rbac.yaml").read_text()
    policy = next(
        document for document in yaml.safe_load_all(manifest) if document["kind"] == "ValidatingAdmissionPolicy"
    )
    held = " ".join(rule["expression"] for rule in policy["spec"]["validations"])
    for field in ("providerID", "podCIDRs"):
        assert f"has(object.spec.{field})" in held
        assert f"has(oldObject.spec.{field})" in held


POLICY = "nodes \"n1\" is forbidden: ValidatingAdmissionPolicy 'no-taints' with binding 'no-taints' denied request: only the platform team taints"
WEBHOOK = 'admission webhook "nodes.example.com" denied the request: no'
OURS = (
    "nodes \"n1\" is forbidden: ValidatingAdmissionPolicy 'gpuwarden-own-node' with binding 'gpuwarden-own-node' denied request: "
    "gpuwarden may change the node it runs on, and no other"
)
KEYS = OURS.replace("the node it runs on, and no other", "only labels of its own keys")


@pytest.mark.parametrize(
    ("status", "message", "advice"),
    [
        (422, POLICY, "an admission policy"),
        (403, WEBHOOK, "an admission webhook"),
        (403, OURS, "bound to another node"),
    ],
)
async def test_a_rule_of_the_cluster_that_refuses_the_write_is_found_without_a_write(
    server: ApiServer, tmp_path: Path, status: int, message: str, advice: str
) -> None:
    before = copy.deepcopy(server.nodes)
    server.of_patch = refusing(status, message)
    row = (await rows(server, tmp_path))["admission"]
    assert (row.grade, advice in row.found, "rbac.yaml" in row.found) == (Grade.FAIL, True, False)
    row = (await rows(server, tmp_path))["admission"]
    assert (row.grade, row.found) == (
        Grade.OK, "the server would take taint, label and annotation, condition (a trial, not stored)",
    )  # fmt: skip
    assert server.nodes == before


async def test_a_refusal_by_key_names_an_earlier_key_too(server: ApiServer, tmp_path: Path) -> None:
    """The present one may be listed, and a taint under the one before it be what cannot be removed."""
    server.of_patch = refusing(403, KEYS)
    row = (await rows(server, tmp_path))["admission"]
    assert (row.grade, "kubernetes.key, or an earlier one whose taint is left" in row.found) == (Grade.FAIL, True)


async def test_what_a_refused_trial_prevents_is_said_and_a_foreign_taint_is_no_success(
    server: ApiServer, tmp_path: Path
) -> None:
    async def no_condition(_: web.Request) -> web.StreamResponse:
        server.of_patch = refusing(422, POLICY)
        return web.json_response({})

    server.of_patch = no_condition
    row = (await rows(server, tmp_path))["admission"]
    assert (row.grade, "cannot write the condition" in row.found) == (Grade.FAIL, True)
    assert row.to_do.endswith("until then no condition is written")
    server.edit(
        "n1", lambda live: live["spec"]["taints"].append({"key": "gpuwarden.io/failure", "effect": "NoSchedule"})
    )
    row = (await rows(server, tmp_path))["admission"]
    assert (row.grade, row.found.partition(":")[0]) == (Grade.WARN, "not tried")


async def test_a_pool_that_is_no_selector_is_for_the_configuration_to_correct(
    server: ApiServer, tmp_path: Path
) -> None:
    """The breaker counts the nodes of the pool: without one no failed node is taken out."""
    row = (await rows(server, tmp_path, pool="a in ("))["pool"]
    assert (row.grade, "kubernetes.pool" in row.found) == (Grade.FAIL, True)
    assert row.to_do.startswith("correct what it names")


async def test_each_right_that_is_missing_is_named_with_what_to_type(server: ApiServer, tmp_path: Path) -> None:
    server.denied = {("list", "nodes"), ("patch", "nodes/status")}
    row = (await rows(server, tmp_path))["rights"]
    assert (row.grade, row.found) == (Grade.FAIL, "may not list nodes, patch nodes/status")
    assert row.to_do == "kubectl apply -f kubernetes/rbac.yaml"


async def test_a_wrong_name_account_or_pool_and_a_server_that_refuses_are_reported(
    server: ApiServer, tmp_path: Path
) -> None:
    by_check = await rows(server, tmp_path, node="n9")
    assert by_check["node name"].grade is Grade.FAIL
    assert by_check["pool"].grade is Grade.WARN
    server.account = "system:node:n1"
    by_check = await rows(server, tmp_path, node="cpu1")
    assert "may not write taints" in by_check["account"].to_do
    assert by_check["pool"].found.endswith("and cpu1 is not one of them")
    server.edit("n1", lambda live: live["status"].update(nodeInfo={"bootID": "another"}))
    assert "another machine" in (await rows(server, tmp_path))["node name"].found
    server.always = refusing(401)
    by_check = await rows(server, tmp_path)
    assert (list(by_check), by_check["api server"].grade) == (["api server"], Grade.FAIL)


async def test_what_another_configuration_left_on_the_node_is_named(server: ApiServer, tmp_path: Path) -> None:
    old = KubernetesOptions(kubeconfig=server.kubeconfig(tmp_path), node="n1", key="old.io/out", osmo=True)
    acts = KubernetesActuator(old, clock=host_clock, hostname="n1", inherited={})
    failed = Intent(
        act=Act.EXCLUDE,
        actuator="kubernetes",
        why=Why.FAILURE,
        reason="gpuwarden: failure xid=79",
        key="k",
        at=host_clock(),
    )
    await acts.apply(failed, await acts.read())
    await acts.api.patch_status(
        "n1", {"status": {"conditions": [{"type": OSMO_TYPE, "status": "True", "reason": "xid"}]}}
    )
    await acts.close()
    row = (await rows(server, tmp_path))["leftovers"]
    assert (row.grade, "taint old.io/out:NoSchedule" in row.found, OSMO_TYPE in row.found) == (Grade.WARN, True, True)
    assert "mode enforce" in row.to_do


async def test_without_kubernetes_there_are_no_rows() -> None:
    assert await kubernetes(Config(), {}) == []
