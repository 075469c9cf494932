"""Every DCGM code has a row; an incident is as bad as the milder of DCGM's severity and the table's."""

from __future__ import annotations

import pytest

from gpuwarden.health.conditions import CONDITIONS
from gpuwarden.health.dcgm.catalogue import DCGM_CODES, dcgm_named, dcgm_row, incident_health, judged
from gpuwarden.health.model import Advice, Health

# Written down from the vendor's table (dcgm_errors.c of DCGM 4.6.0), apart from the table: severities and codes.
VENDOR = {
    "isolate": "3 4 7 8 13 15 24 33 35 36 38 39 52 57 58 70 71 79 81 86-88 95 98 102-107 109 111 113-116 118-122 126",
    "reset": "6 25 80 83-85 125 127-129",
    "triage": "9 14 22 30 31 37 44 45 49 50 54 56 59 62-67 73 77 89-94 97 99-101 110 124 130 132",
    "configure": "18 20 23 28 29 46-48 55 60 68 72 78 82 96 112 117",
    "monitor": "5 10-12 16 17 19 26 27 32 34 40-43 51 53 61 69 74-76 108 123 131",
    "unknown": "0-2 21",
}
PASSIVE = "3 4 6-16 33 36 52 70 71 80 81 101 119-123 125-128 131 132"
FAILURES = "4 7 8 14 15 33 36 52 80 81 101 120 123 125 126 128"
RECORDED = "10 12"


def numbers(text: str) -> list[int]:
    spans = [word.split("-") for word in text.split()]
    return [number for span in spans for number in range(int(span[0]), int(span[-1]) + 1)]


def test_every_code_from_0_to_132_has_one_row() -> None:
    assert sorted(DCGM_CODES) == list(range(133))
    assert all(row.code == code and row.meaning and row.name for code, row in DCGM_CODES.items())
    assert len({row.name for row in DCGM_CODES.values()}) == 133


@pytest.mark.parametrize("severity", VENDOR)
def test_the_vendors_severity_is_in_the_row(severity: str) -> None:
    assert [code for code, row in DCGM_CODES.items() if row.severity == severity] == numbers(VENDOR[severity])


def test_what_health_checks_report_has_the_class_that_was_settled_on() -> None:
    passive = [row for row in DCGM_CODES.values() if row.passive]
    assert [row.code for row in passive] == numbers(PASSIVE)
    assert [row.code for row in passive if row.worst is Health.FAILURE] == numbers(FAILURES)
    assert [row.code for row in passive if row.worst is Health.HEALTHY] == numbers(RECORDED)


@pytest.mark.parametrize(
    ("code", "condition"),
    [
        (4, "ecc_uncorrectable"),
        (11, "dcgm_power_unreadable"),
        (14, "nvlink_down"),
        (52, "dcgm_faulty_memory"),
        (80, "row_remap_failed"),
        (101, "xid"),
        (120, "xid"),
        (122, "dcgm_imex_unhealthy"),
        (126, "gpu_recovery_action"),
        (9999, "dcgm_code_9999"),
    ],
)
def test_an_incident_belongs_to_our_condition_about_the_same_fault_or_to_one_of_its_own(
    code: int, condition: str
) -> None:
    assert dcgm_row(code).condition == condition


def test_every_condition_that_a_row_names_exists() -> None:
    assert {row.agrees for row in DCGM_CODES.values()} - {""} <= set(CONDITIONS)


def test_no_row_is_worse_than_our_condition_about_the_same_fault() -> None:
    warned = [row for row in DCGM_CODES.values() if row.agrees and CONDITIONS[row.agrees].severity == "warning"]
    assert [row.code for row in warned if row.worst is Health.FAILURE] == []


@pytest.mark.parametrize(
    ("code", "reported", "health"),
    [
        (4, 20, Health.FAILURE),
        (123, 10, Health.WARNING),  # DCGM's milder severity is taken
        (123, 20, Health.FAILURE),
        (12, 10, Health.HEALTHY),  # one nanosecond of capping
        (10, 10, Health.HEALTHY),
        (71, 20, Health.WARNING),  # link totals since the driver was loaded
        (4, 0, Health.HEALTHY),
        (4, 15, Health.WARNING),  # a number that DCGM does not use
        (9999, 20, Health.WARNING),  # a code that nobody has described
        (9999, 0, Health.WARNING),
    ],
)
def test_an_incident_is_as_bad_as_the_milder_of_dcgm_and_the_table(code: int, reported: int, health: Health) -> None:
    assert incident_health(code, reported) is health


def test_a_failure_of_a_health_check_never_advises_to_wait() -> None:
    assert not [
        row.code
        for row in DCGM_CODES.values()
        if row.passive and row.worst is Health.FAILURE and row.advice in (Advice.NONE, Advice.OBSERVE)
    ]


@pytest.mark.parametrize("code", [10, 12])
def test_a_row_that_is_only_recorded_documents_when_it_counts(code: int) -> None:
    assert f"Counts while {dcgm_row(code).agrees} holds by our own reading" in dcgm_row(code).note


def test_dcgm_alone_must_contradict_nvml_for_a_minute_at_least() -> None:
    shared = [row for row in DCGM_CODES.values() if row.agrees not in ("", "xid", "sxid")]
    assert [row.code for row in shared if row.lasts < 60.0] == []


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("52", 52),
        ("dcgm 52", 52),
        ("DCGM_FR_FAULTY_MEMORY", 52),
        ("faulty_memory", 52),
        ("DCGM_API", 67),
        ("dcgm_faulty_memory", 52),
        ("dcgm_code_4711", 4711),
    ],
)
def test_a_code_is_found_by_its_number_and_by_its_names(text: str, code: int) -> None:
    row = dcgm_named(text)
    assert row is not None
    assert row.code == code


@pytest.mark.parametrize("text", ["", "xid 79", "dcgm_unresponsive", "nonsense", "-1", "dcgm_code_" + "9" * 40])
def test_what_is_no_code_is_none(text: str) -> None:
    assert dcgm_named(text) is None


def test_every_code_has_a_sentence_on_how_it_is_judged() -> None:
    sentences = [judged(row) for row in (*DCGM_CODES.values(), dcgm_row(4711))]
    assert all(sentence.endswith(".") and " inf " not in sentence for sentence in sentences)
    assert judged(dcgm_row(52)) == (
        "At worst a failure: it is a finding of its own, dcgm_faulty_memory; DCGM alone counts after 15 s."
    )
