"""The daemon in Kubernetes: a bad GPU taints the node and a mended one brings it back; in mode observe nothing is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.commands import USER
from support.daemons import FakeHost, slots
from support.kubernetes_api import BUILT_IN, ApiServer, Fault, Json, beside, node, refusing, silent

KEY = "gpuwarden.io/failure"
FAST = '[policy]\nrestore_passes = 2\nrestore_after = "0s"\n'


def configure(host: FakeHost, server: ApiServer, mode: str, lifted_for: str = "0s") -> None:
    host.configure(
        f'[breaker]\nrecount_after = "1s"\n{FAST}lifted_for = "{lifted_for}"\nlook_often = "5s"\n[kubernetes]\nenabled = true\nnode = "n1"\nosmo = true\n'
        f'kubeconfig = "{server.kubeconfig(host.folder)}"\n[kubernetes.conditions]\nreset_gpu = "GpuNeedsReset"\n'
    )
    host.config.write_text(f'mode = "{mode}"\n{host.config.read_text()}')


def condition(server: ApiServer, kind: str = "GpuwardenHealthy") -> Json:
    entries = [entry for entry in server.nodes["n1"]["status"]["conditions"] if entry["type"] == kind]
    return entries[0] if entries else {"status": "", "reason": ""}


def taints(server: ApiServer) -> list[str]:
    return [taint["key"] for taint in server.nodes["n1"]["spec"].get("taints", [])]


@pytest.mark.slow
def test_a_bad_gpu_taints_the_node_and_a_mended_one_brings_it_back(tmp_path: Path) -> None:
    host = FakeHost(tmp_path, gpus=2)
    host.seclude()
    with beside(ApiServer(*(node(f"n{number}") for number in range(1, 9)))) as server:
        configure(host, server, "enforce")
        with host.daemon() as daemon:
            daemon.wait_status("healthy")
            daemon.wait(lambda: condition(server)["status"] == "True", "the condition")
            host.xid(1, 95)
            daemon.wait(lambda: KEY in taints(server), "the taint")
            daemon.wait(lambda: condition(server)["status"] == "False", "the condition to follow")
            assert condition(server)["reason"] == "xid"
            daemon.wait(lambda: daemon.heartbeat()["excluded_by"], "the daemon to read it back")
            daemon.wait(lambda: condition(server, "GpuNeedsReset")["status"] == "True", "the condition for repair")
            annotation = json.loads(server.nodes["n1"]["metadata"]["annotations"]["gpuwarden.io/exclusion"])
            assert (annotation["reason"], annotation["cordoned"]) == (
                "gpuwarden: failure gpu=1 xid=95 - reset the GPU when it is empty",
                False,
            )
        writes = len(server.writes)
        with host.daemon() as daemon:  # a restart writes nothing but its heartbeat
            daemon.wait(lambda: node_state(daemon.status())["excluded"] == "failure", "the daemon to read it")
            assert [path for _, path in server.writes[writes:] if not path.endswith("/status")] == []
            host.kernel_line(f"nvidia {slots(2)[1]}: reset done")
            daemon.wait(lambda: taints(server) == [BUILT_IN["key"]], "the taint to go")
            daemon.wait(lambda: condition(server)["status"] == "True", "the condition to follow")
            daemon.wait(lambda: condition(server, "GpuNeedsReset")["status"] == "False", "the end of the repair")
        assert KEY not in server.nodes["n1"]["metadata"]["labels"]


@pytest.mark.slow
def test_a_failed_node_that_somebody_cordoned_is_tainted_at_once_and_stays_so_after_the_uncordon(
    tmp_path: Path,
) -> None:
    """Whoever ends a cordon has not judged the GPU: `lifted_for` does not begin, and the cordon is never gpuwarden's to lift."""
    host = FakeHost(tmp_path, gpus=2)
    host.seclude()
    with beside(ApiServer(*(node(f"n{number}") for number in range(1, 9)))) as server:
        configure(host, server, "enforce", lifted_for="1d")
        server.edit("n1", lambda document: document["spec"].update(unschedulable=True))
        with host.daemon() as daemon:
            daemon.wait_status("healthy")
            daemon.wait(lambda: daemon.heartbeat()["excluded_by"] == ["kubernetes:foreign"], "the cordon to be shown")
            host.xid(1, 95)
            daemon.wait(lambda: KEY in taints(server), "the taint beside the cordon")
            server.edit("n1", lambda document: document["spec"].pop("unschedulable"))
            daemon.wait(lambda: daemon.heartbeat()["excluded_by"] == ["kubernetes:failure"], "the end of the cordon")
            assert KEY in taints(server)
            server.edit("n1", lambda document: document["spec"].update(unschedulable=True))
            host.kernel_line(f"nvidia {slots(2)[1]}: reset done")
            daemon.wait(lambda: taints(server) == [BUILT_IN["key"]], "the taint to go")
            assert server.nodes["n1"]["spec"]["unschedulable"] is True
            order = host.order("exclude", "--reason", "new fans")
            assert "kubernetes: done" in order.stdout
            assert KEY in taints(server)
            order = host.order("restore")
            assert "kubernetes: done; the node stays cordoned, by another party" in order.stdout
            assert taints(server) == [BUILT_IN["key"]]
            assert server.nodes["n1"]["spec"]["unschedulable"] is True


