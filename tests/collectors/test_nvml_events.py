"""Xids out of NVML's event set, while GPUs come and go and the library fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuwarden_collectors.base import host_clock
from gpuwarden_collectors.event_facts import Source, XidEvent
from gpuwarden_collectors.nvml.library import Code
from support.nvml_nodes import Node, node_in
from support.quick import first_quick

PATIENCE = 60.0


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    with node_in(tmp_path, monkeypatch) as node:
        yield node


@contextmanager
def following(node: Node, emit: Callable[[XidEvent], None]) -> Iterator[None]:
    """The event thread at work; it must end soon after `stop`, whatever became of it."""
    stop = threading.Event()
    thread = threading.Thread(target=node.reader.events, args=(emit, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def wait_for_xid(node: Node, events: list[XidEvent], gpu: int, xid: int) -> XidEvent:
    """Events from before the registration are lost, so it is repeated until it is seen."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        node.fake.xid(gpu, xid)
        time.sleep(0.05)
        for event in events:
            if event.xid == xid:
                return event
    raise AssertionError(f"Xid {xid} was not delivered")


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, "it was not in time"
        time.sleep(0.01)


def test_an_xid_names_its_gpu_and_time(node: Node) -> None:
    node.reader.connect()
    slots = [gpu.slot for gpu in node.read().gpus]
    events: list[XidEvent] = []
    before = host_clock()
    with following(node, events.append):
        event = wait_for_xid(node, events, 5, 79)
    assert (event.source, event.slot, event.xid, event.pid) == (Source.NVML, slots[5], 79, None)
    assert event.gpu_instance is event.compute_instance is None
    assert before <= event.at <= host_clock()


def test_xids_arrive_in_order_and_name_their_mig_instance(node: Node) -> None:
    node.reader.connect()
    node.read()
    events: list[XidEvent] = []
    with following(node, events.append):
        wait_for_xid(node, events, 0, 1)
        events.clear()
        node.fake.xid(3, 94, (2, 1)).xid(4, 31).xid(3, 154)
        wait_for(lambda: len(events) >= 3)
    assert [event.xid for event in events] == [94, 31, 154]
    assert (events[0].gpu_instance, events[0].compute_instance) == (2, 1)


def test_an_xid_that_nvml_cannot_read_is_marked(node: Node) -> None:
    node.reader.connect()
    node.read()
    events: list[XidEvent] = []
    with following(node, events.append):
        assert "did not know" in wait_for_xid(node, events, 0, 999).text


def test_events_wait_for_the_first_pass(node: Node) -> None:
    events: list[XidEvent] = []
    with following(node, events.append):
        node.reader.connect()
        node.read()
        wait_for_xid(node, events, 1, 63)


def test_events_go_on_when_the_gpus_change(node: Node) -> None:
    node.fake.vanish(2)
    node.reader.connect()
    node.read()
    events: list[XidEvent] = []
    with following(node, events.append):
        wait_for_xid(node, events, 1, 63)
        node.fake.clear()
        slots = [gpu.slot for gpu in node.read().gpus]
        assert wait_for_xid(node, events, 2, 64).slot == slots[2]


def test_events_of_a_lost_gpu_are_received_again_when_it_is_back(node: Node) -> None:
    node.reader.connect()
    slot = node.gpu(2).slot
    node.fake.lost(2)
    node.reader.connect()
    node.read()
    events: list[XidEvent] = []
    with following(node, events.append):
        wait_for_xid(node, events, 1, 63)
        node.fake.clear()
        node.read()
        assert wait_for_xid(node, events, 2, 64).slot == slot


def test_a_gpu_without_events_does_not_silence_the_others(node: Node) -> None:
    node.fake.error(0, "nvmlDeviceRegisterEvents", Code.GPU_IS_LOST).error(
        1, "nvmlDeviceRegisterEvents", Code.NOT_SUPPORTED
    )
    node.reader.connect()
    node.read()
    events: list[XidEvent] = []
    with following(node, events.append):
        wait_for_xid(node, events, 2, 48)


@pytest.mark.parametrize("call", first_quick(1, ["nvmlEventSetWait_v2", "nvmlEventSetCreate", "nvmlEventSetFree"]))
def test_events_go_on_after_an_error(node: Node, call: str) -> None:
    node.reader.connect()
    node.read()
    struck = [node.fake.control.with_name("control.1")]
    node.fake.error("*", call, Code.UNKNOWN, once=True)
    if call == "nvmlEventSetFree":  # a set is freed early only after another error
        struck.append(node.fake.control.with_name("control.2"))
        node.fake.error("*", "nvmlEventSetWait_v2", Code.UNKNOWN, once=True)
    events: list[XidEvent] = []
    with following(node, events.append):
        wait_for(lambda: all(file.exists() for file in struck))
        wait_for_xid(node, events, 2, 48)


def test_events_go_on_after_the_driver_was_gone(node: Node) -> None:
    node.reader.connect()
    node.read()
    events: list[XidEvent] = []
    with following(node, events.append):
        wait_for_xid(node, events, 0, 63)
        node.fake.init_error(Code.DRIVER_NOT_LOADED).error("*", "nvmlDeviceGetCount_v2", Code.UNKNOWN)
        assert node.read().problem is not None
        node.fake.clear()
        node.read()
        wait_for_xid(node, events, 0, 64)


def test_a_listener_that_fails_does_not_end_the_events(node: Node) -> None:
    node.reader.connect()
    node.read()
    events: list[XidEvent] = []

    def emit(event: XidEvent) -> None:
        events.append(event)
        if len(events) == 1:
            raise OSError("the first one is not taken")

    with following(node, emit):
        wait_for_xid(node, events, 0, 63)
        wait_for_xid(node, events, 0, 64)


def test_reading_and_events_do_not_wait_for_each_other(node: Node) -> None:
    node.reader.connect()
    node.read()
    events: list[XidEvent] = []
    with following(node, events.append):
        wait_for_xid(node, events, 0, 63)
        for _ in range(50):
            assert len(node.read().gpus) == 8
        wait_for_xid(node, events, 0, 64)
