"""Converts results to rows. Series are joined on (cluster, job, instance); only `gpuwarden_node_info` has the name.

If a node has several series of a metric (Prometheus replicas, site labels), the worst value counts. Missing or odd data
never improves a status: a node that answers without health is unknown, one that does not answer is unreachable.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from gpuwarden.fleet import queries as q
from gpuwarden.fleet.alike import incomplete, labels_of
from gpuwarden.fleet.model import Finding, Key, Notice, Out, Row, key_of
from gpuwarden.fleet.status import RANK, Status
from gpuwarden.health.domain import domain_of_labels
from gpuwarden.prometheus.client import Sample
from gpuwarden_collectors.dataclass import dataclass

Samples = Mapping[str, list[Sample]]
T = TypeVar("T")

FRESH = 120.0
"""Seconds for which a heartbeat is current: eight scrapes of 15 s, as in the alert for silent nodes."""
_JOB = "gpuwarden"
"""The job name of the example scrape configurations: its targets count as nodes even if they never answered."""
_OUT = {0: Out.NOBODY, 1: Out.FAILURE, 2: Out.PLANNED}
_STATES = {status.value: status for status in (Status.HEALTHY, Status.WARNING, Status.FAILURE)}
_SEVERITIES = ("failure", "warning")


def rows(samples: Samples, termination_deadline: float) -> list[Row]:
    """Return the rows, worst status first, then nodes that still get work, then by name.

    `termination_deadline`: seconds without a heartbeat after which a machine is terminated.
    """
    facts = _Facts.of(samples)
    absent = (key for key in {*facts.heartbeats, *facts.seen, *facts.down} if key not in facts.names)
    all_rows = [_live(facts, key) for key in facts.names] + [
        _not_answering(facts, key) for key in absent if not facts.moved(key)
    ]
    all_rows = incomplete(all_rows, labels_of(samples["machines"]))
    domains = labels_of(samples["domains"], samples["machines"])
    all_rows = [replace(row, domain=domain_of_labels(domains.get(row.key, {}))) for row in all_rows]
    named = _with_shared_names([_unreachable(row, termination_deadline) for row in all_rows])
    return sorted(named, key=lambda row: (-RANK[row.status], row.out, row.cluster, row.domain, row.node, row.instance))


@dataclass(frozen=True, slots=True)
class _Facts:
    """The results of all queries, by node. Ages are in seconds."""

    names: dict[Key, str]
    health: dict[Key, Status]
    excluded: dict[Key, set[str]]
    notices: dict[Key, set[tuple[str, str]]]
    breaker: set[Key]
    simulated: set[Key]
    numbers: dict[str, dict[Key, float]]
    deadlines: dict[Key, float]
    findings: dict[Key, set[Finding]]
    heartbeats: dict[Key, float]
    seen: dict[Key, tuple[float, str]]
    node_state: dict[Key, float]
    down: set[Key]
    live_names: set[Key]
    last_ages: dict[Key, float]
    """By cluster, job and name: the seconds since a scrape of it last succeeded, at whatever address."""

    @classmethod
    def of(cls, samples: Samples) -> _Facts:
        names, heartbeats = _names(samples["nodes"]), _values(samples["heartbeats"], min, _age)
        with_cluster = _cluster_given((*names, *heartbeats))
        states, numbers = _by_name(samples["states"]), _by_name(samples["numbers"])
        recorded = _by_name(map(with_cluster, samples["recorded"]))
        worse: dict[str, Callable[[float, float], float]] = {q.EXPECTED: max, q.BUSY: max}
        seen = _seen(recorded[q.SEEN])
        jobs = {key[1] for key in (*names, *heartbeats, *seen)} | {_JOB}
        down = {key for sample in samples["down"] if (key := key_of(with_cluster(sample)))[1] in jobs}
        return cls(
            names=names,
            health=_health(states[q.HEALTH]),
            excluded=_sets(states[q.EXCLUDED], _owner),
            notices=_sets(states[q.NOTICE], lambda s: (s.labels.get("source", ""), s.labels.get("kind", ""))),
            breaker=set(map(key_of, states[q.BREAKER])),
            simulated=set(map(key_of, states[q.SIMULATED])),
            numbers={name: _values(of, worse.get(name, min)) for name, of in numbers.items()},
            deadlines=_values(numbers[q.DEADLINE], min, lambda s: s.value - s.at),
            findings=_sets(samples["findings"], _finding),
            heartbeats=heartbeats,
            seen=seen,
            node_state=_values(recorded[q.NODE_STATE], min),
            down=down,
            live_names={
                of for (cluster, job, _), name in names.items() for of in ((cluster, job, name), ("", job, name))
            },
            last_ages=_last_ages(seen),
        )

    def moved(self, key: Key) -> bool:
        """Return True if a silent node answers at another address in its cluster, in any if its cluster is unknown; or
        was seen later there, and this one is no target any more.
        """
        if key not in self.seen:
            return False
        age, name = self.seen[key]
        node = (key[0], key[1], name)
        return node in self.live_names or (name != "" and key not in self.down and self.last_ages[node] < age)

    def number(self, name: str, key: Key) -> float | None:
        return self.numbers.get(name, {}).get(key)

    def count(self, name: str, key: Key) -> int | None:
        value = self.number(name, key)
        return None if value is None else int(value)


def _age(sample: Sample) -> float:
    return max(0.0, sample.at - sample.value)


def _by_name(samples: Iterable[Sample]) -> dict[str, list[Sample]]:
    by_name: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_name[sample.labels.get("__name__", "")].append(sample)
    return by_name


def _names(samples: Iterable[Sample]) -> dict[Key, str]:
    names: dict[Key, str] = {}
    for sample in samples:
        key = key_of(sample)
        name = sample.labels.get("node") or key[2]
        names[key] = min(name, names.get(key, name))
    return names


def _values(
    samples: Iterable[Sample],
    choose: Callable[[float, float], float],
    value: Callable[[Sample], float] = lambda sample: sample.value,
) -> dict[Key, float]:
    by_node: dict[Key, float] = {}
    for sample in samples:
        key, number = key_of(sample), value(sample)
        by_node[key] = choose(number, by_node.get(key, number))
    return by_node


def _health(samples: Iterable[Sample]) -> dict[Key, Status]:
    by_node: dict[Key, Status] = {}
    for sample in samples:
        key = key_of(sample)
        status = _STATES.get(sample.labels.get("state", ""), Status.UNKNOWN)
        by_node[key] = max(status, by_node.get(key, status), key=RANK.__getitem__)
    return by_node


def _sets(samples: Iterable[Sample], value: Callable[[Sample], T]) -> dict[Key, set[T]]:
    by_node: dict[Key, set[T]] = defaultdict(set)
    for sample in samples:
        by_node[key_of(sample)].add(value(sample))
    return by_node


def _cluster_given(keys: Iterable[Key]) -> Callable[[Sample], Sample]:
    """Return a function that adds the cluster label, if it is unambiguous, to recorded samples, which lack it."""
    clusters: dict[tuple[str, str], set[str]] = defaultdict(set)
    for cluster, job, instance in keys:
        if cluster:
            clusters[job, instance].add(cluster)

    def given(sample: Sample) -> Sample:
        cluster, job, instance = key_of(sample)
        candidates = clusters.get((job, instance), ())
        if cluster or len(candidates) != 1:
            return sample
        return replace(sample, labels={**sample.labels, "cluster": next(iter(candidates))})

    return given


def _seen(samples: Iterable[Sample]) -> dict[Key, tuple[float, str]]:
    """Return, by node, the seconds since the last successful scrape, and the node's name then."""
    by_node: dict[Key, tuple[float, str]] = {}
    for sample in samples:
        key = key_of(sample)
        new = (_age(sample), sample.labels.get("node", ""))
        by_node[key] = min(new, by_node.get(key, new))
    return by_node