@pytest.mark.slow
def test_a_restore_after_an_exclude_leaves_the_taint_for_the_failure_without_a_moment_between(tmp_path: Path) -> None:
    host = FakeHost(tmp_path, gpus=2)
    host.seclude()
    untainted: list[Json] = []
    with beside(ApiServer(*(node(f"n{number}") for number in range(1, 9)))) as server:
        configure(host, server, "enforce")
        with host.daemon() as daemon:
            daemon.wait_status("healthy")
            host.xid(1, 95)
            daemon.wait(lambda: KEY in taints(server), "the taint")
            daemon.wait(lambda: daemon.heartbeat()["excluded_by"] == ["kubernetes:failure"], "the daemon to read it")
            server.after_patch = lambda: None if KEY in taints(server) else untainted.append(server.nodes["n1"]["spec"])
            failed = reason(server)
            order = host.order("exclude", "--reason", "replacing a fan")
            assert (order.returncode, reason(server)) == (0, f"gpuwarden: operator by={USER} replacing a fan")
            order = host.order("restore")
            assert (order.returncode, "gpuwarden restore --force" in order.stdout + order.stderr) == (1, True)
            daemon.kill()
        with host.daemon() as daemon:
            daemon.wait(lambda: reason(server) == failed, "the failure's reason")
            daemon.wait(lambda: daemon.heartbeat()["excluded_by"] == ["kubernetes:failure"], "status to show it")
            order = host.order("restore")
            assert (order.returncode, reason(server), untainted) == (64, failed, [])
            host.kernel_line(f"nvidia {slots(2)[1]}: reset done")
            daemon.wait(lambda: taints(server) == [BUILT_IN["key"]], "the node to come back by itself")
            daemon.wait(lambda: untainted, "that write to be noted")


def reason(server: ApiServer) -> str:
    """Return the reason in the annotation; "" without one."""
    annotation = server.nodes["n1"]["metadata"]["annotations"].get("gpuwarden.io/exclusion", "{}")
    return str(json.loads(annotation).get("reason", ""))


def node_state(status: dict[str, Any]) -> dict[str, Any]:
    return {"excluded": None, **next(iter(status["actions"]["schedulers"]), {})}


@pytest.mark.slow
def test_in_mode_observe_nothing_is_written_and_a_refused_account_is_a_finding_in_enforce(tmp_path: Path) -> None:
    host = FakeHost(tmp_path, gpus=2)
    host.seclude()
    with beside(ApiServer(node("n1"))) as server:
        configure(host, server, "observe")
        with host.daemon() as daemon:
            host.xid(1, 95)
            daemon.wait_status("failure", "xid.95")
            daemon.wait(lambda: daemon.status()["actions"]["would"], "what would be done")
            assert server.writes == []
        server.always = refusing(403, "forbidden")
        configure(host, server, "enforce")
        with host.daemon() as daemon:
            daemon.wait(lambda: "actuator_refused" in daemon.heartbeat()["reasons"], "the refusal to be reported")
            refusals = [finding for finding in daemon.status()["findings"] if finding["check"] == "actuator_refused"]
            assert "kubernetes/rbac.yaml" in json.dumps(refusals)


TOO_MANY = refusing(429, "too many requests", **{"Retry-After": "1"})


@pytest.mark.slow
@pytest.mark.parametrize("fault", [silent, TOO_MANY, None], ids=["does not answer", "429", "token expired"])
def test_a_gpu_that_fails_while_the_api_server_is_of_no_use_is_tainted_once_it_is(
    tmp_path: Path, fault: Fault | None
) -> None:
    """The judge goes on meanwhile, and nobody has to type anything afterwards."""
    host = FakeHost(tmp_path, gpus=2)
    host.seclude()
    with beside(ApiServer(*(node(f"n{number}") for number in range(1, 9)))) as server:
        configure(host, server, "enforce")
        with host.daemon() as daemon:
            daemon.wait_status("healthy")
            daemon.wait(lambda: condition(server)["status"] == "True", "the condition")
            server.always = fault
            server.tokens = {"renewed"}
            host.xid(1, 95)
            daemon.wait_status("failure", "xid.95")
            asked = len(server.requests)
            daemon.wait(lambda: len(server.requests) >= asked + 3, "it to be tried again")
            daemon.wait_passes(3)
            assert taints(server) == [BUILT_IN["key"]]
            (host.folder / "token").write_text("renewed")
            server.always = None
            daemon.wait(lambda: KEY in taints(server), "the taint")
            daemon.wait(lambda: condition(server)["status"] == "False", "the condition")
            daemon.wait(lambda: daemon.heartbeat()["excluded_by"] == ["kubernetes:failure"], "the daemon to read it")
