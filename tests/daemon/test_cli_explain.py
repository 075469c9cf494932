"""`explain`: every code that status can show has words."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwarden.cli.explain import explanation
from gpuwarden.cli.parser import CommandError
from gpuwarden.cli.words import UNKNOWN_REASONS
from gpuwarden.health.conditions import CONDITIONS
from gpuwarden.health.sxid_catalogue import SXIDS
from gpuwarden.health.xid_catalogue import XIDS
from support.commands import gpuwarden


def explained(what: str) -> str:
    return "\n".join(explanation(what))


@pytest.mark.parametrize("what", ["xid 79", "79", "Xid79", "xid.79", "xid.79@gpu/0000:4e:00.0", " XID 79 "])
def test_an_xid_may_be_written_in_each_way_that_it_is_met(what: str) -> None:
    told = explained(what)
    assert told.startswith("Xid 79: GPU has fallen off the bus\n  class:           failure")
    assert "to do:           drain the node and reboot it" in told
    assert "from:            NVIDIA Xid catalogue" in told


def test_an_xid_that_nobody_described_is_a_warning_and_said_to_be_unknown() -> None:
    assert "not described" in explained("xid 99999")
    assert "warning" in explained("xid 99999")


def test_an_sxid_says_whether_it_is_fatal() -> None:
    assert explained("sxid 20034").startswith("SXid 20034: Link: fault, the link went down\n  class:           fatal")
    assert "not fatal" in explained("sxid.20001@switch/0000:05:00.0")


def test_a_condition_tells_what_raises_it_ends_it_and_silences_it() -> None:
    told = explained("pcie_link_degraded@gpu/0000:4e:00.0")
    assert "raised:          after it was seen for 4m" in told
    assert "ends when:       it is no longer seen, for 1m" in told
    assert "quiet during:    driver_unresponsive, driver_not_loaded, gpu_missing" in told


@pytest.mark.parametrize("code", [*CONDITIONS, *UNKNOWN_REASONS])
def test_every_code_of_status_can_be_explained(code: str) -> None:
    assert explained(code).startswith(code)


def test_every_xid_and_sxid_can_be_explained() -> None:
    for number in XIDS:
        assert "to do:" in explained(f"xid {number}")
    for number in SXIDS:
        assert "class:" in explained(f"sxid {number}")


def test_alone_it_lists_what_there_is(tmp_path: Path) -> None:
    done = gpuwarden("explain", temporary=tmp_path)
    assert done.returncode == 0
    assert all(f"\n{code} " in f"\n{done.stdout}" for code in CONDITIONS)


@pytest.mark.parametrize(
    ("what", "hint"),
    [
        ("gpu_mising", "did you mean gpu_missing"),
        ("ecc", "did you mean ecc_uncorrectable or ecc_correctable_rate?"),
        ("qqq", "'gpuwarden explain' lists what there is"),
        ("79.5x", "lists what there is"),
        ("9" * 5000, "lists what there is"),
    ],
)
def test_what_nobody_knows_is_bad_usage_with_a_hint(what: str, hint: str) -> None:
    with pytest.raises(CommandError) as caught:
        explained(what)
    assert hint in str(caught.value)
    assert caught.value.code == 64
