"""The text beside an exclusion: whatever goes in, one short line comes out, and it is recognised as gpuwarden's own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.health.model import NODE, Advice, Health, gpu
from gpuwarden.policy import reasons
from gpuwarden.policy.model import Why
from support.snapshots import finding, gpu_verdict, slot

texts = st.one_of(st.text(max_size=300), st.text(alphabet=' :"|\n\r\t\\[]{}=;é€𝛀\u202e\udcff', max_size=5_000))
appended = st.sampled_from(["", " : Not responding", " : reboot issued : Node unexpectedly rebooted"])
GPUS = {slot(n): gpu_verdict(n) for n in range(8)}


def sound(text: str) -> bool:
    return (
        text.startswith("gpuwarden: ") and text.isprintable() and len(text.encode()) <= reasons.LONGEST
        and " : " not in text and not set(text) & set('"|\\`[]') and text == text.strip()
    )  # fmt: skip


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(by=texts, text=texts, suffix=appended)
def test_an_operator_s_reason_is_one_safe_line_and_comes_back_with_whatever_the_scheduler_added(
    by: str, text: str, suffix: str
) -> None:
    written = reasons.operator(by, text)
    assert sound(written)
    read = reasons.parse(f'"{written}{suffix}"')
    assert read is not None
    assert (read.why, read.text, read.suffix) == (Why.OPERATOR, written, suffix.removeprefix(" : "))


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(boot=st.one_of(st.uuids().map(str), texts), instance=texts, suffix=appended)
def test_a_termination_names_boot_and_instance_and_they_come_back(boot: str, instance: str, suffix: str) -> None:
    written = reasons.termination(boot, instance)
    assert sound(written)
    read = reasons.parse(written + suffix)
    assert read is not None
    assert (read.why, read.text) == (Why.TERMINATION, written)
    assert read.boot == reasons.boot_name(boot)
    name = reasons.instance_name(instance)
    assert read.instance == ("" if name == "unknown" else name)


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(details=st.lists(st.tuples(st.integers(0, 9), texts, texts), min_size=1, max_size=20))
def test_a_failure_s_reason_fits_whatever_was_found(details: list[tuple[int, str, str]]) -> None:
    findings = [finding(code, gpu(slot(n)), detail=detail) for n, code, detail in details]
    written = reasons.failure(findings, GPUS)
    assert sound(written)
    read = reasons.parse(written)
    assert read is not None
    assert (read.why, read.text) == (Why.FAILURE, written)


def test_a_failure_reason_lists_each_gpu_with_its_faults() -> None:
    findings = [
        finding("xid", gpu(slot(3)), detail="79"), finding("gpu_missing", gpu(slot(3))),
        finding("row_remap_failed", gpu(slot(5))), finding("driver_unresponsive", NODE),
    ]  # fmt: skip
    expected = "gpuwarden: failure gpu=3 xid=79 gpu_missing gpu=5 row_remap_failed driver_unresponsive"
    assert reasons.failure(findings, GPUS) == expected
    unlisted = {slot(3): replace(gpu_verdict(3, Health.FAILURE), index=None)}
    fallen = replace(findings[0], advice=Advice.REBOOT)
    assert reasons.failure([fallen], unlisted) == "gpuwarden: failure gpu=0000:51:00.0 xid=79 - power-cycle the machine"


def test_a_failure_reason_names_the_nvlink_domain_and_it_comes_back() -> None:
    findings = [finding("xid", gpu(slot(3)), detail="79")]
    written = reasons.failure(findings, GPUS, "8f3c6a1e.0")
    assert written.startswith("gpuwarden: failure domain=8f3c6a1e.0 gpu=3 xid=79")
    read = reasons.parse(f"{written} : not responding")
    assert read is not None
    assert (read.why, read.domain) == (Why.FAILURE, "8f3c6a1e.0")
    for other in (reasons.failure(findings, GPUS), reasons.operator("al", "domain=x.0"), reasons.unknown(["nvml"])):
        parsed = reasons.parse(other)
        assert parsed is not None
        assert parsed.domain == ""


def test_a_domain_counts_only_where_gpuwarden_writes_it_and_not_in_what_somebody_appends() -> None:
    for text, domain in {
        "gpuwarden: failure domain=8f3c6a1e.0 gpu=3 plugin_x=1 - set domain=zzz in BIOS": "8f3c6a1e.0",
        "gpuwarden: failure gpu=3 plugin_x=1 - set domain=zzz in BIOS": "",
        "gpuwarden: failure gpu=3 xid=79, see domain=zzz": "",
        "gpuwarden: failure": "",
    }.items():
        read = reasons.parse(text)
        assert read is not None
        assert read.domain == domain


def test_an_unknown_health_is_known_again_with_and_without_a_domain() -> None:
    findings = [finding("xid", gpu(slot(3)), detail="79")]
    for text, unknown in {
        reasons.unknown(["nvml_not_answering"]): True,
        reasons.unknown(["nvml_not_answering"], "8f3c6a1e.0"): True,
        reasons.failure(findings, GPUS, "8f3c6a1e.0"): False,
        "gpuwarden: failure gpu=3 plugin_x=1 - unknown=what": False,
        reasons.operator("al", "unknown=x"): False,
    }.items():
        read = reasons.parse(text)
        assert read is not None
        assert read.unknown is unknown


def test_what_to_do_stands_in_the_reason_if_it_is_one_thing_and_fits() -> None:
    gone, again = (finding("gpu_missing", gpu(slot(n))) for n in (3, 5))
    assert reasons.failure([gone], GPUS) == "gpuwarden: failure gpu=3 gpu_missing - power-cycle the machine"
    both = "gpuwarden: failure gpu=3 gpu_missing gpu=5 gpu_missing - power-cycle the machine"
    assert reasons.failure([gone, again], GPUS) == both
    other = finding("driver_unresponsive", NODE)
    assert reasons.failure([gone, other], GPUS) == "gpuwarden: failure gpu=3 gpu_missing driver_unresponsive"
    many = [finding("gpu_missing", gpu(slot(n))) for n in range(7)]
    assert "power-cycle" not in reasons.failure(many, GPUS)
    read = reasons.parse(both)
    assert read is not None
    assert read.text == both


def test_what_does_not_fit_is_counted() -> None:
    findings = [finding("nvlink_errors", gpu(slot(n)), detail="crc") for n in range(8)]
    assert reasons.failure(findings, GPUS).endswith("gpu=3 nvlink_errors=crc +4")


@pytest.mark.parametrize(
    "text",
    [
        "", "gpuwarden", "gpuwarden:", "gpuwarden: ", "gpuwarden: check this node", "gpuwarden: failures", "gpuwarden:failure",
        "GPUWARDEN: failure gpu=3", "see gpuwarden: failure gpu=3 xid=79", "Not responding", "Kill task failed",
    ],
)  # fmt: skip
def test_reasons_written_by_others_are_foreign(text: str) -> None:
    assert reasons.parse(text) is None


def test_text_that_somebody_appended_by_hand_is_no_longer_the_text_that_we_wrote() -> None:
    read = reasons.parse("gpuwarden: failure gpu=3 xid=79, looked at by alice")
    assert read is not None
    assert read.text != "gpuwarden: failure gpu=3 xid=79"
