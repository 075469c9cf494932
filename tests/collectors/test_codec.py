"""Facts as JSON and back."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import typing
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_collectors.codec import CodecError, from_wire, to_wire
from gpuwarden_collectors.event_facts import HostEvent, LogGap, LogOrigin, Source, SxidEvent, XidEvent
from gpuwarden_collectors.facts import GpuAnswer, GpuFacts, LinkFacts, NvmlFacts, NvmlProblem, Stamp
from gpuwarden_collectors.gpu_readings import GpuReadings
from gpuwarden_collectors.pci_facts import PciDevice, PciFacts

AT = Stamp(12.5, 1_700_000_000.0)


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of an annotation, every field given."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return st.builds(kind, **{field.name: values(hints[field.name]) for field in dataclasses.fields(kind)})  # type: ignore[arg-type]  # a class, not an instance
    if typing.get_origin(kind) is tuple:
        return st.lists(values(typing.get_args(kind)[0]), max_size=3).map(tuple)
    if typing.get_origin(kind) is Mapping:
        return st.dictionaries(st.text(max_size=8), values(typing.get_args(kind)[1]), max_size=3)
    if arguments := typing.get_args(kind):
        return st.one_of(*map(values, arguments))
    return st.floats(allow_nan=False) if kind is float else st.from_type(kind)


@pytest.mark.slow
@given(values(NvmlFacts) | values(PciFacts) | values(LogOrigin))
def test_facts_come_back_as_they_were(facts: Any) -> None:
    assert from_wire(type(facts), json.loads(json.dumps(to_wire(facts)))) == facts


@given(values(HostEvent))
def test_events_come_back_as_what_they_were(event: HostEvent) -> None:
    back = from_wire(HostEvent, json.loads(json.dumps(to_wire(event, HostEvent))))
    assert (type(back), back) == (type(event), event)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["gpus", "at", "type", "slot", "index"]), inner),
)


@pytest.mark.slow
@given(JSON)
def test_other_json_is_facts_or_a_codec_error_and_nothing_else(data: Any) -> None:
    for kind in (NvmlFacts, PciFacts, XidEvent):
        with contextlib.suppress(CodecError):
            assert type(from_wire(kind, data)) is kind


def test_what_has_its_default_is_left_out() -> None:
    gpu = GpuFacts(slot="0000:4e:00.0", index=0, readings=GpuReadings(temperature=40), answer=GpuAnswer.LOST)
    assert to_wire(NvmlFacts(gpus=(gpu,), problem=NvmlProblem.OTHER)) == {
        "gpus": [{"slot": "0000:4e:00.0", "index": 0, "answer": "lost", "readings": {"temperature": 40}}],
        "problem": "other",
    }


def test_an_event_carries_the_name_of_its_class() -> None:
    event = XidEvent(at=AT, source=Source.NVML, slot="", xid=79)
    wire = {"type": "XidEvent", "at": {"boottime": 12.5, "wall": 1.7e9}, "source": "nvml", "slot": "", "xid": 79}
    assert to_wire(event, HostEvent) == wire
    assert to_wire(event) == {key: wire[key] for key in wire if key != "type"}


def test_none_without_a_default_is_left_out_and_comes_back() -> None:
    event = SxidEvent(at=AT, slot="", sxid=1, fatal=None)
    assert "fatal" not in to_wire(event)
    assert from_wire(SxidEvent, to_wire(event)) == event


def test_keys_of_a_newer_writer_are_ignored() -> None:
    assert from_wire(LinkFacts, {"link": 3, "colour": "green"}) == LinkFacts(link=3)


@dataclasses.dataclass(frozen=True)
class Choosing:
    choice: typing.Literal["", "a", "b"]


@pytest.mark.parametrize("choice", ["", "a", "b"])
def test_a_choice_of_texts_is_a_text(choice: typing.Literal["", "a", "b"]) -> None:
    assert to_wire(Choosing(choice)) == {"choice": choice}
    assert from_wire(Choosing, {"choice": choice}) == Choosing(choice)


def test_a_whole_number_serves_as_a_float() -> None:
    speed = from_wire(PciDevice, {"slot": "", "kind": "gpu", "device_id": 1, "speed": 16}).speed
    assert (speed, type(speed)) == (16.0, float)
    assert from_wire(LogGap, {"at": {"boottime": 1, "wall": 2}, "lost": 0}) == LogGap(at=Stamp(1.0, 2.0), lost=0)


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        (NvmlFacts, None, "expected an object (NvmlFacts), found NoneType None"),
        (NvmlFacts, {"gpus": {}}, "gpus: expected list, found dict {}"),
        (NvmlFacts, {"gpus": [{"index": 0}]}, "gpus[0]: slot is missing"),
        (
            NvmlFacts,
            {"gpus": [{"slot": "", "index": 0}, {"slot": "", "index": 1, "readings": {"temperature": "hot"}}]},
            "gpus[1].readings.temperature: expected int, found str 'hot'",
        ),
        (LinkFacts, {"link": True}, "link: expected int, found bool True"),
        (LinkFacts, {"link": 1.0}, "link: expected int, found float 1.0"),
        (LinkFacts, {"link": 1, "active": 1}, "active: expected bool, found int 1"),
        (LinkFacts, {"link": None}, "link: expected int, found NoneType None"),
        (PciDevice, {"kind": "toaster"}, "kind: expected one of gpu, switch, other, found str 'toaster'"),
        (PciDevice, {"kind": ["gpu"]}, "kind: expected one of gpu, switch, other, found list ['gpu']"),
        (Choosing, {"choice": "c"}, "choice: expected one of a, b, found str 'c'"),
        (Choosing, {"choice": 1}, "choice: expected one of a, b, found int 1"),
        (Stamp, {"boottime": 10**400}, "boottime: expected float, found int 100000000000000000...0000000000000000000"),
        (Stamp, {"boottime": "x" * 10_000}, "boottime: expected float, found str 'xxxxxxxxxxxx...xxxxxxxxxxxxx'"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_its_path(kind: type, data: object, message: str) -> None:
    with pytest.raises(CodecError) as raised:
        from_wire(kind, data)
    assert str(raised.value) == message


@pytest.mark.parametrize("data", [None, {}, {"type": "Meteor"}, {"type": ["XidEvent"]}])
def test_an_event_of_no_known_class_is_refused(data: object) -> None:
    with pytest.raises(CodecError, match="expected an object whose type is one of XidEvent, SxidEvent"):
        from_wire(HostEvent, data)


@dataclasses.dataclass(frozen=True)
class Shelf:
    books: dict[str, int]


class Plain:
    pass


@pytest.mark.parametrize("kind", [Shelf, Plain, dict[str, int], tuple[int, int]])
def test_a_class_that_has_no_json_form_is_a_programming_error(kind: Any) -> None:
    with pytest.raises(TypeError):
        from_wire(kind, {})
