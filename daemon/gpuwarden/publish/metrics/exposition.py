"""Renders a snapshot as the bytes of `/metrics` at its first scrape. Later scrapes of the snapshot get the same bytes.

There are two formats, Prometheus text 0.0.4 and OpenMetrics 1.0, each plain and compressed. They differ only in their
headers, so the sample lines are rendered once. The cost is one formatted line per series; label texts, which rarely
change, are cached between snapshots. Each form is created only on request.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache

from gpuwarden.base.log import get_logger
from gpuwarden.health.model import GpuVerdict
from gpuwarden.health.xid.catalogue import xid_row
from gpuwarden.publish.metrics.chosen import FULL, Chosen
from gpuwarden.publish.metrics.dcgm_names import FIELDS, OF_EXPORTER, OF_INSTANCES, PREFIX, XID, Field
from gpuwarden.publish.metrics.histogram import COUNT, SUM
from gpuwarden.publish.metrics.lines import HISTOGRAM, Number, heads, label_text, number
from gpuwarden.publish.metrics.row import Labels, Metric
from gpuwarden.publish.metrics.table import METRICS
from gpuwarden.publish.metrics.telemetry import MigSeries, Series, Sources
from gpuwarden.publish.snapshot import Clients, JobLabels, Snapshot
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

log = get_logger()

LABEL_TEXTS = 4096
"""Maximum number of cached label texts: 16 GPUs have about 1,000 gpuwarden series; the rest is for findings."""


@dataclass(frozen=True, slots=True)
class _Family:
    """The lines of one metric, under the headers of both formats."""

    text_head: bytes
    openmetrics_head: bytes
    lines: bytes
    series: int


@dataclass(frozen=True)
class Page:
    """`/metrics` at the time `made`, in every form that can be requested."""

    made: Stamp
    families: Sequence[_Family]

    @property
    def series(self) -> int:
        return sum(family.series for family in self.families)

    @cached_property
    def text(self) -> bytes:
        return self._plain_text()

    @cached_property
    def text_gzip(self) -> bytes:
        return gzip.compress(self._plain_text(), 1, mtime=0)

    @cached_property
    def openmetrics(self) -> bytes:
        return self._plain_openmetrics()

    @cached_property
    def openmetrics_gzip(self) -> bytes:
        return gzip.compress(self._plain_openmetrics(), 1, mtime=0)

    def _plain_text(self) -> bytes:
        return b"".join(part for family in self.families for part in (family.text_head, family.lines))

    def _plain_openmetrics(self) -> bytes:
        parts = [part for family in self.families for part in (family.openmetrics_head, family.lines)]
        return b"".join((*parts, b"# EOF\n"))


def _family(head: tuple[bytes, bytes], lines: Sequence[str]) -> _Family:
    """Return the encoded family. Unpaired surrogates in external names are replaced, since they have no UTF-8."""
    return _Family(*head, "".join(lines).encode("utf-8", "replace"), len(lines))


_METRIC_HEADS = {metric.name: heads(metric.name, metric.kind, metric.help) for metric in METRICS}
_FIELD_HEADS = {field.name: heads(PREFIX + field.name, field.kind, field.help) for field in FIELDS}


class Renderer:
    """Renders snapshots as pages. `hostname_label`: dcgm-exporter up to 4.8.2 has `Hostname`, later ones `hostname`.
    `series`: the series on the page. Call `follow` with every snapshot, in order, and `render` for those whose page is
    requested.
    """

    def __init__(
        self, *, hostname_label: str = "Hostname", mig: MigSeries = "instances", series: Chosen = FULL
    ) -> None:
        self._chosen = series
        self._metrics = [metric for metric in METRICS if metric.name in series]
        self._fields = [field for field in FIELDS if PREFIX + field.name in series]
        self._label_text = lru_cache(LABEL_TEXTS)(label_text)
        self._sources = Sources(hostname_label, mig)
        self._indices: dict[str, int] = {}
        self._broken: set[str] = set()

    def follow(self, snapshot: Snapshot) -> None:
        """Keep data for later pages: counters for rates, and the index of a lost GPU. A second call does nothing."""
        before = self._indices
        self._indices = {
            gpu.slot: index
            for gpu in snapshot.verdict.gpus
            if (index := before.get(gpu.slot) if gpu.index is None else gpu.index) is not None
        }
        self._sources.follow(snapshot)

    def render(self, snapshot: Snapshot) -> Page:
        self.follow(snapshot)
        return Page(snapshot.made, [*self._own(self._with_last_index(snapshot)), *self._telemetry(snapshot)])

    def _with_last_index(self, snapshot: Snapshot) -> Snapshot:
        """Give GPUs that NVML does not list their last index, so that the labels of their series do not change, also not
        after a restart of the daemon.
        """
        gpus = snapshot.verdict.gpus
        if all(gpu.index is not None for gpu in gpus):
            return snapshot
        indices = _by_order(gpus) | self._indices
        indexed = tuple(replace(gpu, index=indices.get(gpu.slot)) for gpu in gpus)
        return replace(snapshot, verdict=replace(snapshot.verdict, gpus=indexed))

    def _own(self, snapshot: Snapshot) -> Iterator[_Family]:
        for metric in self._metrics:
            samples = self._chosen.samples(metric, self._samples(metric, snapshot))
            if not samples:
                continue
            if metric.kind == HISTOGRAM:
                lines = list(_histogram_lines(metric, samples))
            elif metric.labels:
                lines = [
                    f"{metric.name}{{{self._label_text(*_given(metric, values))}}} {number(value)}\n"
                    for values, value in samples.items()
                ]
            else:
                lines = [f"{metric.name} {number(value)}\n" for value in samples.values()]
            yield _family(_METRIC_HEADS[metric.name], lines)

    def _samples(self, metric: Metric, snapshot: Snapshot) -> dict[Labels, Number]:
        """Return the samples of a row. A row that raises is omitted and logged once; the other rows remain."""
        try:
            return dict(metric.samples(snapshot))
        except Exception:
            if metric.name not in self._broken:
                self._broken.add(metric.name)
                log.exception("metric not rendered: the others are rendered", metric=metric.name)
            return {}

    def _telemetry(self, snapshot: Snapshot) -> Iterator[_Family]:
        series = self._sources.of(snapshot)
        whole = [gpu for gpu in series if gpu.whole]
        repeated = [gpu for gpu in series if gpu.repeated]
        for field in self._fields:
            chosen = repeated if field.name in OF_INSTANCES else whole
            lines = list(_xid_lines(chosen) if field is XID else _lines(field, chosen))
            if lines:
                yield _family(_FIELD_HEADS[field.name], lines)


def _by_order(gpus: Sequence[GpuVerdict]) -> dict[str, int]:
    """Return the index of each GPU while none is missing, if NVML numbers them in the order of their slots; else nothing.

    A daemon that has just started knows no index of a GPU that is missing, and none while the driver hangs. The label is
    part of an alert's identity: without it a restart would end the alert and raise another.
    """
    listed = sorted((gpu.slot, gpu.index) for gpu in gpus if gpu.index is not None)
    indices = [index for _, index in listed]
    if indices != sorted(indices):
        return {}
    return {slot: index for index, slot in enumerate(sorted(gpu.slot for gpu in gpus))}


def _given(metric: Metric, values: Labels) -> tuple[Labels, Labels]:
    """Return names and values of the sample's labels, without omitted ones."""
    if not metric.omitted:
        return metric.labels, values
    pairs = zip(metric.labels, values, strict=True)
    present = [(name, value) for name, value in pairs if value or name not in metric.omitted]
    return tuple(name for name, _ in present), tuple(value for _, value in present)


