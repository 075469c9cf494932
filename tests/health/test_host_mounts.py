"""What the facts of mounts mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from gpuwarden.health.host import mounts as mount_detectors
from gpuwarden.health.host.limits import DiskLimits
from gpuwarden.health.model import Severity, Sighting, Subject
from gpuwarden_collectors.host_facts import MountFacts, StorageFacts

W, F = Severity.WARNING, Severity.FAILURE


def parts(sightings: Iterable[Sighting]) -> list[str]:
    return [sighting.key.subject.part for sighting in sightings]


GIB = 1 << 30


def mount(path: str = "/data", **more: Any) -> MountFacts:
    numbers: dict[str, Any] = {
        "bytes_total": 1000 * GIB, "bytes_free": 500 * GIB, "bytes_available": 450 * GIB,
        "inodes_total": 1000, "inodes_free": 900,
    }  # fmt: skip
    return MountFacts(path=path, **{**numbers, **more})


def storage(*mounts: MountFacts) -> StorageFacts:
    return StorageFacts(mounts=mounts)


NO_NUMBERS: dict[str, Any] = {
    "bytes_total": None, "bytes_free": None, "bytes_available": None, "inodes_total": None, "inodes_free": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "evidence"),
    [
        (mount(), {}),
        (mount(bytes_free=60 * GIB, bytes_available=50 * GIB), {}),
        (mount(bytes_free=48 * GIB, bytes_available=48 * GIB), {"used_percent": 95.2, "bytes_available": 48 * GIB}),
        (mount(bytes_free=100 * GIB, bytes_available=40 * GIB), {"used_percent": 95.7, "bytes_available": 40 * GIB}),
        (mount(bytes_free=0, bytes_available=0), {"used_percent": 100.0, "bytes_available": 0}),
        (mount(bytes_total=1 << 50, bytes_free=200 * GIB, bytes_available=200 * GIB), {}),  # 99.98 %, and plenty
        (mount(inodes_free=50), {"inodes_used_percent": 95.0, "inodes_free": 50}),
        (mount(inodes_total=0, inodes_free=0), {}),  # btrfs has none to count
        (mount(bytes_total=0, bytes_free=0, bytes_available=0), {}),  # ramfs
        (mount(bytes_free=0, bytes_available=0, read_only=True), {}),  # full by design
        (mount(**NO_NUMBERS, hung_for=9.0), {}),
    ],
)
def test_a_mount_is_full_at_95_percent_of_bytes_or_inodes(facts: MountFacts, evidence: Mapping[str, object]) -> None:
    sightings = mount_detectors.disk_full(storage(facts), DiskLimits())
    assert [dict(s.evidence) for s in sightings] == ([{"type": "", "source": "", **evidence}] if evidence else [])
    assert all(sighting.severity is not F for sighting in sightings)


@pytest.mark.parametrize(
    ("facts", "full"),
    [
        (mount(bytes_total=1 << 50, bytes_free=100 << 40, bytes_available=100 << 40), True),  # 90.2 %, and 100 TiB left
        (mount(bytes_free=110 * GIB, bytes_available=110 * GIB), False),
        (mount(inodes_free=390), True),
        (mount(inodes_free=410), False),
    ],
)
def test_a_site_s_own_limit_counts_alone_however_much_is_left(facts: MountFacts, *, full: bool) -> None:
    limits = DiskLimits(used_percent=90, inodes_percent=60)
    assert bool(mount_detectors.disk_full(storage(facts), limits)) is full


@pytest.mark.parametrize(
    ("facts", "missing"),
    [
        (mount(expected=True), False),
        (MountFacts(path="/data", expected=True, mounted=False), True),
        (MountFacts(path="/data", expected=True, mounted=False, automount=True), False),
    ],
)
def test_an_expected_mount_that_is_not_there_is_missing(facts: MountFacts, *, missing: bool) -> None:
    assert parts(mount_detectors.mount_missing(storage(facts))) == (["/data"] if missing else [])


@pytest.mark.parametrize(
    ("facts", "severity", "why"),
    [
        (mount(**NO_NUMBERS, hung_for=7.4, expected=True), F, "does not answer"),
        (mount(**NO_NUMBERS, hung_for=7.4), W, "does not answer"),
        (mount(**NO_NUMBERS, error="Stale file handle", expected=True), F, "Stale file handle"),
    ],
)
def test_a_mount_that_hangs_or_errs_is_worse_where_it_is_expected(
    facts: MountFacts, severity: Severity, why: str
) -> None:
    (sighting,) = mount_detectors.mount_hung(storage(facts, mount("/fine")))
    assert (sighting.severity, sighting.evidence["why"]) == (severity, why)
    assert mount_detectors.unseen_mounts(storage(facts, mount("/fine"))) == {Subject("mount", part="/data")}


def test_a_mount_that_became_read_only_counts_and_one_that_always_was_does_not() -> None:
    now = storage(mount("/data", read_only=True), mount("/sets", read_only=True), mount("/fine"))
    (sighting,) = mount_detectors.mount_read_only(now, {"/data": "", "/fine": ""})
    assert (sighting.key.subject.part, sighting.severity) == ("/data", W)


def test_another_file_system_on_the_same_path_did_not_become_read_only() -> None:
    now = storage(mount("/mnt", read_only=True, source="/dev/loop3"))
    assert mount_detectors.mount_read_only(now, {"/mnt": "/dev/sdb1"}) == []


def test_a_read_only_root_or_expected_mount_is_a_failure() -> None:
    now = storage(mount("/", read_only=True), mount("/data", read_only=True, expected=True))
    assert [s.severity for s in mount_detectors.mount_read_only(now, {"/": "", "/data": ""})] == [F, F]


def test_a_mount_that_nobody_asked_does_not_hang() -> None:
    unasked = storage(mount(**NO_NUMBERS, asked=False), mount("/fine"))
    assert mount_detectors.mount_hung(unasked) == []
    assert mount_detectors.unasked_mounts(unasked) == {Subject("mount", part="/data")}


def test_of_a_mount_that_is_gone_it_is_known_that_it_is_not_full() -> None:
    assert mount_detectors.unseen_mounts(storage(MountFacts(path="/data", expected=True, mounted=False))) == set()
