"""Checks Kubernetes: that its API server responds, the account and its permissions, and that the node is this machine.
Changes nothing: the writes that it tries are not stored.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Mapping

from gpuwarden.actuators.base import ActuatorError, ActuatorRefused
from gpuwarden.config.model import Config
from gpuwarden.doctor.row import Row, fail, ok, warn
from gpuwarden.features.kubernetes.api import EVENTS, NoSuchNode
from gpuwarden.features.kubernetes.condition import TYPE, condition_types
from gpuwarden.features.kubernetes.node import mark_of, own_taint
from gpuwarden.features.kubernetes.node_actuator import AnotherMachine, KubernetesActuator
from gpuwarden.features.kubernetes.node_conditions import left_conditions
from gpuwarden.features.kubernetes.options import KubernetesOptions
from gpuwarden_collectors.base import host_clock
from gpuwarden_collectors.host import boot_id

SKEW_MOST = 5.0
KUBELET = "system:node:"
NEEDED = (("get", "nodes"), ("list", "nodes"), ("patch", "nodes"), ("patch", "nodes/status"), ("create", "events"))
"""Verb and resource; events in their namespace."""


async def kubernetes(config: Config, inherited: Mapping[str, str] = os.environ) -> list[Row]:
    if not config.of(KubernetesOptions).enabled:
        return []
    actuator = KubernetesActuator(
        config.of(KubernetesOptions),
        clock=host_clock,
        hostname=os.uname().nodename,
        boot_id=boot_id(config.paths.proc),
        inherited=inherited,
    )
    try:
        rows = [await _node(actuator)]
        if "api server" not in {row.check for row in rows}:
            rows += [row async for row in _more(actuator, config)]
        return rows
    finally:
        await actuator.close()


async def _node(actuator: KubernetesActuator) -> Row:
    """Return a row about the API server if it does not respond, or refuses; else about the node."""
    try:
        await actuator.read()
    except AnotherMachine as error:
        return fail("node name", str(error), "set kubernetes.node to the name of this machine in `kubectl get nodes`")
    except NoSuchNode as error:
        return fail("node name", str(error), "set kubernetes.node, or start the kubelet: it registers the node")
    except ActuatorError as error:
        to_do = (
            "correct [kubernetes], and check that the API server can be reached: until then nothing is written there"
        )
        return fail("api server", str(error), to_do)
    return ok("node name", f"{actuator.node}, known to the API server")


async def _more(actuator: KubernetesActuator, config: Config) -> AsyncIterator[Row]:
    checks = (_account, _rights, _admission, _pool, _clock, _leftovers)
    for check in checks:
        try:
            yield await check(actuator, config)
        except ActuatorRefused as error:
            yield fail(check.__name__.strip("_"), str(error), "correct what it names, and run the doctor again")
        except ActuatorError as error:
            yield warn(
                check.__name__.strip("_"),
                str(error),
                "run the doctor again; if it stays, contact the operators of the API server",
            )


async def _account(actuator: KubernetesActuator, _: Config) -> Row:
    try:
        review = await actuator.api.review("authentication.k8s.io", "SelfSubjectReview", {})
    except NoSuchNode:  # no such API: before Kubernetes 1.28
        review = {}
    info = review.get("userInfo")
    name = str(info.get("username", "")) if isinstance(info, dict) else ""
    if name.startswith(KUBELET):
        to_do = "give gpuwarden its own account (kubernetes/rbac.yaml): a kubelet may not write taints"
        return fail("account", f"{name} is the account of a kubelet", to_do)
    return ok("account", name or "the server does not name it")


async def _rights(actuator: KubernetesActuator, _config: Config) -> Row:
    missing = []
    for verb, named in NEEDED:
        resource, _, subresource = named.partition("/")
        attributes = {"verb": verb, "resource": resource, "subresource": subresource}
        if resource == "events":
            attributes["namespace"] = EVENTS
        elif verb != "list":
            attributes["name"] = actuator.node
        spec = {"resourceAttributes": attributes}
        review = await actuator.api.review("authorization.k8s.io", "SelfSubjectAccessReview", spec)
        if review.get("allowed") is not True:
            missing.append(f"{verb} {named}")
    if missing:
        return fail("rights", f"may not {', '.join(missing)}", "kubectl apply -f kubernetes/rbac.yaml")
    return ok("rights", "may get, list and patch nodes, patch their status, and create events")


async def _admission(actuator: KubernetesActuator, config: Config) -> Row:
    """Send the real patches for a trial: the cluster's rules, which no review of permissions shows, may refuse them."""
    undone = "no failed node is taken out"
    options = config.of(KubernetesOptions)
    try:
        tried = await actuator.try_change()
        undone = "no condition is written"
        if options.condition:
            at = "1970-01-01T00:00:00Z"
            entry = {
                "type": TYPE,
                "status": "Unknown",
                "reason": "dry_run",
                "lastHeartbeatTime": at,
                "lastTransitionTime": at,
            }
            await actuator.api.patch_status(actuator.node, {"status": {"conditions": [entry]}}, dry=True)
    except ActuatorRefused as error:
        return fail("admission", str(error), f"change that rule, or the token: until then {undone}")
    if not tried:
        state = f"not tried: the node has the taint {options.key} of another party, beside which gpuwarden writes none"
        return warn("admission", state, "remove that taint if nobody needs it, and run the doctor again")
    accepted = f"{tried}, condition" if options.condition else tried
    return ok("admission", f"the server would take {accepted} (a trial, not stored)")


async def _pool(actuator: KubernetesActuator, config: Config) -> Row:
    selector = config.of(KubernetesOptions).pool
    nodes = await actuator.api.count(selector)
    if not await actuator.api.count(selector, actuator.node):
        state = f"{nodes} nodes match {selector!r}, and {actuator.node} is not one of them"
        to_do = "set kubernetes.pool to a selector of the nodes with GPUs, or label them: the breaker's budget is a share of these nodes"
        return warn("pool", state, to_do)
    return ok("pool", f"{nodes} nodes with {selector!r}" if selector else f"{nodes} nodes")


async def _leftovers(actuator: KubernetesActuator, config: Config) -> Row:
    options = config.of(KubernetesOptions)
    enforce = config.mode == "enforce"
    node = (await actuator.read_node()).body
    left = [f"condition {kind}" for kind in left_conditions(node, condition_types(options) if enforce else ())]
    mark = mark_of(node)
    if mark is not None and own_taint(node, mark) and (mark.key, mark.effect) != (options.key, options.effect):
        left.append(f"taint {mark.key}:{mark.effect}")
    if not left:
        return ok("leftovers", "nothing of another configuration is on the node")
    by_daemon = "the daemon clears it with its next heartbeat of the condition: restart it, or wait"
    to_do = (
        by_daemon if enforce else "run gpuwarden in mode enforce until it is cleared: in mode observe it writes nothing"
    )
    return warn("leftovers", f"{', '.join(left)}: written under another configuration", to_do)


async def _clock(actuator: KubernetesActuator, _: Config) -> Row:
    """Compare the clock with the server's, in whole seconds. The error is half the duration of the call."""
    before = time.time()
    at = (await actuator.api.node(actuator.node)).at + 0.5
    skew = abs(at - (before + time.time()) / 2)
    if skew > SKEW_MOST:
        state = f"{skew:.0f} s away from the API server's"
        return warn("clock", state, "synchronise it: the times of the condition come from this clock")
    return ok("clock", "agrees with the API server's within a few seconds")
