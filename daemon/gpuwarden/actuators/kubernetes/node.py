"""A Node as the API server returns it: its state for policy, and the patches that change it. Pure.

gpuwarden writes a taint and a label of one key, and an annotation with its reason, the taint's key and effect, and whether the cordon is its own.
So it knows its taint after `kubernetes.key` or `kubernetes.effect` was changed, and a taint of the same key with another effect is not its own.
A taint of that key without the annotation is another party's exclusion. A cordon that the annotation does not claim, or that remains without
gpuwarden's taint, is another party's too, but no exclusion: drain scripts, upgrades and autoscalers set and lift it, and none of them judges the
GPUs. gpuwarden's taint stands beside it, and only `spec.unschedulable` is left alone.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from gpuwarden.actuators.kubernetes.api import CONDITION_MANAGER, EVENTS, MANAGER, Json, mapping, objects
from gpuwarden.policy import reasons
from gpuwarden.policy.model import Act, Held, Intent, NodeState, Owner, Why
from gpuwarden_collectors.facts import Stamp

ANNOTATION = "gpuwarden.io/exclusion"
SLINKY = "nodeset.slinky.slurm.net/node-cordon-reason"
"""Slinky's slurm-operator drains a cordoned node in Slurm with this text (`AnnotationNodeCordonReason`, read at f2ed3fc)."""
CORDONED = "cordoned"
_LONGEST = 4_000  # characters of the annotation that are parsed
_LATEST = 1 << 40  # seconds
_NAME_MOST = 200  # characters of a node's name in an event's, which has at most 253
_MESSAGE_MOST = 1_000  # characters; the server takes 1,024


@dataclass(frozen=True, slots=True)
class Mark:
    """The content of gpuwarden's annotation. `key` and `effect` of its taint. `at`: the server's clock a moment before it was
    written, Unix time.
    """

    reason: reasons.Reason
    key: str
    effect: str
    cordoned: bool
    at: float = 0.0


def node_state_of(node: Json, at: Stamp, key: str, pool: int | None) -> NodeState:
    cordoned, mark = is_cordoned(node), mark_of(node)
    own, foreign = own_taint(node, mark), taint_of(node, key)
    tainted = str(own["key"]) if own else key if foreign else ""
    state = (
        ", ".join(filter(None, ("cordoned" if cordoned else "", f"taint {tainted}" * bool(tainted)))) or "schedulable"
    )
    closed = CORDONED if cordoned else ""
    if mark is not None and own:
        return NodeState(
            at=at, owner=Owner.OURS, why=mark.reason.why, reason=mark.reason.text, since=written_at(node),
            boot=mark.reason.boot, instance=mark.reason.instance, closed="" if mark.cordoned else closed, schedulable=False,
            state=state, pool=pool,
        )  # fmt: skip
    if foreign:
        reason = f"taint {key} without gpuwarden's annotation"
        return NodeState(
            at=at, owner=Owner.FOREIGN, reason=reason, closed=closed, schedulable=False, state=state, pool=pool
        )
    return NodeState(at=at, closed=closed, schedulable=not cordoned, state=state, pool=pool)


def exclusion(
    node: Json, *, key: str, effect: str, why: Why, reason: str, cordon: bool, at: float, slinky: bool = False
) -> Json:
    """A merge patch. It names all taints, since a patch replaces the list: `resourceVersion` makes the server refuse it
    after a concurrent write.
    """
    own = mark_of(node)
    tainted = own_taint(node, own)
    claimed = cordon and (not is_cordoned(node) or (own is not None and own.cordoned and tainted is not None))
    content = {"reason": reason, "key": key, "effect": effect, "cordoned": claimed, "at": int(at)}
    text = json.dumps(content, separators=(",", ":"))
    taint = {"key": key, "value": why.value, "effect": effect}
    others = [other for other in _taints(node) if other != tainted and _id(other) != (key, effect)]
    spec: Json = {"taints": [*others, taint]}
    if claimed:
        spec["unschedulable"] = True
    elif own is not None and own.cordoned and tainted is not None:
        spec["unschedulable"] = None
    annotations = {**_no_cordon_reason(node), ANNOTATION: text}
    if slinky and claimed and (SLINKY in annotations or SLINKY not in _annotations(node)):
        annotations[SLINKY] = reason
    return _patch(node, {"labels": {**_no_label(own), key: why.value}, "annotations": annotations}, spec)


