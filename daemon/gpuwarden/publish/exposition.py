"""A snapshot becomes the bytes of `/metrics`, once; every scrape of it is served these bytes.

Two formats stand side by side: Prometheus text 0.0.4 and OpenMetrics 1.0, each plain and compressed. They differ in their
headers only, so the sample lines are rendered once. The cost is one formatted line for each series: label texts,
which rarely change, are kept between snapshots.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from gpuwarden.health.xid_catalogue import xid_row
from gpuwarden.publish.dcgm_names import (
    COUNTER,
    FIELDS,
    PREFIX,
    XID,
    Field,
    Telemetry,
    Traffic,
    nvlink_mb_per_second,
    nvlink_traffic,
)
from gpuwarden.publish.histogram import COUNT, SUM
from gpuwarden.publish.metrics import HISTOGRAM, METRICS, Metric, Number
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden_collectors.facts import GpuFacts, Stamp

LABEL_TEXTS = 4096
"""How many label texts are kept: 16 GPUs have about 1,000 series of ours, the rest is room for findings that come and go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """`/metrics` as of `made`, in every form in which it can be asked for."""

    made: Stamp
    series: int
    text: bytes
    text_gzip: bytes
    openmetrics: bytes
    openmetrics_gzip: bytes


@dataclass(frozen=True, slots=True)
class _Family:
    """The lines of one metric, under the headers of both formats."""

    text_head: str
    openmetrics_head: str
    lines: list[str]


def escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def label_text(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    """`gpu="0",uuid="GPU-…"`, without braces."""
    return ",".join(f'{name}="{escape(value)}"' for name, value in zip(names, values, strict=True))


def number(value: Number) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("+Inf" if value > 0 else "-Inf")
    return repr(value)


def _heads(name: str, kind: str, words: str) -> tuple[str, str]:
    """OpenMetrics names a counter without its `_total` and knows no counter without one: such a one is of unknown type."""
    family, open_kind = name, kind
    if kind == COUNTER:
        family = name.removesuffix("_total")
        open_kind = COUNTER if family != name else "unknown"
    return (
        f"# HELP {name} {words}\n# TYPE {name} {kind}\n",
        f"# HELP {family} {words}\n# TYPE {family} {open_kind}\n",
    )


_METRIC_HEADS = {metric.name: _heads(metric.name, metric.kind, metric.help) for metric in METRICS}
_FIELD_HEADS = {field.name: _heads(PREFIX + field.name, field.kind, field.help) for field in FIELDS}


def dcgm_bus_id(slot: str) -> str:
    """`0000:4e:00.0` as DCGM spells it: `00000000:4E:00.0`."""
    domain, colon, rest = slot.upper().partition(":")
    return f"{domain:0>8}:{rest}" if colon else slot


class Renderer:
    """Makes a page of each snapshot. `hostname_label`: dcgm-exporter up to 4.8.2 says `Hostname`, later ones `hostname`."""

    def __init__(self, *, hostname_label: str = "Hostname") -> None:
        self._label_text = lru_cache(LABEL_TEXTS)(label_text)
        self._dcgm_labels = (
            "gpu", "UUID", "pci_bus_id", "device", "modelName", hostname_label, "DCGM_FI_DRIVER_VERSION",
        )  # fmt: skip
        self._indices: dict[str, int] = {}
        self._traffic: dict[str, tuple[Traffic, int | None]] = {}

    def render(self, snapshot: Snapshot) -> Page:
        families = [*self._own(self._with_last_index(snapshot)), *self._telemetry(snapshot)]
        text: list[str] = []
        openmetrics: list[str] = []
        for family in families:
            lines = "".join(family.lines)
            text += (family.text_head, lines)
            openmetrics += (family.openmetrics_head, lines)
        openmetrics.append("# EOF\n")
        # a lone surrogate in a name from outside has no UTF-8
        plain = "".join(text).encode("utf-8", "replace")
        plain_openmetrics = "".join(openmetrics).encode("utf-8", "replace")
        return Page(
            made=snapshot.made,
            series=sum(len(family.lines) for family in families),
            text=plain,
            text_gzip=gzip.compress(plain, 1, mtime=0),
            openmetrics=plain_openmetrics,
            openmetrics_gzip=gzip.compress(plain_openmetrics, 1, mtime=0),
        )

    def _with_last_index(self, snapshot: Snapshot) -> Snapshot:
        """A GPU that NVML does not list keeps the index it had: its series must not change names when it is lost."""
        gpus = snapshot.verdict.gpus
        known = self._indices
        self._indices = {
            gpu.slot: index
            for gpu in gpus
            if (index := known.get(gpu.slot) if gpu.index is None else gpu.index) is not None
        }
        if all(gpu.index is not None for gpu in gpus):
            return snapshot
        indexed = tuple(replace(gpu, index=self._indices.get(gpu.slot)) for gpu in gpus)
        return replace(snapshot, verdict=replace(snapshot.verdict, gpus=indexed))

    def _own(self, snapshot: Snapshot) -> Iterator[_Family]:
        for metric in METRICS:
            samples = dict(metric.samples(snapshot))
            if not samples:
                continue
            if metric.kind == HISTOGRAM:
                lines = list(_histogram_lines(metric, samples))
            elif metric.labels:
                lines = [
                    f"{metric.name}{{{self._label_text(metric.labels, values)}}} {number(value)}\n"
                    for values, value in samples.items()
                ]
            else:
                lines = [f"{metric.name} {number(value)}\n" for value in samples.values()]
            yield _Family(*_METRIC_HEADS[metric.name], lines)

    def _telemetry(self, snapshot: Snapshot) -> Iterator[_Family]:
        gpus = self._gpus(snapshot)
        for field in FIELDS:
            lines = list(_xid_lines(gpus) if field is XID else _lines(field, gpus))
            if lines:
                yield _Family(*_FIELD_HEADS[field.name], lines)

    def _gpus(self, snapshot: Snapshot) -> Mapping[str, Telemetry]:
        """What is told of each GPU, by its label text; of GPUs that cannot be told apart only the last."""
        facts = () if snapshot.nvml is None else snapshot.nvml.gpus
        last_xids = _last_xids(snapshot)
        traffic = {gpu.slot: self._nvlink(gpu, snapshot.observed) for gpu in facts}
        self._traffic = {slot: pair for slot, pair in traffic.items() if pair is not None}
        driver = "" if snapshot.nvml is None else snapshot.nvml.driver_version
        gpus = {}
        for gpu in facts:
            index = str(gpu.index)
            identity = (
                index,
                gpu.uuid,
                dcgm_bus_id(gpu.slot),
                f"nvidia{index}",
                gpu.name,
                snapshot.service.node,
                driver,
            )
            _, rate = traffic[gpu.slot] or (None, None)
            gpus[self._label_text(self._dcgm_labels, identity)] = Telemetry(gpu.readings, last_xids.get(gpu.slot), rate)
        return gpus

    def _nvlink(self, gpu: GpuFacts, observed: Stamp | None) -> tuple[Traffic, int | None] | None:
        """The counter and the rate since the pass before; a snapshot of the same pass keeps its rate."""
        now = None if observed is None else nvlink_traffic(gpu.readings, observed.boottime)
        if now is None:
            return None
        before, rate = self._traffic.get(gpu.slot, (None, None))
        return now, rate if before == now else nvlink_mb_per_second(before, now)


def _histogram_lines(metric: Metric, samples: Mapping[tuple[str, ...], Number]) -> Iterator[str]:
    for (le,), value in samples.items():
        if le in (SUM, COUNT):
            yield f"{metric.name}_{le} {number(value)}\n"
        else:
            yield f'{metric.name}_bucket{{le="{le}"}} {number(value)}\n'


def _last_xids(snapshot: Snapshot) -> dict[str, int]:
    """By slot. DCGM forgets with the driver, and so with the boot; the ledger does not."""
    booted = snapshot.made.wall - snapshot.made.boottime
    recent = sorted(
        (xid.last, xid.slot, xid.xid) for xid in snapshot.xids if xid.last is not None and xid.last >= booted
    )
    return {slot: xid for _, slot, xid in recent}


def _lines(field: Field, gpus: Mapping[str, Telemetry]) -> Iterable[str]:
    name, form, read = PREFIX + field.name, field.form, field.read
    for labels, gpu in gpus.items():
        value = read(gpu)
        if value is not None:
            yield f"{name}{{{labels}}} {form % value}\n"


def _xid_lines(gpus: Mapping[str, Telemetry]) -> Iterable[str]:
    for labels, gpu in gpus.items():
        if gpu.last_xid is not None:
            error = label_text(("err_code", "err_msg"), (str(gpu.last_xid), xid_row(gpu.last_xid).meaning))
            yield f"{PREFIX}{XID.name}{{{labels},{error}}} {gpu.last_xid}\n"


class Holder:
    """What readers are served. It is replaced as a whole, so that no reader sees half of a snapshot."""

    def __init__(self, renderer: Renderer, snapshot: Snapshot) -> None:
        self._renderer = renderer
        self.show(snapshot)

    def show(self, snapshot: Snapshot) -> None:
        self.page, self.snapshot = self._renderer.render(snapshot), snapshot
