"""Only what the kernel wrote by itself becomes an event: not what a process wrote, nor what a packet filter's rule writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuwarden_collectors.event_facts import XidEvent
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.kernel_log.belief import disbelieved
from gpuwarden_collectors.kernel_log.lines import Record, event_of, parse_record
from support import packet_filter
from support.disposable import kernel_log_writer
from support.kernel_log import following
from support.waiting import until

DATA = Path(__file__).parents[1] / "data" / "kernel_log"
SLOT = "0000:17:00"
FORGED = (
    f"NVRM: Xid (PCI:{SLOT}): 79, ",
    f"NVRM: Xid (PCI:{SLOT}): 95, pid=1, name=IN= OUT=lo, x, ",
    f"NVRM: Xid (PCI:{SLOT}): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
    f"NVRM: GPU {SLOT}.0: GPU has fallen off the bus",
    f"nvidia-nvswitch0: SXid (PCI:{SLOT}.0): 20034, Fatal, Link 30 IN= OUT=, ",
    f"pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: {SLOT}.0",
    "watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [x:1]",
    "watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [",
    "mlx5_core 0000:03:00.0: synd 0x8: unrecoverable hardware error",
    "oom-kill:constraint=CONSTRAINT_NONE,nodemask=x,global_oom,task_memcg=/slurm/uid_1/job_7,task=a,pid=1,uid=1",
)
"""Texts of log rules, each with the form of an event; nft takes 127 characters, iptables 29."""


def samples(name: str) -> list[str]:
    lines = (DATA / name).read_text(encoding="utf-8").split("\n")
    return [line for line in lines if line and not line.startswith("#")]


TAILS = samples("packet_filter.txt")
GENUINE = [
    line
    for name in ("xid", "fallen_off_the_bus", "sxid", "aer", "reset", "other", "oom")
    for line in samples(f"{name}.txt")
]
NAMES = (
    ", IN= OUT= AB=", "IN= OUT= ", "IN= OUT=", "IN= OUT=lo A=B", "IN=a, OUT=b, C=", "IN= OUT= PHYSIN", "IN= OUT= MAC so", "a IN= OUT=, ",
    "IN=\nOUT=", "\nIN= OUT=\n", "IN= OUT= \\, x", "IN= OUT= SRC=", "IN= OUT=, MAC", "IN= OUT= ARP ",
)  # fmt: skip


def reason(text: str, facility: int = 0) -> str:
    record = Record(facility, 4, 1, 1, text)
    assert event_of(record, Stamp(1.0, 1.0), "boot") is not None, "it has not even the form of an event"
    return disbelieved(record, {0})


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("forged", FORGED)
def test_a_text_of_a_packet_filters_rule_is_disbelieved(forged: str, tail: str) -> None:
    record = parse_record(tail.replace("@", forged).encode())
    assert record is not None
    assert reason(record.text) == "packet_filter"


@pytest.mark.parametrize("line", GENUINE)
def test_a_genuine_line_is_believed(line: str) -> None:
    record = parse_record(line.encode())
    assert record is not None
    assert disbelieved(record, {0}) == ""


@pytest.mark.parametrize("name", NAMES)
def test_no_name_of_a_process_makes_a_genuine_line_disbelieved(name: str) -> None:
    assert len(name) <= 15
    assert reason(f"NVRM: Xid (PCI:{SLOT}): 31, pid=5, name={name}, Ch 00000008, intr 00000000.") == ""
    assert reason(f"NVRM: Xid (PCI:{SLOT}): 43, pid='5', name={name}, Ch 00000008") == ""
    assert reason(f"watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [{name}:4711]") == ""
    assert (
        reason(f"oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),global_oom,task_memcg=/,task={name},pid=1,uid=1")
        == ""
    )


@settings(deadline=None)
@given(st.text(alphabet=st.sampled_from(list("INOUTPHYSRC=MA ource,b \n\t")), max_size=15))
@example("IN= OUT= PHYSIN")
@example("IN= OUT= SRC= ")
def test_no_name_at_all_does(name: str) -> None:
    assert reason(f"NVRM: Xid (PCI:{SLOT}): 31, pid=5, name={name}, Ch 00000008, intr 00000000.") == ""
    assert reason(f"watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [{name}:4711]") == ""
    assert (
        reason(f"oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),global_oom,task_memcg=/,task={name},pid=1,uid=1")
        == ""
    )


@pytest.mark.parametrize("facility", [1, 3, 23])
def test_a_line_of_another_facility_than_the_kernels_is_disbelieved(facility: int) -> None:
    assert reason(f"NVRM: Xid (PCI:{SLOT}): 79, GPU has fallen off the bus.", facility) == "facility"


async def test_disbelieved_lines_become_no_events_are_counted_and_leave_no_gap(tmp_path: Path) -> None:
    kmsg = tmp_path / "kmsg"
    xid = f"NVRM: Xid (PCI:{SLOT}): 95, x"
    kmsg.write_text(
        f"12,1,1,-;{xid}\n"
        f"28,2,2,-;nothing that counts\n"
        f"4,3,3,-;{xid} IN= OUT=lo SRC=127.0.0.1 DST=127.0.0.1 \n"
        f"4,4,4,-;[UFW BLOCK] IN= OUT=lo SRC=127.0.0.1 DST=127.0.0.1 \n"
        f"4,5,5,-;{xid}\n"
    )
    async with following(kmsg) as (log, received):
        await until(lambda: log.records == 5)
        assert (received.sequences(), received.gaps()) == ([5], [])
        assert log.disbelieved == {"facility": 1, "packet_filter": 1}


# --- on the kernel log of a host that may be spoilt


@pytest.mark.disposable
async def test_what_root_writes_to_the_real_kernel_log_is_disbelieved() -> None:
    async with following(Path("/dev/kmsg")) as (log, received):
        await until(lambda: log.complete or log.gaps > 0)
        before, events = log.disbelieved["facility"], len(received.events)
        with kernel_log_writer() as write:
            write(f"<4>NVRM: Xid (PCI:{SLOT}): 79, GPU has fallen off the bus.")
            await until(lambda: log.disbelieved["facility"] > before)
        assert not [e for e in received.events[events:] if isinstance(e, XidEvent) and e.slot == f"{SLOT}.0"]


@pytest.mark.disposable
@pytest.mark.parametrize("command", ["iptables-legacy", "nft"])
async def test_what_a_real_log_rule_prints_is_disbelieved(command: str) -> None:
    packet_filter.require(command)
    short = [
        text for text in (f"NVRM: Xid (PCI:{SLOT}): 79,", *FORGED) if len(text) <= packet_filter.PREFIX_MOST[command]
    ]
    with kernel_log_writer(), packet_filter.logging_allowed():
        async with following(Path("/dev/kmsg")) as (log, received):
            await until(lambda: log.complete or log.gaps > 0)
            before, events = log.disbelieved["packet_filter"], len(received.events)
            for text in short:
                packet_filter.log_a_packet(command, text)
            await until(lambda: log.disbelieved["packet_filter"] >= before + len(short))
            assert not [e for e in received.events[events:] if SLOT in getattr(e, "slot", "")]
