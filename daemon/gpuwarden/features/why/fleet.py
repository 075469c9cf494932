"""`gpuwarden why JOB --prometheus URL`: all nodes of a job, in order of time, from what their daemons publish."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from gpuwarden.cli.parser import UNKNOWN, CommandError
from gpuwarden.cli.prometheus_access import prometheus_access
from gpuwarden.cli.text import clean, table, when
from gpuwarden.features.why.metrics import CAUSE_AT, ENDED, ENDED_AT
from gpuwarden.features.why.model import Cause, Certainty, JobKind
from gpuwarden.features.why.names import names_of
from gpuwarden.features.why.text import CAUSES
from gpuwarden.fleet.queries import HEARTBEAT_WINDOW, SEEN
from gpuwarden.prometheus.client import PrometheusError, Sample, query
from gpuwarden.publish.times import rfc3339
from gpuwarden_collectors.dataclass import dataclass

WITHIN = "1d"
"""Range of the queries: daemons publish jobs that ended in the last day."""
_FOLLOWS = frozenset({Cause.NONE, Cause.OTHER_NODE, Cause.NOT_SEEN})
"""Causes on a node where the end of the job did not begin."""
_STATES = {
    "running": "it runs",
    "unrecorded": "it had the job, and publishes no end of it, as for jobs that ended well within minutes",
    "silent": "it had the job, and does not answer any more",
}
Key = tuple[str, str]
"""Cluster and instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOfJob:
    """One node that has or had the job."""

    node: str
    """Name of the node; its instance where the name is not known."""
    cluster: str
    instance: str
    state: str
    """`ended`; `running`; `unrecorded`: it had the job and publishes no end of it (`metrics.WELL_AT_LEAST`, `metrics.MOST`); `silent`: it had the job, and does not answer any more."""
    at: float
    """When the cause began there, or the job ended without one; when a silent node was last reached. Unix time."""
    ended: float | None = None
    """When the job ended there."""
    cause: str = ""
    certainty: str = ""
    code: str = ""
    pci_bus_id: str = ""

    @property
    def begins(self) -> bool:
        """Return True if the end of the job may have begun here."""
        lost = self.state == "silent" and self.at > 0
        return lost or (self.state == "ended" and self.cause not in _FOLLOWS)

    def is_sure(self, over: float) -> bool:
        """Return True if more than a possible cause was seen here. A node that was lost before the job was over
        everywhere counts. `over`: that time.
        """
        is_lost = self.state == "silent" and self.at <= over
        return self.begins and (is_lost or (self.state == "ended" and self.certainty != Certainty.POSSIBLE))


def queries(name: str) -> dict[str, str]:
    """Return the queries for a job. Its label is `exported_job`, since `job` is the scrape's own, unless that honours labels."""

    def each(series: str, value: str, form: str) -> str:
        return " or ".join(form.format(f'{series}{{{label}="{value}"}}') for label in ("exported_job", "job"))

    def of(series: str, value: str) -> str:
        return f"({each(series, value, f'last_over_time({{}}[{WITHIN}])')})"

    kind, _, number = name.partition("/")
    by_name = {
        "nodes": "group by (cluster, instance, node) (gpuwarden_node_info)",
        "ended": of(ENDED, name),
        "ended_now": each(ENDED, name, "{}"),
        "ended_until": each(ENDED, name, f"max_over_time(timestamp({{}})[{WITHIN}:1m])"),
        "ended_at": of(ENDED_AT, name),
        "cause_at": of(CAUSE_AT, name),
        "seen": SEEN,
        "named": f"group by (cluster, instance, node) (last_over_time(gpuwarden_node_info[{HEARTBEAT_WINDOW}]))",
    }
    if kind == JobKind.SLURM:
        job_info = "gpuwarden_gpu_job_info"
        by_name["had"] = f"group by (cluster, instance) {of(job_info, number)}"
        by_name["has"] = f"group by (cluster, instance) ({each(job_info, number, '{}')})"
    return by_name


