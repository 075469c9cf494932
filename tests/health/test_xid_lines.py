"""What the line of an Xid contains beyond its number."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.health.nvlink.nvlink5 import nvlink5_sign
from gpuwarden.health.xid.bursts import SIGN_MAX
from gpuwarden.health.xid.lines import followed, recovery_action, sign
from gpuwarden_collectors.event_facts import Source, XidEvent
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.kernel_log.lines import event_of, parse_record

DATA = Path(__file__).parents[1] / "data" / "kernel_log"


def line(xid: int, text: str, *, pid: int | None = None, source: Source = Source.KERNEL_LOG) -> XidEvent:
    return XidEvent(at=Stamp(1.0, 1.0), source=source, slot="0000:4e:00.0", xid=xid, text=text, pid=pid)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (line(13, "Graphics SM Warp Exception on (GPC 7, TPC 3, SM 0): Illegal Instruction Parameter"), "GPC 7 TPC 3"),
        (line(13, "Graphics Exception: ESR 0x504730=0x20009"), ""),
        (line(31, "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_8 faulted @ 0x73ac_1c000000."), "T1_8"),
        (line(31, "Ch 8, intr 0. MMU Fault: ENGINE GRAPHICS GPC2 GPCCLIENT_T1_3 faulted @ 0x7f_0."), "GPC 2 T1_3"),
        (line(31, "Ch 8, intr 0. MMU Fault: ENGINE CE3 HUBCLIENT_CE1 faulted @ 0x7f_0."), ""),
        (line(45, "Ch 00000001 caused by previous Xid 149"), "after 149"),
        (line(45, "Ch 00000008", pid=5), "process"),
        (line(45, "Ch 00000008"), "unnamed"),
        (line(94, "Contained: GSP (0x0, 0x0). RST: Yes, D-RST: No"), "reset"),
        (line(94, "Contained: SM (0x1). RST: No, D-RST: No"), ""),
        (line(94, "Contained: FB (0x1, 0x0). RST: No, D-RST: Yes"), ""),
        (line(95, "Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No"), ""),
        (line(160, "Marking Channel 3 in FBPA 2 along with its pair for repair. Perform node reboot to activate repair."), "reboot"),
        (line(160, "Marking Channel 0 in FBPA 12 along with its pair for repair. Perform GPU reset to activate repair."), ""),
        (line(154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"), "to 2"),
        (line(154, "GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)"), "to 0"),
        (line(154, "something else"), "unreadable"),
        (line(149, "something else"), "unreadable"),
        (line(79, "GPU has fallen off the bus."), ""),
        (line(154, "GPU recovery action changed from 0x0 (None) to 0x2 (x)", source=Source.NVML), ""),
        (line(149, "Xid 149, as DCGM saw it (field 230)", source=Source.DCGM), ""),
        (line(45, "", source=Source.NVML), ""),
    ],
)  # fmt: skip
def test_the_sign_of_a_line(event: XidEvent, expected: str) -> None:
    assert sign(event) == expected


def test_every_recorded_line_of_nvlink5_can_be_read() -> None:
    read = 0
    for raw in (DATA / "xid.txt").read_bytes().splitlines():
        record = parse_record(raw)
        event = event_of(record, Stamp(1.0, 1.0), "boot") if record else None
        if isinstance(event, XidEvent) and 144 <= event.xid <= 150:
            assert nvlink5_sign(sign(event)) is not None
            read += 1
    assert read == 3


def test_a_sign_can_be_read_back() -> None:
    assert (recovery_action("to 12"), recovery_action("unreadable"), recovery_action("")) == (12, None, None)
    assert (followed("after 31"), followed("process"), followed("")) == ("31", "", "")


@settings(deadline=None, max_examples=150)
@given(xid=st.sampled_from([13, 31, 45, 79, 94, 147, 154, 160]), text=st.text(max_size=512))
@pytest.mark.parametrize(
    "front", ["", "MMU Fault: ENGINE GRAPHICS GPC1 GPCCLIENT_", "GPU recovery action changed from 0x"]
)
def test_no_text_makes_a_sign_that_is_long_or_spans_lines(front: str, xid: int, text: str) -> None:  # fmt: skip
    signature = sign(line(xid, front + text))
    assert len(signature) <= SIGN_MAX
    assert signature.isprintable()