def _histogram_lines(metric: Metric, samples: Mapping[tuple[str, ...], Number]) -> Iterator[str]:
    for (le,), value in samples.items():
        if le in (SUM, COUNT):
            yield f"{metric.name}_{le} {number(value)}\n"
        else:
            yield f'{metric.name}_bucket{{le="{le}"}} {number(value)}\n'


def _lines(field: Field, series: Sequence[Series]) -> Iterable[str]:
    name, form, read, labelled = PREFIX + field.name, field.form, field.read, field.name in OF_EXPORTER
    for gpu in series:
        value = read(gpu.telemetry)
        if value is not None:
            text = form % value
            for copy in gpu.copies if labelled else (gpu.alone,):
                yield f"{name}{{{gpu.labels}{copy}}} {text}\n"


def _xid_lines(series: Sequence[Series]) -> Iterable[str]:
    for gpu in series:
        xid = gpu.telemetry.last_xid
        if xid is not None:
            error = label_text(("err_code", "err_msg"), (str(xid), xid_row(xid).meaning))
            for copy in gpu.copies:
                yield f"{PREFIX}{XID.name}{{{gpu.labels},{error}{copy}}} {xid}\n"


class Holder:
    """The snapshot for readers. It is replaced as a whole, so that no reader sees a partial one.

    The web server sets `clients` and `scraped`: time and client of the last request of `/metrics`. `hpc_jobs`: if the
    label is configured, returns the jobs last read for it, and never waits.
    """

    def __init__(self, renderer: Renderer, snapshot: Snapshot, hpc_jobs: Callable[[], JobLabels] | None = None) -> None:
        self.clients: Callable[[], Clients] = Clients
        self.scraped: tuple[Stamp, str] | None = None
        self._renderer = renderer
        self._hpc_jobs = hpc_jobs
        self._page: Page | None = None
        self.show(snapshot)

    def show(self, snapshot: Snapshot) -> None:
        jobs = None if self._hpc_jobs is None else self._hpc_jobs()
        self.snapshot = replace(snapshot, clients=self.clients(), hpc_jobs=jobs)
        self._renderer.follow(self.snapshot)
        self._page = None

    @property
    def page(self) -> Page:
        """The page of the current snapshot, rendered at the first request and then cached."""
        if self._page is None:
            self._page = self._renderer.render(self.snapshot)
        return self._page

    def job_labels_error(self) -> str:
        """Return why the job files of the label `hpc_job` cannot be read; "" if they can, or without that label."""
        return "" if self.snapshot.hpc_jobs is None else self.snapshot.hpc_jobs.error
