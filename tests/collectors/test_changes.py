"""What differs between two facts, as JSON, and back."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.test_codec import values
from gpuwarden_collectors.changes import applied, changed
from gpuwarden_collectors.codec import CodecError
from gpuwarden_collectors.dcgm.facts import DcgmFacts
from gpuwarden_collectors.facts import GpuAnswer, GpuFacts, LinkFacts, NvmlFacts
from gpuwarden_collectors.gpu_readings import GpuReadings


def sent(data: object) -> Any:
    return json.loads(json.dumps(data))


def changes(old: object, new: object) -> Any:
    return changed(type(new), old, new)


def with_changes(old: Any, data: object) -> Any:
    return applied(type(old), old, data)


def node(**readings: Any) -> NvmlFacts:
    all_readings = {"temperature": 40, "power_usage_mw": 100_000} | readings
    links = tuple(LinkFacts(link=number, active=True) for number in range(18))
    gpus = (
        GpuFacts(slot=f"0000:{n:02x}:00.0", index=n, links=links, readings=GpuReadings(**all_readings))
        for n in range(2)
    )
    return NvmlFacts(gpus=tuple(gpus), driver_version="580.159.04")


@pytest.mark.slow
@given(values(NvmlFacts), values(NvmlFacts))
def test_the_newer_facts_come_back(old: NvmlFacts, new: NvmlFacts) -> None:
    assert with_changes(old, sent(changes(old, new))) == new


@pytest.mark.slow
@given(values(DcgmFacts), values(DcgmFacts))
def test_those_of_dcgm_too(old: DcgmFacts, new: DcgmFacts) -> None:
    assert with_changes(old, sent(changes(old, new))) == new


def test_what_did_not_change_is_not_sent_and_stays_the_same_object() -> None:
    old, new = node(), node()
    hot = replace(new.gpus[1], readings=replace(new.gpus[1].readings, temperature=41, power_usage_mw=None))
    new = replace(new, gpus=(new.gpus[0], hot))
    wire = changes(old, new)
    assert wire == {"gpus": {"1": {"readings": {"temperature": 41, "power_usage_mw": None}}}}
    back = with_changes(old, sent(wire))
    assert back == new
    assert back.gpus[0] is old.gpus[0]
    assert back.gpus[1].links is old.gpus[1].links


def test_of_equal_facts_nothing_is_sent() -> None:
    assert changes(node(), node()) == {}


@pytest.mark.parametrize(
    "change",
    [
        {"gpus": ()},
        {"gpus": node().gpus[:1]},
        {"gpus": (replace(node().gpus[0], answer=GpuAnswer.LOST, readings=GpuReadings()), node().gpus[1])},
        {"gpus": (replace(node().gpus[0], read_at={}), replace(node().gpus[1], read_at={"energy_mj": 2.0}))},
    ],
)
def test_what_goes_is_gone(change: dict[str, Any]) -> None:
    old = replace(node(), gpus=tuple(replace(gpu, read_at={"energy_mj": 1.0, "ecc_mode": 1.0}) for gpu in node().gpus))
    new = replace(old, **change)
    assert with_changes(old, sent(changes(old, new))) == new
    assert with_changes(new, sent(changes(new, old))) == old


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(["gpus", "0", "7", "-1", "readings", "temperature", "read_at", "links"]), inner
        )
    ),
)


@pytest.mark.slow
@given(JSON)
def test_other_json_is_facts_or_a_codec_error_and_nothing_else(data: Any) -> None:
    with contextlib.suppress(CodecError):
        assert type(with_changes(node(), data)) is NvmlFacts


def test_an_error_names_the_place() -> None:
    with pytest.raises(CodecError, match=r"^gpus\[1\]\.readings\.temperature: expected int, found str 'hot'$"):
        with_changes(node(), {"gpus": {"1": {"readings": {"temperature": "hot"}}}})
