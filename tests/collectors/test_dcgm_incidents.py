"""Incidents as DCGM reports them: about which GPU, from which Xid, and since when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuwarden_collectors.dcgm.facts import DcgmProblemKind
from gpuwarden_collectors.dcgm.reader import DcgmReader
from support.dcgm import ALL_SYSTEMS, LOST, OK, FakeDcgm, errors, incident, reading


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDcgm:
    fake = FakeDcgm(tmp_path)
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    return fake


@pytest.fixture
def reader(fake: FakeDcgm) -> Iterator[DcgmReader]:
    with reading() as reader:
        yield reader


def test_the_slot_comes_from_the_entity_and_never_from_the_text(reader: DcgmReader, fake: FakeDcgm) -> None:
    fake.field(1, 395, 1)
    reported = incident(reader.read())
    assert (reported.code, reported.health, reported.system, reported.slot) == (80, 20, 0x10, "0000:02:00.0")
    assert "GPU 1178568848" in reported.message
    assert not reported.latched


def test_one_nanosecond_of_capping_is_reported_with_dcgms_severity(reader: DcgmReader, fake: FakeDcgm) -> None:
    reader.read()
    fake.field(0, 240, 1)
    reported = incident(reader.read())
    assert (reported.code, reported.health, reported.xid) == (12, 10, None)


def test_totals_of_a_link_are_one_incident_with_one_beginning(reader: DcgmReader, fake: FakeDcgm) -> None:
    reader.read()
    fake.field(0, 499, 1)
    first, later = incident(reader.read()), incident(reader.read())
    assert (first.code, first.health, first.latched) == (71, 20, False)
    assert first == later


@pytest.mark.parametrize(("xid", "code"), [(79, 120), (95, 81), (94, 131), (48, 101), (63, 6), (64, 80)])
def test_an_xid_is_reported_and_marked_as_kept_by_the_engine(
    reader: DcgmReader, fake: FakeDcgm, xid: int, code: int
) -> None:
    reader.read()
    fake.xid(1, xid)
    facts = reader.read()
    reported = incident(facts)
    assert (reported.code, reported.xid, reported.latched, reported.preexisting, reported.slot) == (
        code,
        xid,
        True,
        False,
        "0000:02:00.0",
    )
    assert facts.gpus[1].readings.last_xid == xid
    assert facts.gpus[1].readings.last_xid_at is not None


def test_an_older_dcgm_does_not_write_the_xid_into_every_text(reader: DcgmReader, fake: FakeDcgm) -> None:
    fake.incident(81, "an uncontained error", health=20, system=ALL_SYSTEMS, of=(1, 0))
    fake.incident(101, "an Xid", health=20, system=ALL_SYSTEMS, of=(1, 0))
    assert [(reported.xid, reported.latched) for reported in reader.read().incidents] == [(95, True), (None, True)]


def test_what_was_there_at_the_first_check_may_be_of_any_age(fake: FakeDcgm) -> None:
    fake.xid(0, 48)
    with reading() as reader:
        assert incident(reader.read()).preexisting
        fake.xid(1, 48)
        assert [reported.preexisting for reported in reader.read().incidents] == [True, False]


def test_an_xid_of_a_gpu_that_was_away_is_no_new_one(reader: DcgmReader, fake: FakeDcgm) -> None:
    reader.read()
    fake.xid(1, 48)
    before = incident(reader.read())
    fake.status(1, LOST)
    reader.read()
    fake.status(1, OK)
    assert incident(reader.read()) == before


def test_what_a_gpu_brings_that_was_lost_when_we_connected_may_be_of_any_age(fake: FakeDcgm) -> None:
    fake.xid(1, 79)
    fake.status(1, LOST)
    with reading() as reader:
        reader.read()
        fake.status(1, OK)
        assert incident(reader.read()).preexisting


def test_a_fault_that_went_away_and_comes_again_is_a_new_one(reader: DcgmReader, fake: FakeDcgm) -> None:
    fake.field(0, 311, 1)
    first = incident(reader.read())
    fake.field(0, 311, 0)
    assert reader.read().incidents == ()
    fake.field(0, 311, 1)
    again = incident(reader.read())
    assert again.first_seen > first.first_seen
    assert (first.preexisting, again.preexisting) == (True, False)


def test_links_that_are_down_are_distinguished(reader: DcgmReader, fake: FakeDcgm) -> None:
    for link in (3, 11):
        fake.incident(14, f"GPU 7's NvLink link {link} is currently down", health=20, system=2, of=(1, 1))
    assert [(reported.slot, reported.link) for reported in reader.read().incidents] == [
        ("0000:02:00.0", 3),
        ("0000:02:00.0", 11),
    ]


def test_an_unknown_code_and_an_odd_text_are_kept(reader: DcgmReader, fake: FakeDcgm) -> None:
    fake.incident(9999, "\udcff" + "x" * 1000, of=(1, 0))
    reported = incident(reader.read())
    assert (reported.code, len(reported.message), reported.message[:2]) == (9999, 512, "\ufffdx")


@pytest.mark.parametrize("action", [5, 6, 7])
def test_a_recovery_action_that_dcgm_leaves_out_is_read(reader: DcgmReader, fake: FakeDcgm, action: int) -> None:
    fake.field(0, 1523, action)
    facts = reader.read()
    assert (facts.incidents, facts.gpus[0].readings.recovery_action) == ((), action)


def test_as_many_incidents_as_fit_the_response_are_read(reader: DcgmReader, fake: FakeDcgm) -> None:
    with fake.change() as engine:
        engine["incidents"] = [[0x10, 10, number, "text", 1, 0] for number in range(2000)]
    assert len(reader.read().incidents) == 1024


def test_a_check_that_fails_in_part_keeps_its_incidents(reader: DcgmReader, fake: FakeDcgm) -> None:
    fake.xid(0, 79)
    fake.fail("part of dcgmHealthCheck", -13)
    facts = reader.read()
    assert (incident(facts).xid, errors(facts)) == (79, [DcgmProblemKind.CHECK_INCOMPLETE])
    assert "(-13)" in facts.problems[0].text
