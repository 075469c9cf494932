"""One pass through DCGM, and every way in which its engine reports less, or more, than is true."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuwarden_collectors.codec import from_wire, to_wire
from gpuwarden_collectors.dcgm.bindings import open_bindings
from gpuwarden_collectors.dcgm.facts import DcgmFacts, DcgmGpu, DcgmGpuStatus, DcgmProblemKind, DcgmReadings
from gpuwarden_collectors.dcgm.reader import DcgmReader
from support.dcgm import (
    ADDRESS,
    ALL_SYSTEMS,
    BINDINGS,
    DETACHED,
    INACCESSIBLE,
    LOST,
    OK,
    FakeDcgm,
    errors,
    incident,
    reader_of,
    reading,
)

SWITCH_0 = (3, 0)


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


# --- A healthy node ------------------------------------------------------------------------------------------------


def test_a_healthy_node_has_its_gpus_and_no_incident(reader: DcgmReader) -> None:
    facts = reader.read()
    assert (facts.engine_version, facts.address, facts.overall, facts.watches) == ("4.6.0", ADDRESS, 0, ALL_SYSTEMS)
    assert facts.gpus[1] == DcgmGpu(
        id=1,
        slot="0000:02:00.0",
        uuid="GPU-1",
        name="NVIDIA H100 80GB HBM3",
        readings=DcgmReadings(temperature=40, memory_unrepairable=0, recovery_action=0),
    )
    assert (len(facts.gpus), facts.incidents, facts.problems) == (2, (), ())


def test_facts_survive_the_way_to_the_daemon(reader: DcgmReader, fake: FakeDcgm) -> None:
    fake.xid(0, 79)
    fake.clear_watches()
    facts = reader.read()
    assert from_wire(DcgmFacts, to_wire(facts)) == facts


def test_the_group_is_a_private_one_with_every_gpu_and_all_watches(reader: DcgmReader, fake: FakeDcgm) -> None:
    reader.read()
    (group,) = fake.engine["groups"].values()
    assert (group["entities"], group["mask"]) == ([[1, 0], [1, 1]], ALL_SYSTEMS)


def test_switches_are_watched_in_a_group_of_their_own(fake: FakeDcgm) -> None:
    fake.set(others=[list(SWITCH_0)])
    fake.incident(15, "fatal error on a switch", health=20, system=0x800, of=SWITCH_0)
    with reading() as reader:
        facts = reader.read()
        reported = incident(facts)
        assert (reported.code, reported.entity_kind, reported.entity_id, reported.slot, facts.overall) == (
            15,
            3,
            0,
            "",
            20,
        )
        assert errors(facts) == []


def test_close_leaves_nothing_in_the_engine_or_in_the_bindings(fake: FakeDcgm) -> None:
    kept = list(open_bindings(BINDINGS).pydcgm.DcgmHandle.handles)
    reader = reader_of()
    for _ in range(3):
        reader.connect()
        reader.read()
        reader.close()
    engine = fake.engine
    assert (engine["clients"], engine["groups"], engine["field_groups"], engine["watched"]) == ({}, {}, {}, [])
    assert open_bindings(BINDINGS).pydcgm.DcgmHandle.handles == kept


def test_several_clients_do_not_disturb_each_other(reader: DcgmReader) -> None:
    other = reader_of()
    other.connect()
    assert errors(other.read()) == errors(reader.read()) == []
    other.close()
    assert errors(reader.read()) == []


# --- GPUs that are not there ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (LOST, DcgmGpuStatus.LOST),
        (INACCESSIBLE, DcgmGpuStatus.INACCESSIBLE),
        (DETACHED, DcgmGpuStatus.DETACHED),
        (99, DcgmGpuStatus.UNKNOWN),
    ],
)
def test_the_status_of_every_gpu_is_reported_though_the_health_check_forgets_it(
    reader: DcgmReader, fake: FakeDcgm, number: int, status: DcgmGpuStatus
) -> None:
    fake.xid(1, 79)
    assert reader.read().overall == 20
    fake.status(1, number)
    facts = reader.read()
    assert (facts.overall, facts.incidents) == (0, ())
    assert [(gpu.slot, gpu.status) for gpu in facts.gpus] == [
        ("0000:01:00.0", DcgmGpuStatus.OK),
        ("0000:02:00.0", status),
    ]
    assert facts.gpus[1].readings == DcgmReadings()


def test_a_gpu_that_comes_back_is_watched_again(reader: DcgmReader, fake: FakeDcgm) -> None:
    fake.status(1, LOST)
    watched_since = reader.read().watched_since
    fake.status(1, OK)
    facts = reader.read()
    assert facts.watched_since > watched_since
    assert facts.gpus[1].watched
    assert facts.gpus[1].readings.temperature == 40


def test_a_gpu_that_was_lost_at_the_start_is_taken_in_later(fake: FakeDcgm) -> None:
    fake.status(1, LOST)
    with reading() as reader:
        facts = reader.read()
        assert (facts.gpus[1].watched, facts.gpus[1].status, errors(facts)) == (False, DcgmGpuStatus.LOST, [])
        assert facts.gpus[1].slot == ""  # the engine has forgotten it
        fake.status(1, OK)
        fake.field(1, 311, 1)
        facts = reader.read()
        assert (facts.gpus[1].watched, incident(facts).code, incident(facts).slot) == (True, 4, "0000:02:00.0")


def test_a_gpu_that_comes_back_is_read_again_and_blank_values_of_its_absence_are_no_fault(
    reader: DcgmReader, fake: FakeDcgm
) -> None:
    reader.read()
    fake.status(1, LOST)
    fake.sample()
    reader.read()
    fake.status(1, OK)
    facts = reader.read()
    assert (facts.incidents, facts.gpus[1].readings.temperature) == ((), 40)


def test_a_new_gpu_is_taken_in(reader: DcgmReader, fake: FakeDcgm) -> None:
    reader.read()
    fake.add_gpu()
    fake.xid(2, 48)
    facts = reader.read()
    assert (facts.gpus[2].slot, incident(facts).slot) == ("0000:03:00.0", "0000:03:00.0")


def test_a_gpu_that_no_group_accepts_is_reported(fake: FakeDcgm) -> None:
    fake.fail("dcgmGroupAddEntity", -22)
    with reading() as reader:
        facts = reader.read()
        assert errors(facts) == [DcgmProblemKind.NOT_WATCHED]
        assert "0000:01:00.0, 0000:02:00.0 is not watched" in facts.problems[0].text


def test_watches_that_cannot_be_set_are_reported_and_retried(fake: FakeDcgm) -> None:
    fake.fail("dcgmHealthSet_v2", -56)
    with reading() as reader:
        facts = reader.read()
        assert errors(facts) == [DcgmProblemKind.NOT_WATCHED]
        assert not facts.gpus[0].watched
        fake.fail("dcgmHealthSet_v2", 0)
        assert errors(reader.read()) == []


def test_switches_that_cannot_be_watched_do_not_affect_the_gpus(fake: FakeDcgm) -> None:
    fake.set(others=[list(SWITCH_0)])
    fake.fail("dcgmHealthSet_v2 of others", -33)
    with reading() as reader:
        facts = reader.read()
        assert errors(facts) == [DcgmProblemKind.NOT_WATCHED]
        assert "switches, CPUs and adapters" in facts.problems[0].text
        assert all(gpu.watched for gpu in facts.gpus)
        assert reader.read().watched_since == facts.watched_since


def test_an_engine_without_gpus_is_a_problem_though_it_passes(fake: FakeDcgm) -> None:
    fake.set(gpus=[])
    with reading() as reader:
        facts = reader.read()
        assert (facts.overall, facts.gpus, errors(facts)) == (0, (), [DcgmProblemKind.NO_GPUS])


def test_a_gpu_that_never_reported_its_slot_has_none(fake: FakeDcgm) -> None:
    with fake.change() as engine:
        engine["gpus"][1]["slot"] = "<<<NULL>>>"
    with reading() as reader:
        assert [gpu.slot for gpu in reader.read().gpus] == ["0000:01:00.0", ""]


def test_an_engine_that_asks_the_driver_nothing_is_blind(reader: DcgmReader, fake: FakeDcgm) -> None:
    """After an Xid 119 in the kernel log no incident names it, and every GPU counts as ok."""
    fake.set(blind=True)
    facts = reader.read()
    assert [reported.code for reported in facts.incidents] == [11, 11]
    assert {gpu.status for gpu in facts.gpus} == {DcgmGpuStatus.OK}
    assert errors(facts) == [DcgmProblemKind.BLIND]


# --- Other clients, other versions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [0, 0x10])
def test_watches_that_another_client_changed_are_reported_and_set_again(
    reader: DcgmReader, fake: FakeDcgm, mask: int
) -> None:
    fake.xid(0, 31)
    reader.read()
    fake.clear_watches(mask)
    facts = reader.read()
    assert (facts.watches, errors(facts)) == (mask, [DcgmProblemKind.WATCHES_CHANGED])
    assert incident(facts).xid == 31
    facts = reader.read()
    assert (facts.watches, errors(facts)) == (ALL_SYSTEMS, [])


def test_a_field_that_this_dcgm_does_not_know_fails_no_other(fake: FakeDcgm) -> None:
    fake.set(unknown=[1507, 1502, 1503])
    with reading() as reader:
        readings = reader.read().gpus[0].readings
        assert (readings.memory_unrepairable, readings.recovery_action, readings.temperature) == (None, 0, 40)


def test_fields_that_cannot_be_watched_leave_the_incidents(fake: FakeDcgm) -> None:
    fake.fail("dcgmWatchFields", -3)
    fake.xid(0, 79)
    with reading() as reader:
        facts = reader.read()
        assert (errors(facts), incident(facts).xid) == ([DcgmProblemKind.FIELDS_UNREADABLE], 79)


def test_profiling_fields_are_read_where_they_are_licensed(fake: FakeDcgm) -> None:
    fake.set(profiling=True)
    fake.field(0, 1004, 0.25)
    fake.field(0, 1009, 2**40)
    with reading() as reader:
        facts = reader.read()
        assert (facts.gpus[0].readings.tensor_active, facts.gpus[0].readings.pcie_tx_bytes) == (0.25, 2**40)
        assert facts.profiling_error == ""


def test_without_a_licence_there_is_the_reason_and_no_problem(reader: DcgmReader) -> None:
    facts = reader.read()
    assert (facts.profiling_error, facts.problems) == (
        "Profiling is not supported for this group of GPUs or GPU (-36)",
        (),
    )


def test_profiling_can_be_left_alone(fake: FakeDcgm) -> None:
    fake.set(profiling=True)
    with reading(profiling=False) as reader:
        assert "collectors.dcgm.profiling" in reader.read().profiling_error
        assert all(field < 1001 or field > 1012 for *_, field in fake.engine["watched"])


def test_imex_is_the_node_s(fake: FakeDcgm) -> None:
    fake.set(node={"1502": "DEGRADED", "1503": 2})
    with reading() as reader:
        facts = reader.read()
        assert (facts.imex_domain, facts.imex_daemon) == ("DEGRADED", 2)
