"""NVLink 5 lines meet the rules of the vendor's decode sheet: by name, sub-code, error status, and the unit of their driver."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.health.model import Advice
from gpuwarden.health.nvlink.nvlink5 import Nvlink5Line, branch, decode, nvlink5_line, nvlink5_sign
from gpuwarden.health.nvlink.nvlink5_catalogue import NVLINK5_RULES, Nvlink5Rule
from gpuwarden.health.xid.catalogue import XidClass

BEFORE, SINCE = 570, 575
WORDS = (0xFC00_0000, 0x000F_F800)  # bits of the first word that no rule asks for


def word(rule: Nvlink5Rule, driver: int) -> int:
    """The first register word as a driver of this branch writes it. The low bits before R575 number the group of units."""
    unit = rule.since if driver >= SINCE else rule.before << 5 | (rule.xid - 143 if rule.before else 0)
    return rule.sub_code << 20 | unit


def line(rule: Nvlink5Rule, driver: int, *, fatal: bool = False) -> Nvlink5Line:
    return Nvlink5Line(rule.units, fatal, word(rule, driver), rule.status)


def test_the_table_has_as_many_rules_of_each_kind_as_the_vendors_sheet() -> None:
    counts = Counter((rule.xid, rule.action) for rule in NVLINK5_RULES)
    assert counts == {
        (144, "RESET_GPU"): 2, (144, "IGNORE"): 4,
        (145, "RESET_GPU"): 9, (145, "IGNORE"): 16, (145, "XID_154_EVAL"): 8,
        (146, "RESET_GPU"): 5, (146, "IGNORE"): 15,
        (147, "IGNORE"): 2, (148, "IGNORE"): 1,
        (149, "RESET_GPU"): 24, (149, "IGNORE"): 7,
        (150, "RESET_GPU"): 1,
    }  # fmt: skip


def test_fatal_statuses_are_those_of_the_sheet() -> None:
    fatal: dict[str, set[int]] = {}
    for rule in NVLINK5_RULES:
        if rule.klass is XidClass.FAILURE and rule.xid != 149:
            fatal.setdefault(rule.units[0], set()).add(rule.status)
    assert fatal == {
        "SAW_MVB": {0x2, 0x10},
        "RLW_REMAP": {0x40, 0x80}, "RLW_RSPCOL": {0x2}, "RLW_SRC_TRACK": {0x1, 0x10, 0x20},
        "RLW_TAGSTATE": {0x2, 0x20000, 0x100000},
        "TLW_CTRL": {0x4}, "TLW_RX": {0x4}, "TLW_TX": {0x4},
        "MSE_WATCHDOG": {0x0},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("xid", "text", "driver", "klass", "unit"),
    [
        # lines of drivers before R575, as recorded in tests/data/kernel_log
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x00000000 0x00000000)", BEFORE, "warning", "NETIR_LINK_EVT"),
        (149, "NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000 0x00000000)", BEFORE, "failure", "NETIR"),
        (145, "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001)", BEFORE, "record", "RLW_RXPIPE"),
        # the same units as R575 and later write them
        (149, "NETIR_LINK_EVT/NETIR_LINK_DOWN Fatal XC0 i0 Link 00 (0x02500011 0x00000000)", SINCE, "failure", "NETIR_LINK_EVT"),
        (144, "SAW_MVB Fatal XC0 i0 Link 00 (0x00000001 0x00000002 0x00000000 0x00000000)", SINCE, "failure", "SAW_MVB"),
        (146, "TLW_RX/TLW_RX_PIPE1 Nonfatal XC0 i0 Link 00 (0x0000000b 0x00000001)", SINCE, "record", "TLW_RX"),
        (150, "MSE_WATCHDOG Fatal XC0 i0 Link 00 (0x00000000 0x00000000)", SINCE, "failure", "MSE_WATCHDOG"),
    ],
)  # fmt: skip
def test_a_line_is_decoded_by_the_driver_that_wrote_it(xid: int, text: str, driver: int, klass: str, unit: str) -> None:
    read = nvlink5_line(text)
    assert read is not None
    rule = decode(xid, read, driver)
    assert rule is not None
    assert (rule.klass, rule.units[0]) == (klass, unit)


@pytest.mark.parametrize("driver", [BEFORE, SINCE])
def test_every_rule_is_met_by_its_own_line_whatever_the_other_bits_are(driver: int) -> None:
    for rule in NVLINK5_RULES:
        for noise in (0, *WORDS, sum(WORDS)):
            clean = noise & ~(0x400 if driver < SINCE else 0)  # bit 10 is a unit's in the wide rules before R575
            met = decode(rule.xid, replace(line(rule, driver), info=word(rule, driver) | clean), driver)
            assert met is not None
            assert fields_of(met) == fields_of(rule)


@pytest.mark.slow
def test_without_a_driver_version_no_line_comes_to_anything_else_than_with_the_right_one() -> None:
    """Both layouts are tried then; over all rules and all values of the bits that any of them asks for."""
    for rule in NVLINK5_RULES:
        if rule.xid == 149 and rule.sub_code > 1:
            continue  # the same bits as for sub-codes 0 and 1
        for low in range(0x800):
            read = Nvlink5Line(rule.units[:1], True, rule.sub_code << 20 | low, rule.status)
            before, since, unknown = (fields_of(decode(rule.xid, read, driver)) for driver in (BEFORE, SINCE, None))
            assert unknown == (before or since)
            assert not (before and since) or before == since


def fields_of(rule: Nvlink5Rule | None) -> tuple[object, ...]:
    return () if rule is None else (rule.klass, rule.action, rule.follow_up)


def test_a_unit_in_the_place_of_the_other_drivers_is_no_match() -> None:
    for rule in NVLINK5_RULES:
        if rule.since != rule.before << 5 | (rule.xid - 143 if rule.before else 0):
            assert decode(rule.xid, line(rule, SINCE), BEFORE) is None or rule.before == 0
            assert decode(rule.xid, line(rule, BEFORE), SINCE) is None


def test_the_error_status_is_compared_as_a_whole_and_the_rest_counts_too() -> None:
    rule = next(r for r in NVLINK5_RULES if r.units == ("SAW_MVB",) and r.status == 2)
    read = line(rule, SINCE)
    assert decode(144, read, SINCE) is rule
    for other in (replace(read, status=3), replace(read, info=read.info | 1 << 20), replace(read, units=("RLW_CTRL",))):
        assert decode(144, other, SINCE) is None
    assert decode(145, read, SINCE) is None


def test_rules_of_the_receiving_pipe_ask_for_one_bit_more() -> None:
    wide = [rule for rule in NVLINK5_RULES if rule.wide]
    assert {(rule.xid, rule.units, rule.status) for rule in wide} == {(145, ("RLW_RXPIPE",), n) for n in (1, 2, 4)}
    for rule in wide:
        assert decode(145, replace(line(rule, SINCE), info=0x80 | word(rule, SINCE)), SINCE) is None
        assert decode(145, replace(line(rule, BEFORE), info=0x400 | word(rule, BEFORE)), BEFORE) is None


def test_what_follows_from_a_rule() -> None:
    advices = {(rule.klass, rule.advice) for rule in NVLINK5_RULES}
    assert advices == {
        (XidClass.FAILURE, Advice.RESET_GPU),
        (XidClass.RECORD, Advice.NONE),
        (XidClass.RECORD, Advice.RESTART_APP),
        (XidClass.WARNING, Advice.OBSERVE),
    }
    warnings = {rule.sub_code for rule in NVLINK5_RULES if rule.klass is XidClass.WARNING}
    assert warnings == {38, 40}  # fatal to a link, and yet the vendor does nothing: software's, and the host's


@pytest.mark.parametrize(
    ("version", "number"),
    [("575.51.02", 575), ("570.86.15", 570), (" 580.65.06\n", 580), ("", None), ("575", None), ("N/A", None), ("9" * 40 + ".1", None)],
)  # fmt: skip
def test_the_branch_of_a_driver(version: str, number: int | None) -> None:
    assert branch(version) == number


@pytest.mark.parametrize(
    "text",
    [
        "", "NETIR Fatal", "NETIR Fatal XC0 i0 Link 00", "NETIR Fatal XC0 i0 Link 00 (0x1)", "netir Fatal XC0 i0 Link 00 (0x1 0x2)",
        "NETIR Deadly XC0 i0 Link 00 (0x1 0x2)", "NETIR Fatal XC0 i0 Link 00 (0x123456789 0x2)", "x NETIR Fatal XC0 i0 Link 00 (0x1 0x2)",
    ],
)  # fmt: skip
def test_a_line_of_another_form_is_not_read(text: str) -> None:
    assert nvlink5_line(text) is None


@settings(deadline=None, max_examples=200)
@given(
    rule=st.sampled_from(NVLINK5_RULES),
    info=st.integers(0, 2**32 - 1),
    own=st.booleans(),
    driver=st.sampled_from([BEFORE, SINCE, None]),
)
def test_the_sign_of_a_line_decodes_as_the_line_does(rule: Nvlink5Rule, info: int, own: bool, driver: int | None) -> None:  # fmt: skip
    read = replace(line(rule, driver or SINCE, fatal=True), info=word(rule, driver or SINCE) if own else info)
    again = nvlink5_sign(read.sign)
    assert again is not None
    assert again.fatal
    assert decode(rule.xid, again, driver) == decode(rule.xid, read, driver)


@settings(deadline=None, max_examples=100)
@given(text=st.text(max_size=600))
def test_no_text_stalls_or_breaks_the_reading(text: str) -> None:
    for read in (nvlink5_line(text), nvlink5_sign(text), nvlink5_line(f"NETIR Fatal XC0 i0 Link 00 (0x{text}")):
        assert read is None or nvlink5_sign(read.sign)