def shown(options: argparse.Namespace) -> str:
    """Return the output of the command for the nodes of a job. Raises CommandError."""
    if options.job is None:
        raise CommandError("--prometheus needs the job, as in gpuwarden why 4711 --prometheus URL")
    if options.state_dir is not None or options.run_dir is not None:
        raise CommandError("--prometheus: not with --state-dir or --run-dir, which are of one node")
    try:
        name = names_of(options.job)[0]
    except ValueError as error:
        raise CommandError(str(error)) from None
    reached = prometheus_access(options, os.environ)
    try:
        results = query(reached, queries(name), options.timeout)
    except PrometheusError as error:
        raise CommandError(clean(str(error)), UNKNOWN) from error
    nodes = nodes_of(results.samples)
    if options.cluster is not None:
        nodes = [node for node in nodes if node.cluster == options.cluster]
    if not nodes:
        raise CommandError(
            f"{reached.url} has no node that has {name} or had it in the last day: does it scrape the daemons (port 9839)?",
            UNKNOWN,
        )
    if options.json:
        return json.dumps({"job": name, "prometheus": reached.url, "notes": results.warnings} | document(nodes))
    if options.short:
        return f"gpuwarden: {headline(name, nodes)}"
    notes = [f"\nPrometheus warns: {clean(warning)}" for warning in results.warnings]
    return "\n".join([*lines(name, nodes), *notes])


def nodes_of(samples: Mapping[str, Sequence[Sample]]) -> list[NodeOfJob]:
    """Return the nodes of the job in order of time, those without a known time last."""
    samples = {**samples, "seen": _placed(samples)}
    names, seen = _names(samples), {_key(sample): sample.value for sample in samples["seen"]}
    here = {_key(sample) for sample in samples["nodes"]}
    ended_at = {_key(sample): sample.value for sample in samples["ended_at"]}
    cause_at = {_key(sample): sample.value for sample in samples["cause_at"]}
    ended = {_key(sample): sample for sample in _newest_last(samples)}
    nodes = [_ended(key, sample, names, ended_at, cause_at) for key, sample in ended.items()]
    has = {_key(sample) for sample in samples.get("has", ())}
    for sample in samples.get("had", ()):
        key = _key(sample)
        if key not in ended:
            state = "running" if key in has else "unrecorded" if key in here else "silent"
            last = sample.at if key in here else seen.get(key, 0.0)
            cluster, instance = key
            node = names.get(key, instance)
            nodes.append(NodeOfJob(node=node, cluster=cluster, instance=instance, state=state, at=last))
    return sorted(nodes, key=lambda node: (node.state != "ended" and not node.begins, node.at, node.node))


def _placed(samples: Mapping[str, Sequence[Sample]]) -> list[Sample]:
    """Return the samples of rules with their node's cluster, where it is unambiguous: rules drop target labels."""
    clusters: dict[str, set[str]] = defaultdict(set)
    for cluster, instance in (_key(sample) for name in ("nodes", "named", "had") for sample in samples.get(name, ())):
        clusters[instance].add(cluster)
    placed = []
    for sample in samples["seen"]:
        candidates = clusters.get(sample.labels.get("instance", ""), set())
        lacks = not sample.labels.get("cluster") and len(candidates) == 1
        placed.append(replace(sample, labels={**sample.labels, "cluster": next(iter(candidates))}) if lacks else sample)
    return placed


def _newest_last(samples: Mapping[str, Sequence[Sample]]) -> list[Sample]:
    """Return the ends of the job in order: a node may have had it several times, and publishes only the newest."""
    now = {_series(sample) for sample in samples["ended_now"]}
    until = {_series(sample): sample.value for sample in samples["ended_until"]}
    return sorted(samples["ended"], key=lambda sample: (_series(sample) in now, until.get(_series(sample), 0.0)))


def _series(sample: Sample) -> frozenset[tuple[str, str]]:
    return frozenset((name, value) for name, value in sample.labels.items() if name != "__name__")


