"""What lines of NVSwitches come to: their content, whether they come again, and what befalls the GPUs meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gpuwarden.health.model import Health, Key, Severity, Subject
from gpuwarden.health.xid.sxid_ports import PORTS_KEPT, again, as_text, with_line, with_lines
from gpuwarden_collectors.event_facts import SxidEvent
from gpuwarden_collectors.facts import GpuAnswer, LinkFacts
from support.hosts import Host, slot
from support.quick import first_quick

W, F = Severity.WARNING, Severity.FAILURE
SWITCH = "0000:85:00.0"
PRIV = 12028
MINUTE, DAY = 60.0, 86_400.0


def line(
    host: Host, sxid: int, *, fatal: bool | None = False, link: int | None = 61, severity: int | None = None
) -> SxidEvent:
    return SxidEvent(
        at=host.now, slot=SWITCH, sxid=sxid, fatal=fatal, link=link, severity=severity, text=f"SXid {sxid}"
    )


def raised(host: Host, sxid: int = PRIV) -> Severity | None:
    """Return how bad the finding of that number is; None for no finding."""
    severities = [f.severity for f in host.findings if f.key == Key("sxid", Subject("switch", SWITCH), str(sxid))]
    return severities[0] if severities else None


@pytest.fixture
def host() -> Host:
    host = Host(8)
    host.run(30)
    return host


# --- the first line


@pytest.mark.parametrize(
    ("sxid", "fatal", "severity", "expected"),
    [
        (PRIV, False, None, W),
        (PRIV, None, 0, W),
        (PRIV, None, None, W),  # on the vendor's list of non-fatal ones
        (PRIV, True, None, F),
        (PRIV, None, 1, F),
        (11004, False, None, W),
        (19084, False, None, W),
        (20034, True, None, F),
        (20034, None, None, F),
        (20034, False, None, W),
        (20001, False, None, W),
        (20001, True, None, F),
        (22013, False, None, None),  # imbue: harmless
        (24003, None, 0, None),
        (22013, True, None, F),
        (28006, False, None, W),  # not in the table
        (28006, None, 1, F),
    ],
)
def test_the_first_line_is_judged_by_its_text_then_by_the_table(
    host: Host, sxid: int, fatal: bool | None, severity: int | None, expected: Severity | None
) -> None:
    host.step(line(host, sxid, fatal=fatal, severity=severity))
    assert raised(host, sxid) is expected


def test_nonfatal_line_warns_for_an_hour_and_ends_by_itself(host: Host) -> None:
    host.step(line(host, PRIV))
    host.run(3500, every=20)
    assert (raised(host), host.health) == (W, Health.WARNING)
    host.run(200, every=20)
    assert host.health is Health.HEALTHY


# --- again


def test_second_occasion_at_the_same_port_is_a_failure_also_over_a_restart(host: Host) -> None:
    host.step(line(host, PRIV))
    host.run(20 * MINUTE)
    host.restart_daemon()
    host.run(30)
    host.step(line(host, PRIV))
    assert raised(host) is F
    assert host.findings[0].evidence["again"] == "port 61"
    host.run(2 * 3600, every=60)
    assert host.findings[0].latched
    host.reboot()
    host.run(30)
    assert host.health is Health.HEALTHY


def test_another_port_the_same_occasion_and_another_day_are_no_repeat(host: Host) -> None:
    host.step(line(host, PRIV, link=61))
    host.run(120)
    host.step(line(host, PRIV, link=61), line(host, PRIV, link=30))
    host.run(20 * MINUTE)
    host.step(line(host, PRIV, link=12))
    assert raised(host) is W
    host.days(1.1)
    host.step(line(host, PRIV, link=61))
    assert raised(host) is W


def test_lines_that_go_on_for_minutes_are_a_repeat(host: Host) -> None:
    for _ in range(3):
        host.step(line(host, PRIV))
        host.run(60)
    assert raised(host) is W
    for _ in range(2):
        host.step(line(host, PRIV))
        host.run(60)
    assert raised(host) is F


def test_lines_that_were_written_while_the_daemon_was_away_keep_their_times(host: Host) -> None:
    early = line(host, PRIV)
    host.uptime += 1200
    host.step(early, line(host, PRIV))
    assert raised(host) is F


def test_a_repeat_after_an_acknowledgement_restarts_the_judgement(host: Host) -> None:
    host.step(line(host, PRIV))
    host.run(200)
    host.acknowledge(f"sxid.{PRIV}@switch/{SWITCH}")
    host.run(30)
    host.step(line(host, PRIV))
    assert raised(host) is W
    host.run(200)
    host.step(line(host, PRIV))
    assert raised(host) is F


def test_a_number_seen_on_healthy_hosts_warns_from_its_fifth_burst_of_a_day_on(host: Host) -> None:
    for _ in range(4):
        host.step(line(host, 22013))
        host.run(3600, every=60)
    assert host.health is Health.HEALTHY
    host.step(line(host, 22013))
    assert raised(host, 22013) is W


def test_corrected_errors_of_the_table_never_become_a_failure(host: Host) -> None:
    for _ in range(20):
        host.step(line(host, 20001))
        host.run(600, every=60)
    assert raised(host, 20001) is W


# --- what befalls a GPU


def link_goes_down(host: Host) -> None:
    facts = host.gpus[3]
    host.gpus[3] = replace(facts, links=(LinkFacts(link=0, active=False), *facts.links[1:]))


def no_answer(host: Host) -> None:
    host.answer(3, GpuAnswer.UNKNOWN)


def gone(host: Host) -> None:
    del host.gpus[3], host.devices[3]


def nvlink_xid(host: Host) -> None:
    host.step(host.xid(3, 74))


def fatal_xid(host: Host) -> None:
    host.step(host.xid(3, 119))


SUFFERINGS: list[Callable[[Host], None]] = [link_goes_down, no_answer, gone, nvlink_xid, fatal_xid]


@pytest.mark.parametrize("suffering", SUFFERINGS)
@pytest.mark.parametrize("first", [True, False], ids=["before the line", "after the line"])
def test_a_gpu_that_suffers_within_ten_minutes_makes_a_failure_of_it(
    host: Host, suffering: Callable[[Host], None], *, first: bool
) -> None:
    if first:
        suffering(host)
        host.run(300)
        host.step(line(host, PRIV))
    else:
        host.step(line(host, PRIV))
        host.run(300)
        assert raised(host) is W
        suffering(host)
        host.run(120)
    assert raised(host) is F
    assert slot(3) in str(next(f for f in host.findings if f.key.code == "sxid").evidence["with"])
    host.restart_daemon()
    host.run(60)
    assert raised(host) is F


@pytest.mark.parametrize("suffering", first_quick(2, SUFFERINGS))
def test_what_befell_a_gpu_earlier_or_later_than_that_does_not_count(
    host: Host, suffering: Callable[[Host], None]
) -> None:
    suffering(host)
    host.run(800)
    host.step(line(host, PRIV))
    host.run(30)
    assert raised(host) is W
    other = Host(8)
    other.run(30)
    other.step(line(other, PRIV))
    other.run(700)
    suffering(other)
    other.run(120)
    assert raised(other) is W


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 137])
def test_an_xid_of_the_job_that_died_is_no_suffering(host: Host, xid: int) -> None:
    host.step(host.xid(3, xid), line(host, PRIV))
    host.run(600)
    assert host.health is Health.WARNING
    assert raised(host) is W


def test_a_gpu_that_failed_before_the_boot_does_not_affect_a_line_after_it(host: Host) -> None:
    gone(host)
    host.run(60)
    host.reboot()
    host.uptime = 10_060.0
    host.step(line(host, PRIV))
    assert raised(host) is W


# --- after the loss of a GPU


def lose(host: Host) -> None:
    """Xid 79 of a GPU of which the bus cannot show whether it is there."""
    host.devices[3] = replace(host.devices[3], responds=None)
    host.step(host.xid(3, 79))


def test_fatal_lines_right_after_the_loss_of_a_gpu_are_consequences_of_it(host: Host) -> None:
    lose(host)
    host.run(12)
    host.step(line(host, 20034, fatal=True))
    assert (host.health, raised(host, 20034)) == (Health.FAILURE, W)
    sxid = next(f for f in host.findings if f.key.code == "sxid")
    assert sxid.evidence["after"] == f"xid.79@gpu/{slot(3)}"


def test_fatal_lines_before_it_or_minutes_after_it_are_failures_of_their_own(host: Host) -> None:
    host.step(line(host, 20034, fatal=True))
    host.run(5)
    host.step(host.xid(3, 79))
    assert raised(host, 20034) is F
    other = Host(8)
    lose(other)
    other.run(120)
    other.step(line(other, 20034, fatal=True))
    assert raised(other, 20034) is F


def test_a_loss_that_bus_and_nvml_contradict_makes_no_fatal_line_milder(host: Host) -> None:
    host.step(host.xid(3, 79))
    host.run(12)
    host.step(line(host, 20034, fatal=True))
    assert raised(host, 20034) is F


# --- the memory of ports


def test_the_memory_of_ports_is_bounded_and_fits_one_text_of_the_ledger() -> None:
    ports = with_lines({}, "")
    for at in range(3):
        for port in range(200):
            ports = with_line(ports, str(port), 100_000_000.12 + 1000 * at)
    assert len(ports) == PORTS_KEPT
    assert len(as_text(ports)) < 2000
    assert with_lines({}, as_text(ports)) == ports


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("", []), (";;", []), (" ", []), ("61", []), ("61 x", []),
        ("61 1 2 3 4 5", ["61"]), ("nan nan", ["nan"]), ("61 1e999", ["61"]), ("6;1 2", ["1"]),
    ],
)  # fmt: skip
def test_a_text_of_another_version_or_of_a_hand_makes_no_port_come_again(text: str, ports: list[str]) -> None:
    read = with_lines({}, text)
    assert (list(read), again(read)) == (ports, None)


def test_a_restart_and_a_checkpoint_keep_what_ports_had(host: Host) -> None:
    host.step(line(host, PRIV, link=61), line(host, PRIV, link=None))
    host.run(200)
    host.step(line(host, PRIV, link=12))
    record = host.state.records[Key("sxid", Subject("switch", SWITCH), str(PRIV))]
    assert record.ports == {"61": (10_030.0,), "": (10_030.0,), "12": (10_230.0,)}
    for restart in (host.restart_daemon, host.checkpointed):
        restart()
        same = host.state.records[record.key]
        assert (same.ports, same.nonfatal, same.bursts) == (record.ports, True, record.bursts)


def test_a_record_of_an_older_version_has_no_ports(host: Host) -> None:
    host.step(line(host, PRIV))
    host.ledger = [
        replace(event, data={k: v for k, v in event.data.items() if k not in ("ports", "nonfatal")})
        for event in host.ledger
    ]
    host.restart_daemon()
    assert host.state.records[Key("sxid", Subject("switch", SWITCH), str(PRIV))].ports == {}
    host.run(1000)
    host.step(line(host, PRIV))
    assert raised(host) is W
