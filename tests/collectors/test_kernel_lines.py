"""One record in, at most one event out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuwarden_collectors.event_facts import (
    AerEvent,
    AerSeverity,
    GpuResetEvent,
    HostEvent,
    KernelLineEvent,
    LineKind,
    LogOrigin,
    OomKillEvent,
    Source,
    SxidEvent,
    XidEvent,
)
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.kernel_log.echoes import Echoes
from gpuwarden_collectors.kernel_log.lines import TEXT_MAX, Record, event_of, parse_record
from gpuwarden_collectors.kernel_log.lockups import WITHIN, Lockups

DATA = Path(__file__).parents[1] / "data" / "kernel_log"
AT = Stamp(100.0, 1_700_000_000.0)


def samples(name: str) -> Iterator[bytes]:
    return (line for line in (DATA / name).read_bytes().split(b"\n") if line and not line.startswith(b"#"))


def event(raw: bytes | str) -> HostEvent | None:
    record = parse_record(raw.encode() if isinstance(raw, str) else raw)
    return event_of(record, AT, "boot") if record else None


def xid(text: str) -> XidEvent:
    seen = event(f"4,1,1,-;{text}")
    assert isinstance(seen, XidEvent)
    return seen


def test_every_recorded_xid_line_is_read() -> None:
    seen = [event(raw) for raw in samples("xid.txt")]
    assert [
        (e.slot, e.xid, e.pid, e.gpu_instance, e.compute_instance, e.text[:24]) for e in seen if isinstance(e, XidEvent)
    ] == [
        ("0000:cb:00.0", 13, None, None, None, "Graphics SM Warp Excepti"),
        ("0000:cb:00.0", 109, 1797828, None, None, "Ch 00000008, errorString"),
        ("0000:00:05.0", 43, 1045242, None, None, "Ch 00000008"),
        ("0000:00:07.0", 31, 2512125, None, None, "Ch 00000008, intr 000000"),
        ("0000:00:08.0", 94, None, None, None, "Contained: SM (0x1). RST"),
        ("0000:01:00.0", 94, 7194, 5, None, "Contained: CE User Chann"),
        ("0000:01:00.0", 13, 7195, 5, 2, "Graphics SM Warp Excepti"),
        ("0000:01:00.0", 154, None, None, None, "GPU recovery action chan"),
        ("0000:dc:00.0", 45, 1818990, None, None, "Ch 00000001 caused by pr"),
        ("0000:00:00.0", 149, None, None, None, "NETIR_LINK_EVT Fatal XC0"),
        ("0019:01:00.0", 149, None, None, None, "NETIR Fatal XC0 i0 Link "),
        ("0018:01:00.0", 145, None, None, None, "RLW_RXPIPE Nonfatal XC0 "),
        ("0000:01:00.0", 79, 1122, None, None, "GPU has fallen off the b"),
        ("0000:02:00.0", 79, None, None, None, "GPU has fallen off the b"),
        ("0000:4e:00.0", 92, None, None, None, ""),
    ]
    assert not any(e.inferred for e in seen if isinstance(e, XidEvent))


def test_an_event_names_the_number_and_the_facility_of_its_line() -> None:
    raw = b"12,77,5000000,-,caller=T9;NVRM: Xid (PCI:0000:4e:00): 79, GPU has fallen off the bus.\n SUBSYSTEM=pci\n"
    record = parse_record(raw)
    assert record == Record(1, 4, 77, 5_000_000, "NVRM: Xid (PCI:0000:4e:00): 79, GPU has fallen off the bus.")
    assert event_of(record, AT, "boot", history=True) == XidEvent(
        at=AT,
        source=Source.KERNEL_LOG,
        slot="0000:4e:00.0",
        xid=79,
        text="GPU has fallen off the bus.",
        history=True,
        origin=LogOrigin(boot_id="boot", sequence=77, facility=1),
    )


def test_lines_without_a_number_are_an_inferred_xid_79() -> None:
    seen = [event(raw) for raw in samples("fallen_off_the_bus.txt")]
    assert [(e.slot, e.xid, e.inferred) for e in seen if isinstance(e, XidEvent)] == [
        ("0000:4e:00.0", 79, True),
        ("0000:01:00.0", 79, True),
        ("0000:b3:00.0", 79, True),
        ("", 79, True),
    ]


def test_sxid_lines_of_both_forms_are_read_and_register_dumps_are_not() -> None:
    seen = [event(raw) for raw in samples("sxid.txt")]
    assert seen[2] is None
    assert [(e.slot, e.sxid, e.fatal, e.link, e.severity) for e in seen if isinstance(e, SxidEvent)] == [
        ("0000:04:00.0", 22013, False, 44, None),
        ("0000:04:00.0", 22013, None, None, 0),
        ("0000:05:00.0", 20034, True, 30, None),
        ("0000:05:00.0", 12028, None, None, 1),
        ("0000:06:00.0", 10003, True, None, None),
    ]


def test_sxid_line_of_a_corrected_error_is_not_fatal() -> None:
    """The form of NVSWITCH_REPORT_CORRECTABLE_LINK_DATA (open kernel modules, error_nvswitch.h)."""
    seen = event(
        "3,1,1,-;nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12021, Correctable, Link 02 egress crossbar ECC header"
    )
    assert isinstance(seen, SxidEvent)
    assert (seen.sxid, seen.fatal, seen.link, seen.severity) == (12021, False, 2, None)


def test_aer_lines_name_the_device_that_sent_the_error_on_every_kernel() -> None:
    seen = [event(raw) for raw in samples("aer.txt")]
    fatal, nonfatal, corrected = AerSeverity.FATAL, AerSeverity.NONFATAL, AerSeverity.CORRECTED
    unrecovered = AerSeverity.UNRECOVERED
    assert [(e.slot, e.severity) if isinstance(e, AerEvent) else None for e in seen] == [
        ("0000:00:01.0", fatal),
        ("0000:00:01.0", fatal),
        None,
        ("0000:ed:01.0", fatal),
        ("0000:ed:01.0", fatal),
        ("0000:00:03.0", fatal),
        ("0000:00:03.0", fatal),
        ("0000:03:00.0", unrecovered),
        None,
        ("0000:00:00.0", corrected),
        ("0000:00:03.1", corrected),
        ("0000:02:00.0", nonfatal),
        ("0000:00:03.0", unrecovered),
        ("0000:00:03.0", unrecovered),
        ("0000:03:00.0", unrecovered),
        None,
    ]


def test_the_device_number_of_an_old_kernel_is_in_the_domain_of_its_port() -> None:
    seen = event("6,1,1,-;pcieport 0001:00:01.0: AER: Uncorrected (Fatal) error received: id=4e0b")
    assert isinstance(seen, AerEvent)
    assert seen.slot == "0001:4e:01.3"


def test_a_reset_is_done_or_given_up_and_waiting_is_neither() -> None:
    seen = [event(raw) for raw in samples("reset.txt")]
    assert [(e.slot, e.ok) if isinstance(e, GpuResetEvent) else None for e in seen] == [
        None,
        ("0000:4e:00.0", True),
        None,
        ("0000:4e:00.0", True),
        ("0000:4e:00.0", False),
        None,
    ]


def test_every_recorded_line_without_a_number_of_its_own_is_read() -> None:
    seen = [event(raw) for raw in samples("other.txt")]
    assert [(e.what, e.slot, e.part) if isinstance(e, KernelLineEvent) else None for e in seen] == [
        (LineKind.GPU_INIT_FAILED, "0000:81:00.0", ""),
        (LineKind.GPU_INIT_FAILED, "0000:81:00.0", ""),
        (LineKind.GPU_INIT_FAILED, "0000:5d:00.0", ""),
        None,  # names no GPU; the record before it does
        (LineKind.GPU_INIT_FAILED, "0000:67:00.0", ""),
        (LineKind.GPU_RESET_ADVISED, "0000:9b:00.0", ""),
        *[(LineKind.GSP_HEARTBEAT, "", "")] * 4,
        None,
        (LineKind.SOFT_LOCKUP, "", ""),
        None,  # it may come back
        (LineKind.NVME_FAILED, "", "nvme0"),
        (LineKind.NVME_FAILED, "", "nvme1"),
        (LineKind.NVME_FOUND, "", "nvme0"),
        (LineKind.ADAPTER_TIMEOUT, "0000:03:00.0", ""),
        (LineKind.ADAPTER_SILENT, "0000:41:00.0", ""),
        (LineKind.ADAPTER_HARDWARE, "0000:41:00.0", ""),
        (LineKind.ADAPTER_RECOVERED, "0000:41:00.0", ""),
        (LineKind.ADAPTER_RECOVERED, "0000:41:00.0", ""),
        (LineKind.ADAPTER_TIMEOUT, "0000:41:00.0", ""),
        None,
        None,
        (LineKind.ADAPTER_HARDWARE, "0000:bb:00.0", ""),
        None,
        None,
        None,
        *[(LineKind.MEMORY_FAILED, "", "")] * 4,
        None,
        None,
        None,
    ]


def test_an_error_of_the_host_s_memory_names_the_process_by_its_number_alone() -> None:
    seen = [event(raw) for raw in samples("other.txt")]
    named = [(e.pid, e.text) for e in seen if isinstance(e, KernelLineEvent) and e.what is LineKind.MEMORY_FAILED]
    assert named == [
        (33395, "Memory failure: 0x1840200: Killing"),
        (None, "mce: Uncorrected hardware memory error in user-access at 1840200040"),
        (4711, "Memory failure: 0x1840200: Sending SIGBUS to"),
        (1321817, "MCE: Killing"),
    ]


LOCKUP = "watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [{name}:4711]"


def test_the_process_of_a_soft_lockup_is_not_in_its_text() -> None:
    seen = event(f"0,1,1,-;{LOCKUP.format(name='secret-project')}")
    assert isinstance(seen, KernelLineEvent)
    assert seen.text == "watchdog: BUG: soft lockup - CPU#12 stuck for 22s!"


def lockup_and(text: str, later: int = 1000) -> list[str]:
    """The modules of the lockups in a log of these two records, `later` microseconds apart."""
    lockups, modules = Lockups(), []
    for number, line in enumerate((LOCKUP.format(name="python3"), text)):
        record = Record(0, 0, number, number * later, line)
        seen = event_of(record, AT, "boot") or lockups.named(record)
        if isinstance(seen, KernelLineEvent):
            lockups.begun(seen, record)
            modules.append(seen.part)
    return modules


@pytest.mark.parametrize(
    ("text", "module"),
    [
        ("RIP: 0010:_nv012345rm+0x1a/0x40 [nvidia]", "nvidia"),
        ("RIP: 0010:uvm_va_space_destroy+0x11/0x300 [nvidia_uvm 0a1b2c]", "nvidia_uvm"),
        ("pc : mlx5_cmd_exec+0x18/0x120 [mlx5_core]", "mlx5_core"),
    ],
)
def test_a_soft_lockup_names_the_driver_that_ran(text: str, module: str) -> None:
    assert lockup_and(text) == ["", module]
    assert lockup_and(text, later=WITHIN + 1) == [""]


@pytest.mark.parametrize(
    "text",
    [
        "RIP: 0010:_raw_spin_lock+0x11/0x30",
        "RIP: 0010:nfs_lock_and_join_requests+0x11/0x300 [nfs]",
        "pc : a+0x1/0x1 [4711]: segfault at 0 ip 0 sp 0 error 4 in x[nvidia]",
        "x RIP: 0010:_nv012345rm+0x1a/0x40 [nvidia]",
    ],
)
def test_no_other_record_names_one(text: str) -> None:
    assert lockup_and(text) == [""]


def test_ordinary_lines_are_no_events_whatever_names_their_processes_have() -> None:
    assert [event(raw) for raw in samples("ordinary.txt")] == [None] * 8


@pytest.mark.parametrize(
    "text",
    [
        " NVRM: Xid (PCI:0000:4e:00): 79, GPU has fallen off the bus.",
        "\\x0aNVRM: Xid (PCI:0000:4e:00): 79, GPU has fallen off the bus.",
        "x NVRM: Xid (PCI:0000:4e:00): 79, GPU has fallen off the bus.",
        "ls[3]: NVRM: GPU 0000:4e:00.0: GPU has fallen off the bus.",
        "ls: nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
    ],
)
def test_a_message_later_in_a_line_is_no_event(text: str) -> None:
    assert event(f"4,1,1,-;{text}") is None


def test_a_process_named_like_an_xid_changes_nothing_in_the_xid_of_its_line() -> None:
    seen = xid("NVRM: Xid (PCI:0000:4e:00): 31, pid=5, name=NVRM: Xid (PCI:, Ch 00000008, intr 00000000.")
    assert (seen.slot, seen.xid, seen.pid, seen.text) == ("0000:4e:00.0", 31, 5, "Ch 00000008, intr 00000000.")


def test_the_name_of_the_process_is_not_in_the_text() -> None:
    assert xid("NVRM: Xid (PCI:0000:4e:00): 43, pid=5, name=secret-project, Ch 00000008").text == "Ch 00000008"
    assert xid("NVRM: Xid (PCI:0000:4e:00): 43, pid=5, name=secret-project").text == ""


@pytest.mark.parametrize("length", range(len("NVRM: Xid (PCI:0000:4e:00): 79")))
def test_a_line_cut_in_half_is_no_event(length: int) -> None:
    assert event("4,1,1,-;" + "NVRM: Xid (PCI:0000:4e:00): 79, GPU has fallen off the bus."[: length + 1]) is None


def test_an_xid_whose_address_means_nothing_is_an_xid_of_no_gpu() -> None:
    assert xid("NVRM: Xid (0001:00): 6, PE0001").slot == ""


def test_the_driver_may_print_its_prefix_more_than_once() -> None:
    assert xid("NVRM: NVRM: Xid (PCI:0000:4e:00): 79, GPU has fallen off the bus.").xid == 79


def test_escapes_are_decoded_and_what_cannot_be_printed_is_replaced() -> None:
    record = parse_record(rb"4,1,1,-;a\x5cb \xc3\xa9 \xff \x1b[31m \xZZ \x")
    assert record is not None
    assert record.text == "a\\b é \N{REPLACEMENT CHARACTER} \x1b[31m \\xZZ \\x"
    seen = xid(r"NVRM: Xid (PCI:0000:4e:00): 62, one\x0atwo\x1b[31m\x00")
    assert seen.text == "one two\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}"


def test_a_long_message_is_kept_to_its_beginning() -> None:
    seen = xid("NVRM: Xid (PCI:0000:4e:00): 62, " + "long " * 10_000)
    assert seen.text == ("long " * 10_000)[:TEXT_MAX]


@pytest.mark.parametrize(
    "raw", [b"", b"\n", b"4", b"4,1,1,-", b",,,;", b"-1,1,1,-;x", b"4,1,1;x", b" 4,1,1,-;x", b"\x00\xff", b"9" * 65_536]
)
def test_bytes_that_are_no_record_give_none(raw: bytes) -> None:
    assert parse_record(raw) is None


SAMPLES = [
    raw
    for name in ("xid", "fallen_off_the_bus", "sxid", "aer", "reset", "other", "oom")
    for raw in samples(f"{name}.txt")
]


def check_bounded(seen: HostEvent | None) -> None:
    if isinstance(seen, OomKillEvent):
        assert max(len(seen.group), len(seen.limit_group)) <= TEXT_MAX
        assert (seen.group + seen.limit_group).isprintable()
    elif seen is not None:
        assert isinstance(seen, (XidEvent, SxidEvent, AerEvent, GpuResetEvent, KernelLineEvent))
        assert len(seen.text) <= TEXT_MAX
        assert seen.text.isprintable()
        assert re.fullmatch(r"([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])?", seen.slot)


@settings(deadline=None)
@given(st.binary(max_size=4096))
@example(b"4,1,1,-;NVRM: " * 5000)
@example(b"4,1,1,-;" + b"NVRM: The NVIDIA GPU 0000:4e:00 " * 5000)
@example(b"4,1,1,-;" + b"a" * 65_536 + b" 0000:4e:00.0: AER: ")
@example(b"4,1,1,-;NVRM: Xid (PCI:0000:4e:00): 31, pid=1, name=" + b", name=" * 10_000)
@example(b"4,1,1,-;" + rb"\x5c" * 20_000)
def test_no_bytes_crash_or_stall_the_parser(raw: bytes) -> None:
    check_bounded(event(raw))
    check_bounded(event(b"4,1,1,-;" + raw))


@settings(deadline=None)
@given(st.sampled_from(SAMPLES), st.data())
def test_a_damaged_line_gives_a_bounded_event_or_none(raw: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(raw)))
    stop = data.draw(st.integers(start, min(len(raw), start + 8)))
    check_bounded(event(raw[:start] + data.draw(st.binary(max_size=12)) + raw[stop:]))


# --- echoes --------------------------------------------------------------------------------------------------------


def events_without_echoes(*texts: str, seconds_apart: float = 0.001) -> list[str]:
    echoes, kept = Echoes(), []
    for number, text in enumerate(texts):
        seen = event(f"4,{number},1,-;{text}")
        assert seen is not None
        if not echoes.is_echo(seen, round(number * seconds_apart * 1e6)):
            kept.append(text)
    return kept


XID_79 = "NVRM: Xid (PCI:0000:4e:00): 79, GPU has fallen off the bus."
FALLEN = "NVRM: GPU 0000:4e:00.0: GPU has fallen off the bus."
OTHER_FALLEN = "NVRM: GPU 0000:5d:00.0: GPU has fallen off the bus."
PORT = "pcieport 0000:4d:01.0: AER: Uncorrected (Fatal) error received: 0000:4e:00.0"
DETAIL = (
    "nvidia 0000:4e:00.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Inaccessible, (Unregistered Agent ID)"
)
SXID = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
SXID_SEVERITY = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Severity 1 Engine instance 30 Sub-engine instance 00"


@pytest.mark.parametrize("pair", [(XID_79, FALLEN), (PORT, DETAIL), (SXID, SXID_SEVERITY)])
def test_two_lines_of_one_error_are_one_event(pair: tuple[str, str]) -> None:
    assert events_without_echoes(*pair) == [pair[0]]
    assert events_without_echoes(*pair, *pair) == [pair[0], pair[0]]


@pytest.mark.parametrize("echo", [FALLEN, DETAIL, SXID_SEVERITY])
def test_the_second_line_alone_is_an_event(echo: str) -> None:
    assert events_without_echoes(echo) == [echo]


@pytest.mark.parametrize("pair", [(XID_79, FALLEN), (PORT, DETAIL), (SXID, SXID_SEVERITY)])
def test_the_second_line_much_later_is_an_error_of_its_own(pair: tuple[str, str]) -> None:
    assert events_without_echoes(*pair, seconds_apart=5.0) == list(pair)


def test_interleaved_lines_of_several_gpus_are_kept_apart() -> None:
    assert events_without_echoes(XID_79, OTHER_FALLEN, FALLEN) == [XID_79, OTHER_FALLEN]


def test_the_same_error_again_is_another_event() -> None:
    assert events_without_echoes(XID_79, XID_79, PORT, PORT) == [XID_79, XID_79, PORT, PORT]


def test_memory_of_first_lines_is_bounded() -> None:
    echoes = Echoes()
    for number in range(10_000):
        seen = event(f"4,{number},1,-;nvidia-nvswitch0: SXid (PCI:0000:05:00.0): {number}, Fatal, Link 1")
        assert seen is not None
        assert not echoes.is_echo(seen, number)
    assert len(echoes._first) < 1000
