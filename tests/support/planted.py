"""A Prometheus that promtool filled: nodes of which it is known to the second when they failed, were excluded, or were not scraped."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support.prometheus import Server, prometheus, promtool

INTERVAL = 30
"""Seconds between two scrapes."""
BLOCK = 7200
"""Seconds of a block of Prometheus. promtool parses its whole input for each block of it."""
EXPECTED = "gpuwarden_gpus_expected"
RARE = (EXPECTED, "gpuwarden_gpu_health", "gpuwarden_machine_info")
RARELY = 20
"""What does not change is read over hours: every twentieth sample is enough."""
Hours = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedNode:
    """A target and what it answered. All times are hours since the start. `silent`: not scraped."""

    instance: str
    node: str
    seen: tuple[float, float]
    silent: Hours = ()
    failed: Hours = ()
    excluded: Mapping[str, Hours] = field(default_factory=dict)
    unschedulable: Hours = ()
    findings: Sequence[tuple[tuple[float, float], Mapping[str, str]]] = ()
    gpus: int = 8
    boards: Sequence[str] = ()
    machine: Mapping[str, str] = field(default_factory=dict)
    target: Mapping[str, str] = field(default_factory=dict)
    job: str = "gpuwarden"

    def series(self) -> Iterator[tuple[str, Mapping[str, str], Hours, Hours | None]]:
        """Yield name, labels, when there are samples, and when they are 1 and not 0. None: always 1."""
        out = [span for spans in self.excluded.values() for span in spans]
        down = [*self.failed, *out, *self.unschedulable]
        yield "gpuwarden_node_info", {"node": self.node, "boot_id": "b"}, [self.seen], None
        yield "gpuwarden_node_health", {"state": "failure"}, [self.seen], self.failed
        yield "gpuwarden_schedulable", {}, [self.seen], _but(self.seen, down)
        for cause in ("failure", "operator", "foreign", "termination"):
            labels = {"actuator": "slurm", "owner": "gpuwarden", "cause": cause}
            yield "gpuwarden_excluded", labels, [self.seen], self.excluded.get(cause, ())
        for span, of in self.findings:
            yield "gpuwarden_finding_info", {"severity": "failure", **of}, [span], None
        for uuid in self.boards:
            yield "gpuwarden_gpu_health", {"uuid": uuid, "state": "healthy"}, [self.seen], None
        yield "gpuwarden_machine_info", self.machine, [self.seen], None
        yield EXPECTED, {}, [self.seen], None


def _but(whole: tuple[float, float], removed: Hours) -> Hours:
    """Return the hours of `whole` that are in none of `removed`, whatever they overlap."""
    spans, at = [], whole[0]
    for start, end in sorted(removed):
        spans.append((at, start))
        at = max(at, end)
    return [span for span in (*spans, (at, whole[1])) if span[0] < span[1]]


def _within(hours: float, spans: Hours) -> bool:
    return any(start <= hours < end for start, end in spans)


def samples(node: PlantedNode, start: float, offset: float) -> Iterator[tuple[float, str]]:
    """Yield times and lines of OpenMetrics. `offset`: seconds of the node's scrapes within the interval."""
    base = dict(node.target, job=node.job, instance=node.instance)
    moments = [start + offset + INTERVAL * n for n in range(int(node.seen[1] * 3600 / INTERVAL))]
    scraped = [(at, hours) for at in moments if not _within(hours := (at - start) / 3600, node.silent)]
    for name, more, there, ones in node.series():
        text = ",".join(f'{key}="{value}"' for key, value in {**base, **more}.items())
        for at, hours in scraped[:: RARELY if name in RARE else 1]:
            if _within(hours, there):
                value = node.gpus if name == EXPECTED else int(ones is None or _within(hours, ones))
                yield at, f"{name}{{{text}}} {value} {at:.3f}\n"


@contextmanager
def planted(folder: Path, start: float, nodes: Sequence[PlantedNode]) -> Iterator[Server]:
    """Run a Prometheus that has had these nodes since `start`."""
    blocks: dict[int, list[str]] = defaultdict(list)
    for place, node in enumerate(nodes):
        for at, line in samples(node, start, 1.0 + 2.7 * (place % 10)):
            blocks[int(at // BLOCK)].append(line)
    for text in blocks.values():
        (folder / "planted.txt").write_text("".join((*text, "# EOF\n")))
        done = promtool("tsdb", "create-blocks-from", "openmetrics", folder / "planted.txt", folder / "data")
        assert done.returncode == 0, done.stderr
    with prometheus_of(folder / "data", folder) as server:
        yield server


@contextmanager
def prometheus_of(data: Path, folder: Path, *words: str) -> Iterator[Server]:
    """Run a Prometheus on a copy of what is stored there, with more options."""
    shutil.copytree(data, folder / "tsdb")
    (folder / "prometheus.yml").write_text("global: {scrape_interval: 1h}\n")
    with prometheus(folder / "prometheus.yml", folder, *words) as server:
        yield server
