"""The GPUs and MIG instances that have telemetry series, with the labels and the readings of each.

GPUs with MIG are exposed as by dcgm-exporter's default (`-d f`): a GPU with instances has its default counters once per
instance, with the instance's values if they exist, otherwise the GPU's. A sum over all series therefore counts the
power of such a GPU several times. All other counters, and the last Xid, are exposed once for the GPU, without labels of
an instance. `MigSeries` changes that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any, Literal

from gpuwarden.health.dcgm.profiling import profiled
from gpuwarden.health.gpu.pods import Device
from gpuwarden.publish.metrics.dcgm_names import Telemetry, Traffic, nvlink_mb_per_second, nvlink_traffic
from gpuwarden.publish.metrics.lines import label_text
from gpuwarden.publish.metrics.pods import POD, asked, pod_labels
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.dcgm.facts import DcgmReadings
from gpuwarden_collectors.facts import GpuAnswer, GpuFacts, MigInstance, Stamp
from gpuwarden_collectors.gpu_readings import GpuReadings
from gpuwarden_collectors.kubelet.facts import PodContainer

MigSeries = Literal["instances", "gpus", "both"]
"""Series for instances: `instances`: instead of their GPU (dcgm-exporter's `-d f`); `gpus`: none (`-d g`); `both`: in
addition to their GPU (`-d g,i`)."""

COPIES_MOST = 8
"""Most copies of one series: a GPU may have several jobs and several pods."""
LABEL_TEXTS = 1024
"""Maximum number of cached entries: 16 GPUs with 7 instances each have 128."""

_OF_INSTANCE = tuple({f.name for f in fields(MigInstance)} & {f.name for f in fields(GpuReadings)})


@dataclass(frozen=True, slots=True)
class Series:
    """The series of one GPU or instance.

    `labels` have no braces. Each of `copies`, one per job and pod (an empty one if there is none), is appended to them.
    `alone` is appended for series without labels of jobs and pods. `whole`: has the series that only a GPU has.
    `repeated`: has the series that are repeated for each instance.
    """

    labels: str
    copies: tuple[str, ...]
    alone: str
    telemetry: Telemetry
    whole: bool = True
    repeated: bool = True


class InstanceReadings:
    """Readings of an instance: those in `_OF_INSTANCE` are the instance's, all others the GPU's."""

    def __init__(self, gpu: GpuReadings, instance: MigInstance) -> None:
        self._gpu = gpu
        self.__dict__.update((name, getattr(instance, name)) for name in _OF_INSTANCE)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gpu, name)


def dcgm_bus_id(slot: str) -> str:
    """Return the slot `0000:4e:00.0` in DCGM's form: `00000000:4E:00.0`."""
    domain, colon, rest = slot.upper().partition(":")
    return f"{domain:0>8}:{rest}" if colon else slot


class Sources:
    """Source of the series, with the state for rates. `hostname_label`: dcgm-exporter up to 4.8.2 has `Hostname`."""

    def __init__(self, hostname_label: str, mig: MigSeries) -> None:
        self._mig = mig
        self._label_text = lru_cache(LABEL_TEXTS)(label_text)
        self._before = ("gpu", "UUID", "pci_bus_id", "device", "modelName")
        self._after = (hostname_label, "DCGM_FI_DRIVER_VERSION")
        self._traffic: dict[str, tuple[Traffic, int | None]] = {}

    def follow(self, snapshot: Snapshot) -> None:
        """Keep the NVLink counters for the next rate.

        Must be called with each snapshot, before `of` with the same one; a second call does nothing.
        """
        gpus = () if snapshot.nvml is None else snapshot.nvml.gpus
        traffic = {gpu.slot: self._nvlink(gpu, snapshot.observed) for gpu in gpus}
        self._traffic = {slot: pair for slot, pair in traffic.items() if pair is not None}

    def of(self, snapshot: Snapshot) -> tuple[Series, ...]:
        """Return the series in the order of the GPUs; of several with the same labels only the last."""
        if snapshot.nvml is None:
            return ()
        gpus = snapshot.nvml.gpus
        last_xids, of_dcgm = _last_xids(snapshot), _readings_of_dcgm(snapshot)
        copies = _Copies(snapshot)
        driver = snapshot.nvml.driver_version
        by_labels: dict[str, Series] = {}
        for gpu in gpus:
            _, rate = self._traffic.get(gpu.slot, (None, None))
            readings = of_dcgm.get(gpu.slot) if gpu.answer is GpuAnswer.OK else None  # DCGM notices a lost GPU later
            dcgm = readings or DcgmReadings()
            telemetry = Telemetry(profiled(gpu.readings, dcgm), last_xids.get(gpu.slot), rate, dcgm.memory_unrepairable)
            by_labels |= {
                series.labels: series for series in self._series(gpu, telemetry, snapshot.service.node, driver, copies)
            }
        return tuple(by_labels.values())

    def _series(self, gpu: GpuFacts, telemetry: Telemetry, node: str, driver: str, copies: _Copies) -> Iterator[Series]:
        index = str(gpu.index)
        before = (index, gpu.uuid, dcgm_bus_id(gpu.slot), f"nvidia{index}", gpu.name)
        instances = {} if self._mig == "gpus" else _instances(gpu)
        labels = self._label_text((*self._before, *self._after), (*before, node, driver))
        yield Series(
            labels, copies.of(gpu, None), copies.free, telemetry, repeated=not instances or self._mig == "both"
        )
        for instance in instances.values():
            number = str(instance.gpu_instance)
            labels = self._label_text(
                (*self._before, "GPU_I_PROFILE", "GPU_I_ID", *self._after),
                (*before, _profile(instance), number, node, driver),
            )
            own = replace(telemetry, readings=InstanceReadings(telemetry.readings, instance))
            yield Series(labels, copies.of(gpu, instance.gpu_instance), copies.free, own, whole=False)

    def _nvlink(self, gpu: GpuFacts, observed: Stamp | None) -> tuple[Traffic, int | None] | None:
        """Return the counter and the rate since the previous pass. Snapshots of the same pass have the same rate."""
        now = None if observed is None else nvlink_traffic(gpu.readings, observed.boottime)
        if now is None:
            return None
        before, rate = self._traffic.get(gpu.slot, (None, None))
        return now, rate if before == now else nvlink_mb_per_second(before, now)


def _instances(gpu: GpuFacts) -> dict[int, MigInstance]:
    """Return the GPU instances by id, as seen by their first compute instance (as in DCGM), without unused ones."""
    instances: dict[int, MigInstance] = {}
    for mig in gpu.mig:
        instances.setdefault(mig.gpu_instance, mig)
    return instances


def _profile(instance: MigInstance) -> str:
    """Return the profile of the GPU instance: `3g.40gb` also for its compute instance `1c.3g.40gb`."""
    part, dot, rest = instance.profile.partition(".")
    return rest if dot and part.endswith("c") else instance.profile


@lru_cache(LABEL_TEXTS)
def _suffix(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    return f",{label_text(names, values)}"


class _Copies:
    """The job and pod labels of GPUs and instances. With several jobs or pods the series are copied, at most
    `COPIES_MOST` times. A GPU without a pod has empty pod labels, because otherwise Prometheus with honor_labels would
    set those of gpuwarden's own pod.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._jobs: Mapping[str, Sequence[str]] = {} if snapshot.hpc_jobs is None else snapshot.hpc_jobs.jobs
        self._pods: Mapping[Device, Sequence[PodContainer]] = {} if snapshot.pods is None else snapshot.pods.containers
        self.free = "" if asked(snapshot) is None else _suffix(POD, ("", "", ""))

    def of(self, gpu: GpuFacts, instance: int | None) -> tuple[str, ...]:
        name = str(gpu.index) if instance is None else f"{gpu.index}.{instance}"
        pods = self._pods.get((gpu.slot, instance), ())
        of_pods = [_suffix(POD, pod_labels(pod)) for pod in pods] or [self.free]
        of_jobs = [_suffix(("hpc_job",), (job,)) for job in self._jobs.get(name, ())] or [""]
        return tuple(pod + job for pod in of_pods for job in of_jobs)[:COPIES_MOST]


def _readings_of_dcgm(snapshot: Snapshot) -> dict[str, DcgmReadings]:
    return {} if snapshot.dcgm is None else {gpu.slot: gpu.readings for gpu in snapshot.dcgm.gpus if gpu.slot}


def _last_xids(snapshot: Snapshot) -> dict[str, int]:
    """Return the last Xid of this boot by slot. DCGM loses Xids at a driver unload; the ledger spans boots."""
    booted = snapshot.made.wall - snapshot.made.boottime
    recent = sorted(
        (xid.last, xid.slot, xid.xid) for xid in snapshot.xids if xid.last is not None and xid.last >= booted
    )
    return {slot: xid for _, slot, xid in recent}
