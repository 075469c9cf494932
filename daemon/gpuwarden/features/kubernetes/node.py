"""A Node as the API server returns it: its state for policy. Pure.

gpuwarden writes a taint and a label of one key, and an annotation with its reason, the taint's key and effect, and
whether the cordon is its own. So it recognises its taint after a change of `kubernetes.key` or `kubernetes.effect`, and
a taint of the same key with another effect is not its own. A taint of that key without the annotation is another
party's exclusion. A cordon that the annotation does not claim, or that remains without gpuwarden's taint, is another
party's too, but no exclusion: drain scripts, upgrades and autoscalers set and lift it, and none of them judges the
GPUs. gpuwarden then adds its taint, and only leaves `spec.unschedulable` alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime

from gpuwarden.features.kubernetes.api import MANAGER, Json, mapping, objects
from gpuwarden.policy import reasons
from gpuwarden.policy.model import Held, NodeState, Owner, Why
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

ANNOTATION = "gpuwarden.io/exclusion"
CORDONED = "cordoned"
_LONGEST = 4_000  # characters of the annotation that are parsed
_LATEST = 1 << 40  # seconds


@dataclass(frozen=True, slots=True)
class Mark:
    """The content of gpuwarden's annotation. `key` and `effect`: of its taint. `at`: the server's clock a moment before
    the write, Unix time. It identifies the exclusion: the server may lose the time of one of many writers.
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
            at=at,
            owner=Owner.OURS,
            why=mark.reason.why,
            reason=mark.reason.text,
            since=mark.at or written_at(node),
            boot=mark.reason.boot,
            instance=mark.reason.instance,
            closed="" if mark.cordoned else closed,
            schedulable=False,
            state=state,
            pool=pool,
        )
    if foreign:
        reason = f"taint {key} without gpuwarden's annotation"
        return NodeState(
            at=at, owner=Owner.FOREIGN, reason=reason, closed=closed, schedulable=False, state=state, pool=pool
        )
    return NodeState(at=at, closed=closed, schedulable=not cordoned, state=state, pool=pool)


def held(nodes: Iterable[Json]) -> tuple[Held, ...]:
    """Return the nodes that gpuwarden has excluded for a failure. A label whose taint was removed by hand does not
    count.

    A node with more than ten writers may lack gpuwarden's entry, because the server merges the oldest.
    """
    held_nodes = []
    for node in nodes:
        mark = mark_of(node)
        if mark is not None and own_taint(node, mark) and mark.reason.why is Why.FAILURE:
            held_nodes.append(Held(written_at(node) or mark.at, name_of(node), mark.reason.domain))
    return tuple(held_nodes)


def own_taint(node: Json, mark: Mark | None) -> Json | None:
    """Return the taint of the annotation, if it exists: it may have been removed by hand, without the annotation."""
    return next(
        (taint for taint in taints_of(node) if mark is not None and taint_id(taint) == (mark.key, mark.effect)), None
    )


def mark_of(node: Json) -> Mark | None:
    text = annotations_of(node).get(ANNOTATION)
    if not isinstance(text, str):
        return None
    try:
        content = mapping(json.loads(text[:_LONGEST]))
    except (ValueError, RecursionError):
        return None
    reason = reasons.parse(str(content.get("reason", "")))
    key, effect, at = content.get("key"), content.get("effect"), content.get("at")
    unix_time = float(at) if isinstance(at, int) and 0 < at < _LATEST else 0.0
    if reason is None or not isinstance(key, str) or not isinstance(effect, str):
        return None
    return Mark(reason, key, effect, content.get("cordoned") is True, unix_time)


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
    return next((taint for taint in taints_of(node) if taint.get("key") == key), None)


def is_cordoned(node: Json) -> bool:
    return mapping(node.get("spec")).get("unschedulable") is True


def version_of(node: Json) -> str:
    """Return the resource version of a node; empty if it has none: a patch would overwrite concurrent writes."""
    version = mapping(node.get("metadata")).get("resourceVersion")
    return version if isinstance(version, str) else ""


def boot_id_of(node: Json) -> str:
    """Return the boot id that the node's kubelet reported when it last started; "" if there is none."""
    boot = mapping(mapping(node.get("status")).get("nodeInfo")).get("bootID")
    return boot.strip().lower() if isinstance(boot, str) else ""


def name_of(node: Json) -> str:
    return str(mapping(node.get("metadata")).get("name", ""))


def annotations_of(node: Json) -> Json:
    return mapping(mapping(node.get("metadata")).get("annotations"))


def taint_id(taint: Json) -> tuple[object, object]:
    """Return what makes a taint unique on its node."""
    return taint.get("key"), taint.get("effect")


def taints_of(node: Json) -> list[Json]:
    return objects(mapping(node.get("spec")).get("taints"))


def _time(text: object) -> float:
    try:
        return datetime.strptime(str(text), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0
