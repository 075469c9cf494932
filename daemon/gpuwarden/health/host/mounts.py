"""Sightings of mounts that are full, missing, hung or read-only."""

from __future__ import annotations

import math
from collections.abc import Mapping

from gpuwarden.health.host.limits import DiskLimits
from gpuwarden.health.host.memory import mount_subject
from gpuwarden.health.model import Evidence, Key, Severity, Sighting, Subject
from gpuwarden_collectors.host_facts import MountFacts, StorageFacts

W, F = Severity.WARNING, Severity.FAILURE
FULL_PERCENT = 95
PLENTY = 100 << 30
"""Bytes left, in addition to FULL_PERCENT: petabytes may be 95 % full for years, while 100 GiB fill up soon."""


def unseen_mounts(storage: StorageFacts) -> frozenset[Subject]:
    """Return the mounts that are present but whose usage is unknown."""
    return frozenset(mount_subject(m.path) for m in storage.mounts if m.mounted and m.bytes_total is None)


def unasked_mounts(storage: StorageFacts) -> frozenset[Subject]:
    return frozenset(mount_subject(mount.path) for mount in storage.mounts if not mount.asked)


def disk_full(storage: StorageFacts, limits: DiskLimits) -> list[Sighting]:
    """Return full file systems, by space (computed as in `df`, without root's reserve) or inodes. Only warnings."""
    return [
        Sighting(Key("disk_full", mount_subject(mount.path)), {**_evidence(mount), **full})
        for mount in storage.mounts
        if not mount.read_only and (full := _full(mount, limits))
    ]


def _full(mount: MountFacts, limits: DiskLimits) -> Evidence:
    full: dict[str, float] = {}
    if mount.bytes_total and mount.bytes_free is not None and mount.bytes_available is not None:
        used = mount.bytes_total - mount.bytes_free
        percent = 100 * used / max(1, used + mount.bytes_available)
        most, plenty = (FULL_PERCENT, PLENTY) if limits.used_percent is None else (limits.used_percent, math.inf)
        if percent >= most and mount.bytes_available < plenty:
            full = {"used_percent": round(percent, 1), "bytes_available": mount.bytes_available}
    if mount.inodes_total and mount.inodes_free is not None:
        percent = 100 * (mount.inodes_total - mount.inodes_free) / mount.inodes_total
        if percent >= limits.inodes_percent:
            full |= {"inodes_used_percent": round(percent, 1), "inodes_free": mount.inodes_free}
    return full


def mount_missing(storage: StorageFacts) -> list[Sighting]:
    """Return expected mounts that are not mounted. An automount, mounted on first use, is not missing."""
    return [
        Sighting(Key("mount_missing", mount_subject(mount.path)), {"why": "nothing is mounted there"})
        for mount in storage.mounts
        if mount.expected and not mount.mounted and not mount.automount
    ]


def mount_hung(storage: StorageFacts) -> list[Sighting]:
    """Return mounts that hang, or return an error such as a stale file handle. Jobs that use them hang or die."""
    sightings = []
    for mount in storage.mounts:
        if mount.hung_for is None and not mount.error:
            continue
        why = mount.error or "does not answer"
        evidence: Evidence = {**_evidence(mount), "why": why, "hung_for": round(mount.hung_for or 0.0)}
        sightings.append(Sighting(Key("mount_hung", mount_subject(mount.path)), evidence, _severity(mount)))
    return sightings


def mount_read_only(storage: StorageFacts, writable_before: Mapping[str, str]) -> list[Sighting]:
    """Return mounts that became read-only, as after a disk failure. Another source at the path is another mount."""
    return [
        Sighting(Key("mount_read_only", mount_subject(mount.path)), _evidence(mount), _severity(mount))
        for mount in storage.mounts
        if mount.mounted and mount.read_only and writable_before.get(mount.path) == mount.source
    ]


def _severity(mount: MountFacts) -> Severity:
    """Return a failure for the root and expected mounts, without which no job can run; else a warning."""
    return F if mount.expected or mount.path == "/" else W


def _evidence(mount: MountFacts) -> Evidence:
    return {"type": mount.type, "source": mount.source}
