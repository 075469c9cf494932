"""What must not end a latched failure, what must, and what an acknowledgement does not swallow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gpuwarden.health.conditions import CONDITIONS
from gpuwarden.health.model import Health
from gpuwarden.health.view import Rules, XidRule
from gpuwarden_collectors.base import PassOutcome
from gpuwarden_collectors.event_facts import GpuResetEvent, LogOrigin, XidEvent
from gpuwarden_collectors.facts import GpuAnswer, Stamp
from support.hosts import Host, slot
from support.whole_hosts import WholeHost, memory

RESTARTS = (lambda _: None, Host.restart_daemon, Host.checkpointed)


def asks_for_reset(host: Host) -> XidEvent:
    """Return the line that the driver prints when its recovery action becomes a reset."""
    text = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
    return replace(host.xid(1, 154), text=text)


@pytest.mark.parametrize("answer", [GpuAnswer.UNKNOWN, GpuAnswer.TIMEOUT])
def test_a_gpu_that_needs_a_reset_and_falls_silent_has_not_been_reset(answer: GpuAnswer) -> None:
    host = Host(2)
    host.step(host.xid(1, 95))
    host.answer(1, GpuAnswer.RESET_REQUIRED)
    host.run(20)
    host.answer(1, answer)
    host.run(20)
    assert (host.health, set(host.codes)) == (Health.FAILURE, {"xid", "gpu_reset_required"})
    host.answer(1, GpuAnswer.OK)
    host.run(60)
    assert host.health is Health.HEALTHY


def test_a_reading_that_never_asked_for_a_reset_does_not_prove_one() -> None:
    host = Host(2)
    host.step(host.xid(1, 95), asks_for_reset(host))
    host.run(60)
    assert (host.health, host.codes) == (Health.FAILURE, ["xid"])


@pytest.mark.parametrize("restart", RESTARTS)
def test_a_reading_that_asked_after_the_line_and_asks_no_more_does(restart: Callable[[Host], None]) -> None:
    host = Host(2)
    host.change(1, recovery_action=1)
    host.step(host.xid(1, 95), asks_for_reset(host))
    host.run(60)
    restart(host)
    host.change(1, recovery_action=0)
    host.run(60)
    assert host.health is Health.HEALTHY


@pytest.mark.parametrize("restart", RESTARTS)
@pytest.mark.parametrize("days", [-400, 400])
def test_a_clock_that_is_set_by_more_than_the_uptime_hides_no_reset(days: int, restart: Callable[[Host], None]) -> None:
    host = Host(2)
    host.change(1, recovery_action=1)
    host.step(host.xid(1, 95), asks_for_reset(host))
    host.run(60)
    host.booted += days * 86_400.0
    restart(host)
    host.run(60)
    host.change(1, recovery_action=0)
    host.run(60)
    assert host.health is Health.HEALTHY


def test_what_asked_for_a_reset_before_a_reboot_and_asks_no_more_after_it_shows_none() -> None:
    host = Host(2)
    host.change(1, recovery_action=1)
    host.step(host.xid(1, 95), asks_for_reset(host))
    host.run(60)
    host.reboot()
    host.change(1, recovery_action=0)
    host.step(host.xid(1, 95))
    host.run(60)
    assert host.state.resets == {}
    assert (host.health, host.codes) == (Health.FAILURE, ["xid"])


@pytest.mark.parametrize("outcome", [PassOutcome.FAILED, PassOutcome.TIMED_OUT])
def test_a_pass_that_fails_after_a_reset_confirms_none(outcome: PassOutcome) -> None:
    host = Host(2)
    host.step(host.xid(1, 95))
    host.run(60)
    host.uptime += 1
    host.step(GpuResetEvent(at=host.now, slot=slot(1), ok=True), collect=False)
    for _ in range(8):
        host.uptime += 1
        host.step(nvml=host.nvml(outcome))  # the facts at hand are from before the reset
    assert (host.health, host.codes) == (Health.FAILURE, ["xid"])
    host.run(20)
    assert host.health is Health.HEALTHY


def test_a_site_that_stops_recording_the_line_has_reset_no_gpu() -> None:
    host = Host(2)
    host.change(1, recovery_action=None)
    host.step(host.xid(1, 95), asks_for_reset(host))
    host.run(20)
    host.rules = Rules(xids={"154": XidRule(severity="record")})
    host.run(60)
    assert (host.health, host.codes) == (Health.FAILURE, ["xid"])


@pytest.mark.parametrize("restart", RESTARTS)
def test_a_new_line_is_news_though_the_clock_of_the_log_puts_it_before_the_acknowledgement(
    restart: Callable[[Host], None],
) -> None:
    def line(sequence: int, late: float = 0.0) -> XidEvent:
        event, origin = host.xid(1, 95), LogOrigin(boot_id=host.boot_id, sequence=sequence)
        return replace(event, origin=origin, at=Stamp(event.at.boottime - late, event.at.wall - late))

    host = Host(2)
    host.step(line(100))
    host.run(20)
    host.acknowledge(f"xid.95@gpu/{slot(1)}")
    host.run(20)
    restart(host)
    host.step(line(101, late=120.0))
    host.run(20)
    assert (host.health, host.codes) == (Health.FAILURE, ["xid"])


def test_a_reboot_ends_what_is_about_the_node_also_where_there_is_no_gpu() -> None:
    host = WholeHost(0, rules=Rules(expected_gpus=0))

    def run(seconds: int) -> None:
        for _ in range(0, seconds, 5):
            host.uptime += 5
            host.step(nvml=host.nvml(PassOutcome.ABSENT))

    run(20)
    host.beside.memory = memory(uncorrected=1)
    run(20)
    assert host.codes == ["memory_ecc_uncorrectable"]
    host.beside.memory = memory()
    host.reboot()
    host.restart_daemon()
    run(20)
    assert host.health is Health.HEALTHY


@pytest.mark.parametrize("restart", [Host.restart_daemon, Host.checkpointed])
def test_a_gpu_that_dies_in_a_slot_from_which_another_board_had_moved_is_missed(
    restart: Callable[[Host], None],
) -> None:
    def numbered(first: int) -> None:
        host.reboot()
        restart(host)
        for index in range(4):
            host.gpus[index] = replace(host.gpus[index], slot=slot(first + index))
            host.devices[index] = replace(host.devices[index], slot=slot(first + index))

    host = Host(4)
    host.step()
    numbered(1)
    host.run(20)
    numbered(0)
    del host.gpus[0]  # it is on the bus, and the driver does not have it
    host.run(60)
    assert [str(finding.key) for finding in host.findings] == [f"gpu_missing@gpu/{slot(0)}"]


def test_an_acknowledgement_without_its_gpu_is_answered_with_the_ids_in_force() -> None:
    host = Host(2)
    host.change(1, ecc_uncorrected_volatile=1)
    host.run(20)
    with pytest.raises(ValueError, match=rf"did you mean ecc_uncorrectable@gpu/{slot(1)}\?$"):
        host.acknowledge("ecc_uncorrectable")
    with pytest.raises(ValueError, match=r"`gpuwarden status` lists them with their ids$"):
        host.acknowledge("gpu_missing")


def test_a_latch_that_can_no_longer_be_observed_is_ended_by_an_operator() -> None:
    host = Host(2)
    host.change(1, ecc_uncorrected_volatile=1)
    host.run(20)
    with pytest.raises(ValueError, match="is still seen"):
        host.acknowledge(f"ecc_uncorrectable@gpu/{slot(1)}")
    host.reboot()
    host.restart_daemon()
    host.change(1, ecc_uncorrected_volatile=None, ecc_mode=0)  # somebody switched ECC off
    host.run(600)
    assert host.codes == ["ecc_uncorrectable"]
    host.acknowledge(f"ecc_uncorrectable@gpu/{slot(1)}")
    host.run(60)
    assert host.health is Health.HEALTHY


@pytest.mark.parametrize("asked", [True, False])
def test_a_reset_while_the_daemon_was_stopped_ends_a_latch_where_the_driver_had_asked_for_it(*, asked: bool) -> None:
    """Counters begin again, too, when the driver is open to nobody for a moment."""
    host = Host()
    host.run(30)
    host.change(3, recovery_action=int(asked), pcie_replays=5, ecc_corrected_volatile=9)
    host.step(host.xid(3, 95))
    host.run(60)
    host.restart_daemon()
    host.change(3, recovery_action=0, pcie_replays=0, ecc_corrected_volatile=0)
    host.run(60)
    assert host.codes == ([] if asked else ["xid"])
    assert "known only where the driver had asked for it" in CONDITIONS["xid"].why
