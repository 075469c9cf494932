"""A Node as the API server gives it: what stands there in the words of policy, and the patches that change it. Pure.

Ours are a taint and a label of one key, and an annotation that tells the rest: our reason, and whether the cordon is ours.
A taint of that key without the annotation is somebody else's, and so is a cordon that the annotation does not claim, or that
stands without our taint: whoever took that away has lifted the exclusion, and what was done later is theirs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from gpuwarden.actuators.kubernetes.api import MANAGER, Json, mapping, objects
from gpuwarden.policy import reasons
from gpuwarden.policy.model import Held, Owner, Standing, Why
from gpuwarden_collectors.facts import Stamp

ANNOTATION = "gpuwarden.io/exclusion"
_LONGEST = 4_000  # characters of an annotation of ours that are looked at
_LATEST = 1 << 40  # seconds


@dataclass(frozen=True, slots=True)
class Mark:
    """What our annotation says. `at`: the server's clock a moment before it was written."""

    reason: reasons.Reason
    cordoned: bool
    at: float = 0.0


def standing_of(node: Json, at: Stamp, key: str, pool: int | None) -> Standing:
    taint, cordoned, mark = taint_of(node, key), is_cordoned(node), mark_of(node)
    state = ", ".join(filter(None, ("cordoned" if cordoned else "", f"taint {key}" if taint else "")))
    if mark is not None and _stands(node, key):
        return Standing(
            at=at, owner=Owner.OURS, why=mark.reason.why, reason=mark.reason.text, since=written_at(node),
            boot=mark.reason.boot, instance=mark.reason.instance, schedulable=False, state=state, pool=pool,
        )  # fmt: skip
    if taint:
        reason = f"taint {key} without our annotation"
        return Standing(at=at, owner=Owner.FOREIGN, reason=reason, schedulable=False, state=state, pool=pool)
    if cordoned:
        return Standing(at=at, owner=Owner.FOREIGN, reason="cordoned", schedulable=False, state=state, pool=pool)
    return Standing(at=at, state="schedulable", pool=pool)


def exclusion(node: Json, *, key: str, effect: str, why: Why, reason: str, cordon: bool, at: float) -> Json:
    """A merge patch. It names all taints, since a patch replaces the list: `resourceVersion` makes the server refuse it
    where somebody else wrote meanwhile.
    """
    ours = mark_of(node)
    claimed = cordon and (not is_cordoned(node) or (ours is not None and ours.cordoned and _stands(node, key)))
    text = json.dumps({"reason": reason, "cordoned": claimed, "at": int(at)}, separators=(",", ":"))
    taint = {"key": key, "value": why.value, "effect": effect}
    spec: Json = {"taints": [*_others(node, key), taint]}
    if claimed:
        spec["unschedulable"] = True
    return _patch(node, {"labels": {key: why.value}, "annotations": {ANNOTATION: text}}, spec)


def restoration(node: Json, *, key: str) -> Json:
    """A merge patch that takes away what is ours: the cordon only while our annotation claims it."""
    mark = mark_of(node)
    spec: Json = {"taints": _others(node, key) or None}
    if mark is not None and mark.cordoned and _stands(node, key):
        spec["unschedulable"] = None
    return _patch(node, {"labels": {key: None}, "annotations": {ANNOTATION: None}}, spec)


def held(nodes: Iterable[Json], key: str) -> tuple[Held, ...]:
    """Those that we hold out for a failure. A label that stayed when somebody took the taint away by hand does not count.

    A node that more than ten have written has no entry of ours any more: the server merges the oldest.
    """
    found = []
    for node in nodes:
        mark = mark_of(node)
        if mark is not None and _stands(node, key) and mark.reason.why is Why.FAILURE:
            found.append(Held(written_at(node) or mark.at, name_of(node)))
    return tuple(found)


def _stands(node: Json, key: str) -> bool:
    """Whether what the annotation tells of is there: somebody may have taken it away by hand, and left the annotation."""
    return taint_of(node, key) is not None


def mark_of(node: Json) -> Mark | None:
    text = mapping(mapping(node.get("metadata")).get("annotations")).get(ANNOTATION)
    if not isinstance(text, str):
        return None
    try:
        content = mapping(json.loads(text[:_LONGEST]))
    except (ValueError, RecursionError):
        return None
    reason = reasons.parse(str(content.get("reason", "")))
    at = content.get("at")
    known = float(at) if isinstance(at, int) and 0 < at < _LATEST else 0.0
    return None if reason is None else Mark(reason, content.get("cordoned") is True, known)


def written_at(node: Json) -> float:
    """When we wrote our marks, by the server's clock in whole seconds; 0 if it does not say.

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
    """Empty if the server does not say; then a patch would be taken whoever wrote meanwhile."""
    version = mapping(node.get("metadata")).get("resourceVersion")
    return version if isinstance(version, str) else ""


def boot_id_of(node: Json) -> str:
    """As its kubelet reported it when it last started; "" if it does not say."""
    boot = mapping(mapping(node.get("status")).get("nodeInfo")).get("bootID")
    return boot.strip().lower() if isinstance(boot, str) else ""


def name_of(node: Json) -> str:
    return str(mapping(node.get("metadata")).get("name", ""))


def _patch(node: Json, metadata: Json, spec: Json) -> Json:
    return {"metadata": {"resourceVersion": version_of(node), **metadata}, "spec": spec}


def _others(node: Json, key: str) -> list[Json]:
    return [taint for taint in _taints(node) if taint.get("key") != key]


def _taints(node: Json) -> list[Json]:
    return objects(mapping(node.get("spec")).get("taints"))


def _time(text: object) -> float:
    try:
        return datetime.strptime(str(text), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0