def restoration(node: Json) -> Json:
    """A merge patch that removes what gpuwarden wrote: the cordon only while the annotation claims it."""
    mark = mark_of(node)
    tainted = own_taint(node, mark)
    spec: Json = {"taints": [taint for taint in _taints(node) if taint != tainted] or None}
    if mark is not None and mark.cordoned and tainted is not None:
        spec["unschedulable"] = None
    return _patch(node, {"labels": _no_label(mark), "annotations": {**_no_cordon_reason(node), ANNOTATION: None}}, spec)


def event(node: Json, name: str, intent: Intent, wall: float) -> Json:
    """The event of a write, as `kubectl describe node` shows it: under the node's uid."""
    excluded = intent.act is Act.EXCLUDE
    at = datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    text = intent.reason if excluded else f"restored: {intent.reason}".rstrip(": ")
    return {
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"generateName": f"{name[:_NAME_MOST]}.gpuwarden-", "namespace": EVENTS},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": name, "uid": mapping(node.get("metadata")).get("uid", "")},
        "reason": "GpuwardenExcluded" if excluded else "GpuwardenRestored", "message": text[:_MESSAGE_MOST],
        "type": "Warning" if excluded else "Normal", "source": {"component": "gpuwarden", "host": name},
        "reportingComponent": "gpuwarden", "reportingInstance": name, "action": "Exclude" if excluded else "Restore",
        "firstTimestamp": at, "lastTimestamp": at, "count": 1,
    }  # fmt: skip


def moved(node: Json, *, key: str, effect: str, cordon: bool, slinky: bool) -> Json | None:
    """A merge patch that puts gpuwarden's exclusion under this key and effect; None if it is there, if there is none, or if the place is
    another party's.
    """
    mark = mark_of(node)
    if mark is None or own_taint(node, mark) is None or (mark.key, mark.effect) == (key, effect):
        return None
    if any(_id(taint) == (key, effect) for taint in _taints(node)):
        return None
    at = written_at(node) or mark.at
    why, text = mark.reason.why, mark.reason.text
    return exclusion(node, key=key, effect=effect, why=why, reason=text, cordon=cordon, at=at, slinky=slinky)


def left_conditions(node: Json, types: Container[str]) -> list[str]:
    """The node's conditions that gpuwarden wrote under another configuration."""
    own = own_conditions(node)
    present = [str(entry.get("type")) for entry in objects(mapping(node.get("status")).get("conditions"))]
    return [kind for kind in present if kind in own and kind not in types]


def own_conditions(node: Json) -> set[str]:
    """The types of the conditions that gpuwarden wrote last: the server records the writer of each field."""
    fields: Json = {}
    for entry in objects(mapping(node.get("metadata")).get("managedFields")):
        if (entry.get("manager"), entry.get("subresource")) == (CONDITION_MANAGER, "status"):
            status = mapping(mapping(entry.get("fieldsV1")).get("f:status"))
            fields |= mapping(status.get("f:conditions"))
    return {kind for name, written in fields.items() if "f:status" in mapping(written) and (kind := _kind(name))}


def _kind(field: str) -> str:
    """The type of a condition from its name among managed fields: `k:{"type":"Ready"}`."""
    try:
        return str(mapping(json.loads(field.removeprefix("k:"))).get("type", ""))
    except (ValueError, RecursionError):
        return ""


def guarded(node: Json, patch: Json) -> list[Json] | None:
    """A JSON patch (RFC 6902) with the effect of this merge patch, which conflicts only with writers of the taints, the cordon and our
    annotation: the server repeats it after other writes. None where it cannot test that something is absent.
    """
    metadata, spec = mapping(node.get("metadata")), mapping(node.get("spec"))
    cordons = "unschedulable" in patch["spec"]
    if not _taints(node) or not {"labels", "annotations"} <= metadata.keys() or (cordons and not is_cordoned(node)):
        return None
    tests = [("/metadata/uid", metadata.get("uid")), ("/spec/taints", spec["taints"])]
    if ANNOTATION in metadata["annotations"]:
        tests.append((_pointer("annotations", ANNOTATION), metadata["annotations"][ANNOTATION]))
    if cordons:
        tests.append(("/spec/unschedulable", True))
    operations: list[Json] = [{"op": "test", "path": path, "value": value} for path, value in tests]
    for name in ("labels", "annotations"):
        for key, value in patch["metadata"][name].items():
            if value is not None:
                operations.append({"op": "add", "path": _pointer(name, key), "value": value})
            elif key in metadata[name]:
                operations.append({"op": "remove", "path": _pointer(name, key)})
    for key, value in patch["spec"].items():
        path = f"/spec/{key}"
        operations.append(
            {"op": "remove", "path": path} if value is None else {"op": "replace", "path": path, "value": value}
        )
    return operations


