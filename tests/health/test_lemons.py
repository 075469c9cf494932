"""The memory of lemons: what went wrong on how many of the last 28 days, on each board and so on the node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gpuwarden.health.conditions import CONDITIONS
from gpuwarden.health.lemons.memory import KEPT, LEMON_FROM, WINDOW, Lemons, What, counted
from gpuwarden.health.model import NODE, EventKind, Health, Key, LemonDays
from gpuwarden.publish import status
from gpuwarden_collectors.event_facts import GpuResetEvent, SxidEvent
from support.hosts import Host, slot
from support.scrape import scrape
from support.snapshots import finding, snapshot


def days(host: Host, index: int | None = 3) -> dict[str, int]:
    """Return the days published for one GPU, or for the node, by kind."""
    assert host.last is not None
    of = "" if index is None else slot(index)
    return {row.what: row.days for row in host.last.verdict.lemons if row.slot == of}


def reset(host: Host, index: int) -> None:
    host.step(GpuResetEvent(at=host.now, slot=slot(index), ok=True), collect=False)
    host.uptime += 5
    host.run(10)


def incident(host: Host, index: int = 3, number: int = 95) -> None:
    """A failure that takes the node out of scheduling until the GPU is reset."""
    host.run(10)
    host.step(host.xid(index, number))
    host.run(10)
    host.record_event(EventKind.EXCLUDED)
    reset(host, index)
    host.record_event(EventKind.RESTORED)


def fails_daily(host: Host, times: int, **which: int) -> Host:
    host.step()
    for _ in range(times):
        incident(host, **which)
        host.days(2)
    host.run(10)
    return host


def test_a_node_that_failed_on_three_different_days_is_a_lemon_with_its_evidence() -> None:
    host = fails_daily(Host(8), LEMON_FROM)
    assert (host.health, host.codes) == (Health.WARNING, ["lemon_node"])
    evidence = host.findings[0].evidence
    assert (evidence["days_with_failures"], evidence["days_with_exclusions"], evidence["of_days"]) == (3, 3, 28)
    assert evidence["gpus"] == f"{slot(3)} on 3"
    assert days(host) == dict.fromkeys(("failures", "xids", "resets", "exclusions"), 3)
    assert days(host, None) == days(host)


def test_two_days_are_no_lemon_and_neither_is_a_storm_on_one() -> None:
    assert fails_daily(Host(8), LEMON_FROM - 1).codes == []
    host = Host(8)
    host.step()
    for _ in range(20):
        incident(host)
    assert days(host) == dict.fromkeys(("failures", "xids", "resets", "exclusions"), 1)


def test_different_boards_of_one_node_count_together_for_the_node() -> None:
    host = Host(8)
    host.step()
    for index in (1, 4, 6):
        incident(host, index)
        host.days(1)
    host.run(10)
    assert host.codes == ["lemon_node"]
    assert host.findings[0].evidence["gpus"] == f"{slot(1)} on 1, {slot(4)} on 1, {slot(6)} on 1"


def test_after_28_days_it_is_forgotten() -> None:
    host = fails_daily(Host(8), LEMON_FROM)
    host.days(WINDOW - 2 * LEMON_FROM)
    host.run(20)
    assert host.codes == []
    host.days(WINDOW)
    host.run(5)
    assert days(host) == {}


@pytest.mark.parametrize("restart", [Host.restart_daemon, Host.checkpointed])
def test_a_restart_forgets_no_day(restart: Callable[[Host], None]) -> None:
    host = fails_daily(Host(8), LEMON_FROM)
    before = days(host)
    restart(host)
    host.run(5)
    assert (days(host), host.codes) == (before, ["lemon_node"])


def test_a_replaced_board_takes_its_days_along() -> None:
    host = fails_daily(Host(8), LEMON_FROM)
    host.reboot()
    host.gpus[3] = replace(host.gpus[3], uuid="GPU-new")
    host.run(20)
    assert (days(host), days(host, None), host.codes) == ({}, {}, [])


def test_a_board_that_moves_to_another_slot_brings_its_days_with_it() -> None:
    host = fails_daily(Host(8), LEMON_FROM)
    host.reboot()
    host.restart_daemon()
    for index in (3, 4):
        host.devices[index] = replace(host.devices[index], slot=slot(7 - index))
    host.gpus[3], host.gpus[4] = (replace(host.gpus[n], slot=slot(7 - n)) for n in (3, 4))
    host.run(20)
    assert days(host, 3) == {}
    assert days(host, 4)["failures"] == 3


def test_an_operator_who_repaired_the_node_makes_it_forget() -> None:
    host = fails_daily(Host(8), LEMON_FROM)
    host.acknowledge("lemon_node@node")
    host.run(20)
    host.checkpointed()
    host.run(20)
    assert (host.codes, days(host)) == ([], {})


def test_resets_reboots_and_exclusions_while_nothing_is_wrong_make_no_lemon() -> None:
    host = Host(8)
    host.step()
    for _ in range(10):
        for index in range(8):  # an epilog, after every job
            reset(host, index)
        host.record_event(EventKind.EXCLUDED)  # a notice, or an operator
        host.record_event(EventKind.REQUEUED)
        host.reboot()
        host.days(1)
    host.run(10)
    assert (host.codes, days(host), days(host, None)) == ([], {}, {})


def test_what_is_not_the_fault_of_a_board_makes_no_lemon() -> None:
    host = Host(8)
    host.step()
    key = Key("plugin_nfs", NODE)
    for _ in range(5):
        host.record_event(EventKind.RAISED, key, severity="failure")
        host.record_event(EventKind.EXCLUDED)
        host.record_event(EventKind.CLEARED, key)
        host.days(1)
    for number in (13, 31, 43, 94):  # users' errors, and one that was contained
        host.step(host.xid(3, number))
    host.run(5)
    assert (days(host), days(host, None)) == ({}, {})


def test_remapped_rows_reboots_switches_and_a_driver_that_hangs_count_too() -> None:
    host = Host(8)
    host.change(3, remapped_rows_pending=1)
    host.run(10)
    assert days(host) == {"remaps": 1}
    host.step(host.xid(3, 95))
    host.reboot()
    host.step(SxidEvent(at=host.now, slot="0000:05:00.0", sxid=20034, fatal=True))
    host.run(10)
    assert days(host)["reboots"] == 1
    assert days(host, None)["failures"] == 1


def test_requeued_jobs_alone_are_too_weak_a_sign() -> None:
    host = Host(8)
    host.step(host.xid(3, 95))
    for _ in range(5):
        host.record_event(EventKind.REQUEUED)
        host.days(1)
    host.run(10)
    assert host.codes == ["xid"]
    assert days(host)["requeues"] == 5


def test_the_memory_of_lemons_is_bounded() -> None:
    lemons: Lemons = {}
    for day in range(400):
        lemons = counted(lemons, [(f"GPU-{n}", What.XIDS) for n in range(day, day + 10)], day * 86_400.0)
    for day in range(2000):
        lemons = counted(lemons, [("GPU-399", What.RESETS)], day * 86_400.0)
    assert len(lemons) <= KEPT
    assert max(map(len, lemons.values())) <= WINDOW


# --- where it is published


def test_days_are_published_as_zero_from_the_start() -> None:
    shown = snapshot(2)
    page = scrape(shown)
    assert len(page.values("gpuwarden_lemon")) == len(What)  # of the node
    assert not any(page.values("gpuwarden_lemon"))
    gpu = shown.verdict.gpus[1]
    counts = (LemonDays(what="xids", days=4, slot=gpu.slot), LemonDays(what="xids", days=5))
    shown = replace(shown, verdict=replace(shown.verdict, lemons=counts))
    page = scrape(shown)
    assert page.value("gpuwarden_lemon", pci_bus_id=gpu.slot, uuid=gpu.uuid, what="xids") == 4
    assert page.value("gpuwarden_lemon", gpu="", uuid="", pci_bus_id="", what="xids") == 5
    assert status.status(shown, shown.made)["lemons"] == [
        {"pci_bus_id": gpu.slot, "what": "xids", "days": 4},
        {"pci_bus_id": None, "what": "xids", "days": 5},
    ]


def test_a_lemon_shows_how_it_ends() -> None:
    shown = snapshot(findings=[finding("lemon_node", NODE)])
    assert status.findings(shown)["findings"][0]["ends_when"] == CONDITIONS["lemon_node"].ends