def _names(samples: Mapping[str, Sequence[Sample]]) -> dict[Key, str]:
    seen = sorted(samples["seen"], key=lambda sample: sample.value)  # a node that was renamed: its last name
    return {_key(sample): sample.labels.get("node", "") for sample in (*seen, *samples["named"], *samples["nodes"])}


def _ended(
    key: Key,
    sample: Sample,
    names: Mapping[Key, str],
    ended_at: Mapping[Key, float],
    cause_at: Mapping[Key, float],
) -> NodeOfJob:
    cluster, instance = key
    ended = ended_at.get(key)
    text = sample.labels.get
    return NodeOfJob(
        node=names.get(key, instance),
        cluster=cluster,
        instance=instance,
        state="ended",
        at=cause_at.get(key, sample.at if ended is None else ended),
        ended=ended,
        cause=text("cause", ""),
        certainty=text("certainty", ""),
        code=text("code", ""),
        pci_bus_id=text("pci_bus_id", ""),
    )


def _key(sample: Sample) -> Key:
    return sample.labels.get("cluster", ""), sample.labels.get("instance", "")


def first_of(nodes: Sequence[NodeOfJob]) -> NodeOfJob | None:
    """Return the node where the end of the job began. As on one node, what is only possible counts last: on some node
    of many a disk was full for hours.

    A silent node is first only if it was lost before anything sure was seen elsewhere.
    """
    over = max((node.ended for node in nodes if node.ended is not None), default=math.inf)
    sure = next((node for node in nodes if node.is_sure(over)), None)
    return sure or next((node for node in nodes if node.begins), None)


def headline(name: str, nodes: Sequence[NodeOfJob]) -> str:
    """Return the first line: where the end of the job began."""
    first = first_of(nodes)
    if first is None:
        if all(node.state == "running" for node in nodes):
            return f"{name} is running on {_count(nodes)}"
        return f"{name}: none of its {_count(nodes)} saw a cause"
    return f"{name}: of {_count(nodes)} {clean(first.node)} was first: {_what(first)}"


def _count(nodes: Sequence[NodeOfJob]) -> str:
    return f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}"


def lines(name: str, nodes: Sequence[NodeOfJob]) -> Iterator[str]:
    yield headline(name, nodes)
    yield ""
    clusters = len({node.cluster for node in nodes}) > 1
    head = ("TIME", "AFTER", "NODE", *(("CLUSTER",) if clusters else ()), "CAUSE")
    began = (first_of(nodes) or nodes[0]).at
    yield from table(head, [_row(node, began, with_cluster=clusters) for node in nodes])
    if clusters:
        yield ""
        yield "several clusters have a job of this name: choose one with --cluster"


def _row(node: NodeOfJob, began: float, *, with_cluster: bool) -> tuple[str, ...]:
    cluster = (clean(node.cluster) or "-",) if with_cluster else ()
    timed = node.at > 0 and node.state in ("ended", "silent")
    after = f"{node.at - began:+.0f}s" if timed else "-"
    at = when(rfc3339(node.at)) if timed else "-"
    return at, after, clean(node.node), *cluster, _what(node)


def _what(node: NodeOfJob) -> str:
    if node.state in _STATES:
        return _STATES[node.state]
    details = [CAUSES.get(node.cause, clean(node.cause))]
    if node.cause not in (Cause.NONE, Cause.NOT_SEEN):
        details.append(clean(node.certainty))
    details += [clean(text) for text in (node.code, node.pci_bus_id) if text]
    return ", ".join(details)


def document(nodes: Sequence[NodeOfJob]) -> dict[str, Any]:
    first = first_of(nodes)
    return {"first": None if first is None else first.node, "nodes": [_node(node) for node in nodes]}


def _node(node: NodeOfJob) -> dict[str, Any]:
    times = {"at": rfc3339(node.at) if node.at else None, "ended": None if node.ended is None else rfc3339(node.ended)}
    return asdict(node) | times
