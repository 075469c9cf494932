"""The Xid table agrees with the classes that were settled on, for every number; so does the table of SXids."""

from __future__ import annotations

import pytest

from gpuwarden.health.model import Advice
from gpuwarden.health.xid.catalogue import XIDS, XidClass, xid_row
from gpuwarden.health.xid.sxid_catalogue import SXIDS, sxid_row

# Written down from the study of fleets, apart from the table: numbers and class. `I→W` is a record until it repeats.
# Where a detail decides, the class without the detail: 74 and 144-150 warn, 154 is a record, 156 and 168 warn.
SETTLED = {
    XidClass.RECORD: "11 25 32 13 31 37 38 44 39-41 70-72 75-77 85 126-135 43 45 60 68 69 80 82-84 86 88 89 96-105 139 "
    "66 67 106-108 137 141 152 153 162 154 14",
    XidClass.WARNING: "8 63 74 78 92 93 94 121 142 144-150 156 157 159 160 161 163-165 166 170 168 171 172 "
    "1-7 9 10 12 15-24 26-30 33-36 42 47 49-53 55-59 61 65 73 81 87 90 91 111-118 122-125 138 174 176",
    XidClass.FAILURE: "46 48 54 62 64 79 95 109 110 119 120 136 140 143 151 155 158 167 169 173 175",
}


def numbers(text: str) -> list[int]:
    spans = [word.split("-") for word in text.split()]
    return [number for span in spans for number in range(int(span[0]), int(span[-1]) + 1)]


@pytest.mark.parametrize("klass", XidClass)
def test_every_number_has_the_class_that_was_settled_on(klass: XidClass) -> None:
    assert {xid: xid_row(xid).klass for xid in numbers(SETTLED[klass])} == dict.fromkeys(numbers(SETTLED[klass]), klass)


def test_every_number_from_1_to_176_has_one_row() -> None:
    assert sorted(XIDS) == list(range(1, 177))
    assert sorted(numbers(" ".join(SETTLED.values()))) == sorted(XIDS)
    assert all(row.xid == xid and row.meaning and "{" not in row.meaning for xid, row in XIDS.items())


@pytest.mark.parametrize("xid", [0, 177, 999, -1])
def test_an_unknown_number_is_a_warning(xid: int) -> None:
    row = xid_row(xid)
    assert (row.xid, row.klass, row.advice) == (xid, XidClass.WARNING, Advice.CONTACT_SUPPORT)


@pytest.mark.parametrize(
    ("bucket", "xids"),
    [
        ("IGNORE", "14 37 38 43 44 63 66 67 92 93 106-108 121 137 141 152 153 157 160 161"),
        ("RESTART_APP", "8 11 13 25 31 32 39-41 60 68-72 75-77 80 82-86 88 89 94 96-105 126-135 139"),
        ("RESET_GPU", "46 62 64 95 109 110 119 120 136 140 143 155 156 158"),
        ("RESTART_BM", "79"),
        ("RESTART_VM", "151"),
        ("CHECK_MECHANICALS", "54"),
        ("UPDATE_SWFW", "78"),
        ("CHECK_UVM", "159"),
        ("XID_154", "154"),
        ("WORKFLOW_XID_45", "45"),
        ("WORKFLOW_XID_48", "48"),
        ("WORKFLOW_NVLINK_ERR", "74"),
        ("WORKFLOW_NVLINK5_ERR", "144-150"),
        ("", "162-176"),
    ],
)
def test_the_vendors_bucket_is_in_the_row(bucket: str, xids: str) -> None:
    assert [xid for xid, row in sorted(XIDS.items()) if row.action == bucket] == numbers(xids)


@pytest.mark.parametrize(
    ("xid", "advice"),
    [
        (13, Advice.RESTART_APP),
        (48, Advice.RESET_GPU),
        (54, Advice.INSPECT_HARDWARE),
        (78, Advice.UPDATE_SOFTWARE),
        (79, Advice.REBOOT),
        (94, Advice.RESTART_APP),
        (95, Advice.RESET_GPU),
        (119, Advice.RESET_GPU),
        (120, Advice.RESET_GPU),
        (142, Advice.CONTACT_SUPPORT),
        (151, Advice.REBOOT),
        (175, Advice.RESET_GPU),
    ],
)
def test_the_advice_is_what_an_operator_can_do(xid: int, advice: Advice) -> None:
    assert xid_row(xid).advice is advice


def test_a_failure_never_advises_to_wait() -> None:
    assert not [
        row.xid
        for row in XIDS.values()
        if row.klass is XidClass.FAILURE and row.advice in (Advice.NONE, Advice.OBSERVE)
    ]