def guards(node: Json) -> tuple[object, ...]:
    """Return the values that `guarded` tests."""
    return (
        mapping(node.get("metadata")).get("uid"),
        _taints(node),
        _annotations(node).get(ANNOTATION),
        is_cordoned(node),
    )


def _pointer(name: str, key: str) -> str:
    return f"/metadata/{name}/{key.replace('~', '~0').replace('/', '~1')}"


def held(nodes: Iterable[Json]) -> tuple[Held, ...]:
    """Nodes that gpuwarden has excluded for a failure. A label that remained when the taint was removed by hand does
    not count.

    A node with more than ten writers may lack gpuwarden's entry: the server merges the oldest.
    """
    found = []
    for node in nodes:
        mark = mark_of(node)
        if mark is not None and own_taint(node, mark) and mark.reason.why is Why.FAILURE:
            found.append(Held(written_at(node) or mark.at, name_of(node)))
    return tuple(found)


def own_taint(node: Json, mark: Mark | None) -> Json | None:
    """The taint of the annotation, if it is there: it may have been removed by hand, without the annotation."""
    return next((taint for taint in _taints(node) if mark is not None and _id(taint) == (mark.key, mark.effect)), None)


def mark_of(node: Json) -> Mark | None:
    text = _annotations(node).get(ANNOTATION)
    if not isinstance(text, str):
        return None
    try:
        content = mapping(json.loads(text[:_LONGEST]))
    except (ValueError, RecursionError):
        return None
    reason = reasons.parse(str(content.get("reason", "")))
    key, effect, at = content.get("key"), content.get("effect"), content.get("at")
    known = float(at) if isinstance(at, int) and 0 < at < _LATEST else 0.0
    if reason is None or not isinstance(key, str) or not isinstance(effect, str):
        return None
    return Mark(reason, key, effect, content.get("cordoned") is True, known)


def written_at(node: Json) -> float:
    """Return when gpuwarden's marks were written, by the server's clock in whole seconds; 0 if it gives no time.

    All nodes of a pool rank themselves by it, so that no node's own clock counts.
    """
    times = [
        _time(entry.get("time"))
        for entry in objects(mapping(node.get("metadata")).get("managedFields"))
        if entry.get("manager") == MANAGER and not entry.get("subresource")
    ]
    return max(times, default=0.0)


def taint_of(node: Json, key: str) -> Json | None:
    return next((taint for taint in _taints(node) if taint.get("key") == key), None)


def is_cordoned(node: Json) -> bool:
    return mapping(node.get("spec")).get("unschedulable") is True


def version_of(node: Json) -> str:
    """The resource version of a node; empty if the server gives none: then a patch would overwrite concurrent writes."""
    version = mapping(node.get("metadata")).get("resourceVersion")
    return version if isinstance(version, str) else ""


def boot_id_of(node: Json) -> str:
    """The boot id that the node's kubelet reported when it last started; "" if it gives none."""
    boot = mapping(mapping(node.get("status")).get("nodeInfo")).get("bootID")
    return boot.strip().lower() if isinstance(boot, str) else ""


def name_of(node: Json) -> str:
    return str(mapping(node.get("metadata")).get("name", ""))


def _patch(node: Json, metadata: Json, spec: Json) -> Json:
    return {"metadata": {"resourceVersion": version_of(node), **metadata}, "spec": spec}


def _annotations(node: Json) -> Json:
    return mapping(mapping(node.get("metadata")).get("annotations"))


def _no_cordon_reason(node: Json) -> dict[str, str | None]:
    """The removal of our text for Slinky; nothing where there is none, or another party's."""
    ours = str(_annotations(node).get(SLINKY, "")).startswith(reasons.PREFIX)
    return {SLINKY: None} if ours else {}


def _no_label(mark: Mark | None) -> dict[str, str | None]:
    return {} if mark is None else {mark.key: None}


def _id(taint: Json) -> tuple[object, object]:
    """Return what makes a taint unique on its node."""
    return taint.get("key"), taint.get("effect")


def _taints(node: Json) -> list[Json]:
    return objects(mapping(node.get("spec")).get("taints"))


def _time(text: object) -> float:
    try:
        return datetime.strptime(str(text), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0