def _last_ages(seen: Mapping[Key, tuple[float, str]]) -> dict[Key, float]:
    ages: dict[Key, float] = {}
    for (cluster, job, _), (age, name) in seen.items():
        node = (cluster, job, name)
        ages[node] = min(age, ages.get(node, age))
    return ages


def _owner(sample: Sample) -> str:
    actuator, owner = sample.labels.get("actuator", ""), sample.labels.get("cause", "")
    return f"{actuator}:{owner}" if actuator else owner


def _finding(sample: Sample) -> Finding:
    get = sample.labels.get
    return Finding(
        check=get("check", ""),
        severity=get("severity", ""),
        gpu=get("gpu", ""),
        pci_bus_id=get("pci_bus_id", ""),
        detail=get("detail", ""),
        title=get("title", ""),
        advice=get("advice", ""),
    )


def _by_severity(finding: Finding) -> tuple[int, Finding]:
    ranked = finding.severity in _SEVERITIES
    return (_SEVERITIES.index(finding.severity) if ranked else len(_SEVERITIES), finding)


def _live(facts: _Facts, key: Key) -> Row:
    """Return the row of a node that answers: its daemon's verdict, or unreachable if its last GPU reading is old."""
    status, age = facts.health.get(key, Status.UNKNOWN), facts.heartbeats.get(key)
    reasons: list[str] = []
    expected = facts.count(q.EXPECTED, key)
    if status is Status.UNKNOWN and key not in facts.health:
        reasons.append("reports no health")
    if age is not None and age > FRESH and status is not Status.FAILURE:
        status = Status.UNREACHABLE
        reasons.append("answers, but its last GPU reading is old (or its clock is wrong)")
    elif age is None and expected != 0:
        status = status if status is Status.FAILURE else Status.UNKNOWN
        reasons.append("no GPU reading since its daemon started")
    if key in facts.breaker:
        reasons.append("the breaker keeps it in service")
    if key in facts.simulated:
        reasons.append("SIMULATED")
    enforcing, busy = facts.number(q.ENFORCING, key), facts.number(q.BUSY, key)
    return Row(
        cluster=key[0],
        job=key[1],
        instance=key[2],
        node=facts.names[key],
        status=status,
        reasons=tuple(reasons),
        busy=None if busy is None else bool(busy),
        present=facts.count(q.PRESENT, key),
        expected=expected,
        findings=tuple(sorted(facts.findings.get(key, ()), key=_by_severity)),
        excluded_by=tuple(sorted(facts.excluded.get(key, ()))),
        age_seconds=age,
        notice=_notice(facts, key),
        mode="" if enforcing is None else "enforce" if enforcing else "observe",
    )


