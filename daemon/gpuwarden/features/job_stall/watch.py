"""A job under observation: its current minute, its newest busy minutes, and since when it has fallen.

A pass shows it *fallen* if all its GPUs are busy while power and activity are a small share of its own past, *not
fallen* if any of that does not hold, or neither if a reading is missing, which is no sign of a stall.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import NamedTuple

from gpuwarden.features.job_stall.activity import BUSY, SLOW_CLOCK, GpuWork, JobHere, PortTraffic, busy, means, sent
from gpuwarden.features.job_stall.past import LEARNED_AFTER, MINUTES_KEPT, NOTHING_KNOWN, JobPast, Means
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

MINUTE = 60.0
ACTIVITY_SHARE = 0.1
"""Share of its own past at which activity has fallen: 0.324 and 0.241 of the time became almost nothing (story D01)."""
POWER_SHARE, POWER_SHARE_BY_TRAFFIC = 0.5, 1 / 3
"""Shares of its own past at or below which power has fallen: 500 to 690 W became 100 (NVIDIA/NeMo#9291). The lower one
applies if only traffic over NVLink or RDMA confirms it, since a server's traffic falls with its load, as its power
does: 250 W of 700 is healthy."""
ACTIVITY_LEAST, TRAFFIC_LEAST = 2.0, 10.0
"""Per cent, and MiB/s, that the past must have for a loss of it to count."""
PAUSE_LEAST = 60.0
"""Least seconds of a fall from which a job recovered to be stored."""


class Minute(NamedTuple):
    """Sums over the passes of one minute, since it began."""

    began: float
    passes: int = 0
    utilization: tuple[int, ...] = ()
    """By GPU."""
    sums: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    """Number of passes that gave each value."""
    spoilt: bool = False
    """A GPU had no process of the job, or a low clock, or the job had fallen."""

    def add(self, gpus: tuple[GpuWork, ...], values: Means, *, spoilt: bool) -> Minute:
        sums, counts = self.sums or (0.0,) * len(values), self.counts or (0,) * len(values)
        before = self.utilization or (0,) * len(gpus)
        return Minute(
            self.began,
            self.passes + 1,
            utilization=tuple(old + gpu.utilization for old, gpu in zip(before, gpus, strict=True)),
            sums=tuple(old + (value or 0.0) for old, value in zip(sums, values, strict=True)),
            counts=tuple(old + (value is not None) for old, value in zip(counts, values, strict=True)),
            spoilt=self.spoilt or spoilt,
        )

    def means(self) -> Means | None:
        """Return the means of the minute; None unless every GPU was busy on average, and for this job in each pass."""
        if not self.passes or self.spoilt or min(self.utilization) < BUSY * self.passes:
            return None
        pairs = zip(self.sums, self.counts, strict=True)
        return Means(*(total / count if 2 * count >= self.passes else None for total, count in pairs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """One job under observation. Not kept over a restart of the daemon, which begins a new one but keeps the past."""

    here: JobHere
    """Where the job is, as of the newest pass."""
    at: float
    """Time of the newest pass, seconds of CLOCK_BOOTTIME."""
    gpus: tuple[GpuWork, ...] = ()
    """Work by the newest pass to which all GPUs answered."""
    values: Means = NOTHING_KNOWN
    """Means of that work."""
    sent_bytes: int | None = None
    """Bytes sent over NVLink as of the newest pass."""
    ports: PortTraffic | None = None
    """By the newest pass; only if the job has the whole node."""
    minute: Minute
    minutes: tuple[Means, ...] = ()
    """The newest complete busy minutes."""
    unlearned: int = 0
    """Number of these since the past was last compared with them."""
    fallen: bool | None = False
    """By the newest pass; None: not known."""
    fell: Stamp | None = None
    """The first pass that showed it fallen."""
    fallen_at: float = 0.0
    """The newest pass that showed it fallen."""
    spun: Stamp | None = None
    """The first pass in a row that showed it fallen, with every GPU of the node, all of which only wait."""
    spun_at: float = 0.0
    """The newest pass in that row."""
    pause: float = 0.0
    """Seconds of the longest fall from which it recovered."""
    cpu: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    """By process, when its CPU time was read as the job fell, and that time, seconds."""

    @property
    def slots(self) -> str:
        return " ".join(self.here.pids)

    @property
    def fallen_for(self) -> float:
        """Return the seconds from the first to the newest pass that showed the job fallen."""
        return 0.0 if self.fell is None else self.fallen_at - self.fell.boottime

    @property
    def spun_for(self) -> float:
        """Return the seconds from the first to the newest pass in a row in which the job's GPUs only waited."""
        return 0.0 if self.spun is None else self.spun_at - self.spun.boottime


def begun(here: JobHere, now: Stamp) -> Watch:
    return Watch(here=here, at=now.boottime, minute=Minute(now.boottime))


def unread(watch: Watch, here: JobHere, now: Stamp, patience: float) -> Watch:
    """Return the watch after a pass in which some GPU of the job did not answer. `patience` as in `after`."""
    spun = watch.spun if now.boottime - watch.spun_at <= patience else None
    watch = replace(watch, here=here, at=now.boottime, sent_bytes=None, fallen=None, spun=spun)
    return watch if now.boottime - watch.fallen_at <= patience else replace(watch, fell=None)


def after(
    watch: Watch,
    here: JobHere,
    gpus: tuple[GpuWork, ...],
    now: Stamp,
    *,
    ports: PortTraffic | None,
    past: JobPast | None,
    patience: float,
) -> Watch:
    """Return the watch after one more pass.

    `ports`: their traffic, if it is this job's. `patience`: seconds without a pass that shows the job fallen, after
    which a fall begins anew.
    """
    at, total = now.boottime, sent(gpus)
    values = means(gpus, _rate(watch, total, at, len(gpus)), ports)
    at_work = busy(here, gpus)
    fallen = is_fallen(past, gpus, values) if at_work and past is not None else False
    silent = max(values.rdma_mib or 0.0, values.nvlink_mib or 0.0) < TRAFFIC_LEAST
    spins = fallen is True and here.whole_node and silent and _only_spin(gpus)
    watch = _folded(_spun(watch, now, patience) if spins else replace(watch, spun=None), at)
    spoilt = not all(here.pids.values()) or any(gpu.slow for gpu in gpus)
    watch = replace(
        watch,
        here=here,
        at=at,
        gpus=gpus,
        values=values,
        sent_bytes=total,
        ports=ports,
        fallen=fallen,
        minute=watch.minute.add(gpus, values, spoilt=spoilt or fallen is True),
    )
    if fallen:
        goes_on = watch.fell is not None and at - watch.fallen_at <= patience
        return replace(watch, fallen_at=at) if goes_on else replace(watch, fell=now, fallen_at=at, cpu=here.cpu_times)
    if fallen is False and watch.fell is not None:
        came_back = at_work and watch.fallen_for >= PAUSE_LEAST  # a job that just stopped has not
        return replace(watch, fell=None, pause=max(watch.pause, watch.fallen_for) if came_back else watch.pause)
    return watch if at - watch.fallen_at <= patience else replace(watch, fell=None)


def _only_spin(gpus: tuple[GpuWork, ...]) -> bool:
    return all(gpu.spins and not gpu.slow and not gpu.moves for gpu in gpus)


def _spun(watch: Watch, now: Stamp, patience: float) -> Watch:
    goes_on = watch.spun is not None and now.boottime - watch.spun_at <= patience
    return replace(watch, spun=watch.spun if goes_on else now, spun_at=now.boottime)


def _rate(watch: Watch, total: int | None, at: float, gpus: int) -> float | None:
    """Return MiB/s per GPU since the previous pass; None if the counter went back, or a pass lacked it."""
    if total is None or watch.sent_bytes is None or at <= watch.at or total < watch.sent_bytes:
        return None
    return (total - watch.sent_bytes) / (at - watch.at) / gpus / (1 << 20)


def is_fallen(past: JobPast, gpus: tuple[GpuWork, ...], values: Means) -> bool | None:
    """Return True if a job whose GPUs are all busy has fallen; None if no source shows what they do."""
    if any(gpu.slow or gpu.moves for gpu in gpus) or values.power_w is None:
        return False
    if past.clock_mhz and values.clock_mhz is not None and values.clock_mhz < SLOW_CLOCK * past.clock_mhz:
        return False
    share = values.power_w / past.power_w if past.power_w > 0 else 1.0
    if share > POWER_SHARE:
        return False
    activity = [
        (now, before)
        for now, before in ((values.tensor_percent, past.tensor_percent), (values.dram_percent, past.dram_percent))
        if before is not None and before >= ACTIVITY_LEAST
    ]
    if activity and all(now is not None for now, _ in activity):
        return all(now is not None and now <= ACTIVITY_SHARE * before for now, before in activity)
    traffic = [
        (now, before)
        for now, before in ((values.nvlink_mib, past.nvlink_mib), (values.rdma_mib, past.rdma_mib))
        if now is not None and before is not None and before >= TRAFFIC_LEAST
    ]
    if not traffic:
        return None
    return share <= POWER_SHARE_BY_TRAFFIC and all(now <= ACTIVITY_SHARE * before for now, before in traffic)


def _folded(watch: Watch, at: float) -> Watch:
    """Return the watch with its minute added to the others, if it is over and was busy. Happens once a minute."""
    if 0.0 <= at - watch.minute.began < MINUTE:
        return watch
    over = watch.minute.means()
    if over is None:
        return replace(watch, minute=Minute(at))
    minutes = (*watch.minutes[-MINUTES_KEPT + 1 :], over)
    return replace(watch, minute=Minute(at), minutes=minutes, unlearned=watch.unlearned + 1)


def is_due(watch: Watch, past: JobPast | None) -> bool:
    """Return True if the past must be compared with later minutes: after ten of them, or a longer pause."""
    return watch.unlearned >= LEARNED_AFTER or (past is not None and watch.pause > past.pause)


def compared(watch: Watch, *, again: bool = False) -> Watch:
    """Return the watch after its past was compared. `again`: compare again after the next minute."""
    return replace(watch, unlearned=LEARNED_AFTER - 1 if again else 0, pause=0.0)


def is_mixed(past: JobPast, minutes: Sequence[Means]) -> bool:
    """Return True if the job has fallen in a minute of its past to be: it is not known which minute is normal."""
    return any(is_fallen(past, (), minute) for minute in minutes[-LEARNED_AFTER:])
