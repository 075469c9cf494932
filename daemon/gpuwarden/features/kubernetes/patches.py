"""The patches that exclude and restore a Node. Pure. The server refuses them after a concurrent write of the same."""

from __future__ import annotations

import json

from gpuwarden.features.kubernetes.api import Json, mapping
from gpuwarden.features.kubernetes.node import (
    ANNOTATION,
    Mark,
    annotations_of,
    is_cordoned,
    mark_of,
    own_taint,
    taint_id,
    taints_of,
    version_of,
    written_at,
)
from gpuwarden.policy import reasons
from gpuwarden.policy.model import Why

SLINKY = "nodeset.slinky.slurm.net/node-cordon-reason"
"""Slinky's slurm-operator drains a cordoned node in Slurm with this text (`AnnotationNodeCordonReason`, read at f2ed3fc)."""


def exclusion(
    node: Json, *, key: str, effect: str, why: Why, reason: str, cordon: bool, at: float, slinky: bool = False
) -> Json:
    """Return the merge patch that excludes the node. It names all taints, since a patch replaces the list:
    `resourceVersion` makes the server refuse it after a concurrent write.
    """
    own = mark_of(node)
    tainted = own_taint(node, own)
    claimed = cordon and (not is_cordoned(node) or (own is not None and own.cordoned and tainted is not None))
    content = {"reason": reason, "key": key, "effect": effect, "cordoned": claimed, "at": int(at)}
    text = json.dumps(content, separators=(",", ":"))
    taint = {"key": key, "value": why.value, "effect": effect}
    others = [other for other in taints_of(node) if other != tainted and taint_id(other) != (key, effect)]
    spec: Json = {"taints": [*others, taint]}
    if claimed:
        spec["unschedulable"] = True
    elif own is not None and own.cordoned and tainted is not None:
        spec["unschedulable"] = None
    annotations = {**_no_cordon_reason(node), ANNOTATION: text}
    if slinky and claimed and (SLINKY in annotations or SLINKY not in annotations_of(node)):
        annotations[SLINKY] = reason
    return _patch(node, {"labels": {**_no_label(own), key: why.value}, "annotations": annotations}, spec)


def restoration(node: Json) -> Json:
    """Return a merge patch that removes what gpuwarden wrote; the cordon only if the annotation claims it."""
    mark = mark_of(node)
    tainted = own_taint(node, mark)
    spec: Json = {"taints": [taint for taint in taints_of(node) if taint != tainted] or None}
    if mark is not None and mark.cordoned and tainted is not None:
        spec["unschedulable"] = None
    return _patch(node, {"labels": _no_label(mark), "annotations": {**_no_cordon_reason(node), ANNOTATION: None}}, spec)


def moved(node: Json, *, key: str, effect: str, cordon: bool, slinky: bool) -> Json | None:
    """Return a merge patch that moves gpuwarden's exclusion to this key and effect; None if it is already there, if
    there is none, or if another party has that taint.
    """
    mark = mark_of(node)
    if mark is None or own_taint(node, mark) is None or (mark.key, mark.effect) == (key, effect):
        return None
    if any(taint_id(taint) == (key, effect) for taint in taints_of(node)):
        return None
    at = mark.at or written_at(node)
    why, text = mark.reason.why, mark.reason.text
    return exclusion(node, key=key, effect=effect, why=why, reason=text, cordon=cordon, at=at, slinky=slinky)


def guarded(node: Json, patch: Json) -> list[Json] | None:
    """Return a JSON patch (RFC 6902) with the effect of this merge patch, which conflicts only with writers of the
    taints, the cordon and gpuwarden's annotation: the server applies it again after other writes. None if it cannot
    test that something is absent.
    """
    metadata, spec = mapping(node.get("metadata")), mapping(node.get("spec"))
    cordons = "unschedulable" in patch["spec"]
    if not taints_of(node) or not {"labels", "annotations"} <= metadata.keys() or (cordons and not is_cordoned(node)):
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
    """Return the values on which `guarded` depends."""
    return (
        mapping(node.get("metadata")).get("uid"),
        taints_of(node),
        annotations_of(node).get(ANNOTATION),
        is_cordoned(node),
        # removed by `guarded`: another writer may remove them in the same moment
        annotations_of(node).get(SLINKY),
        sorted(mapping(mapping(node.get("metadata")).get("labels"))),
    )


def _pointer(name: str, key: str) -> str:
    return f"/metadata/{name}/{key.replace('~', '~0').replace('/', '~1')}"


def _patch(node: Json, metadata: Json, spec: Json) -> Json:
    return {"metadata": {"resourceVersion": version_of(node), **metadata}, "spec": spec}


def _no_cordon_reason(node: Json) -> dict[str, str | None]:
    """Return the removal of gpuwarden's text for Slinky; nothing if there is none, or it is another party's."""
    ours = str(annotations_of(node).get(SLINKY, "")).startswith(reasons.PREFIX)
    return {SLINKY: None} if ours else {}


def _no_label(mark: Mark | None) -> dict[str, str | None]:
    return {} if mark is None else {mark.key: None}