def _notice(facts: _Facts, key: Key) -> Notice | None:
    announced, left = sorted(facts.notices.get(key, ())), facts.deadlines.get(key)
    if not announced and left is None:
        return None
    source, kind = announced[0] if announced else ("", "")
    return Notice(source, kind, left)


def _not_answering(facts: _Facts, key: Key) -> Row:
    """Return the row of a node that does not answer: its target is down, or gone from service discovery."""
    seen, name = facts.seen.get(key, (None, ""))
    age = facts.heartbeats.get(key, seen)
    never = " and has no recorded answer" if age is None else ""
    node_state = facts.node_state.get(key)
    return Row(
        cluster=key[0],
        job=key[1],
        instance=key[2],
        node=name or key[2],
        status=Status.UNREACHABLE,
        age_seconds=age,
        reasons=(f"does not answer{never}" if key in facts.down else "its target is gone from service discovery",),
        last_known_out=None if node_state is None else _OUT.get(int(node_state)),
    )


def _unreachable(row: Row, deadline: float) -> Row:
    if row.status is not Status.UNREACHABLE or row.age_seconds is None:
        return row
    return replace(row, seconds_left=deadline - row.age_seconds)


def _with_shared_names(all_rows: Iterable[Row]) -> Iterator[Row]:
    """Add a reason to rows that share a node name. Both are shown, since either may be the misconfigured one."""
    all_rows = list(all_rows)
    of_name: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in all_rows:
        of_name[row.cluster, row.node].append(row.instance)
    for row in all_rows:
        others = [instance for instance in of_name[row.cluster, row.node] if instance != row.instance]
        if others:
            shared = f"shares its name with {', '.join(others[:3])}"
            yield replace(row, reasons=(*row.reasons, shared))
        else:
            yield row