def test_engines_are_counted_along_their_numbers() -> None:
    assert [xid_row(xid).meaning[-4:] for xid in (39, 70, 85, 126, 133, 135)] == [
        " CE0",
        " CE3",
        " CE9",
        "CE10",
        "CE17",
        "CE19",
    ]
    assert [xid_row(xid).meaning[-6:] for xid in (68, 98, 99, 105)] == ["NVDEC0", "NVDEC7", "NVJPG1", "NVJPG7"]


def test_the_row_names_where_fleets_disagree() -> None:
    assert "Meta GCM: not critical" in xid_row(109).provenance
    assert "AzNHC: takes the node out" in xid_row(63).provenance
    assert "Azure healthagent: a warning" in xid_row(63).provenance
    assert "NVSentinel: restarts the machine" in xid_row(168).provenance
    assert "fleet practice" not in xid_row(110).provenance


def test_a_number_of_the_drivers_that_the_catalogue_lacks_names_its_header() -> None:
    assert all("nverror.h" in xid_row(xid).provenance for xid in (174, 175, 176))
    assert "nverror.h" not in xid_row(173).provenance


# SXids: 29 of 93 are not fatal.
NOT_FATAL = (
    "10001-10005 11012 11021-11023 12021 12023 12030 15008 15011 19049 19055 19057 19059 19062 19065 19068 19071 "
    "20001 20009 20012 22013 24001-24003"
)
FATAL = (
    "11001 11004 11009 11013 11018-11020 12001 12002 12020 12022 12024-12028 12031 12032 14017 15001 15006 15009 15010 "
    "15012 15013 19047 19048 19054 19056 19058 19060 19061 19063 19064 19066 19067 19069 19070 19084 20034 22003 22011 "
    "22012 23001-23017 24004-24007"
)


def test_every_described_sxid_is_fatal_or_not_as_settled() -> None:
    assert sorted(sxid for sxid, row in SXIDS.items() if not row.fatal) == numbers(NOT_FATAL)
    assert sorted(sxid for sxid, row in SXIDS.items() if row.fatal) == numbers(FATAL)
    assert all(row.sxid == sxid and row.meaning for sxid, row in SXIDS.items())


def test_numbers_that_imbue_ignores_are_known_to_be_harmless() -> None:
    listed = "11012 11021 11022 11023 12021 12023 15008 15011 19049 19055 19057 19059 19062 19065 19068 19071 24001 24002 24003 22013"
    assert sorted(sxid for sxid, row in SXIDS.items() if row.harmless) == sorted(map(int, listed.split()))
    assert [sxid for sxid, row in SXIDS.items() if row.listed_nonfatal] == [11004, 12028, 19084]


@pytest.mark.parametrize("sxid", [0, 11002, 99999])
def test_an_unknown_sxid_is_kept_and_not_fatal(sxid: int) -> None:
    row = sxid_row(sxid)
    assert (row.sxid, row.fatal) == (sxid, False)


def test_an_sxid_that_its_line_calls_non_fatal_notes_the_reason() -> None:
    assert "non-fatal" in sxid_row(19084).note


@pytest.mark.parametrize(
    ("klass", "xids"),
    [
        (XidClass.WARNING, "13 31 39-41 60 68-72 75-77 80 82-86 88 89 96-105 126-135 139 144-150"),
        (XidClass.FAILURE, "74"),
        (
            None,
            "1-12 14-30 32-38 42-59 61-67 73 78 79 81 87 90-95 106-125 136-138 140-143 151-176",
        ),
    ],
)
def test_what_keeps_coming_back_has_the_class_that_was_settled_on(klass: XidClass | None, xids: str) -> None:
    assert [xid for xid, row in sorted(XIDS.items()) if row.repeated is klass] == numbers(xids)


@pytest.mark.parametrize(
    ("xid", "escalation"),
    [
        (13, Advice.INSPECT_HARDWARE),
        (48, Advice.CONTACT_SUPPORT),
        (79, Advice.INSPECT_HARDWARE),
        (94, Advice.NONE),
        (95, Advice.CONTACT_SUPPORT),
        (119, Advice.UPDATE_SOFTWARE),
        (136, Advice.INSPECT_HARDWARE),
        (143, Advice.CONTACT_SUPPORT),
    ],
)
def test_what_comes_back_after_the_advice_was_followed_asks_for_more(xid: int, escalation: Advice) -> None:
    assert xid_row(xid).escalation is escalation


def test_a_failure_always_has_something_to_go_on_with() -> None:
    assert not [row.xid for row in XIDS.values() if row.klass is XidClass.FAILURE and row.escalation is Advice.NONE]
    assert {(row.fatal, row.advice, row.escalation) for row in SXIDS.values()} == {
        (True, Advice.REBOOT, Advice.CONTACT_SUPPORT),
        (False, Advice.OBSERVE, Advice.INSPECT_HARDWARE),
    }
