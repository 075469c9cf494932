"""What the judge remembers over boots, resets, checkpoints and other versions: nothing it must, and nothing too much."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gpuwarden.health.checkpoint import checkpoint
from gpuwarden.health.model import NODE, Event, EventKind, Health, Key, gpu
from gpuwarden.health.state import State, fold
from gpuwarden.health.view import Rules
from gpuwarden_collectors.event_facts import BY_TIME, GpuResetEvent, LogOrigin, XidEvent
from gpuwarden_collectors.facts import GpuAnswer, NvmlFacts, NvmlProblem
from support.hosts import Host, healthy_gpu, slot


def reset(host: Host, index: int) -> GpuResetEvent:
    return GpuResetEvent(at=host.now, slot=slot(index), ok=True)


def checkpointed(host: Host) -> None:
    """The state is made again from a checkpoint."""
    state = State()
    for event in checkpoint(host.state, host.now):
        state = fold(state, event)
    host.state = state


def remembered(host: Host, kind: str, key: Key, **data: str) -> Event:
    return Event(kind=kind, at=host.now, boot_id=host.boot_id, key=key, data=data)


# --- boots


def test_a_driver_that_was_unloaded_before_a_reboot_and_does_not_come_back_is_a_failure() -> None:
    host = Host(8, uptime=90 * 86_400.0)
    host.step()
    host.gpus = {}
    host.nvml_change = lambda facts: replace(facts, problem=NvmlProblem.DRIVER_NOT_LOADED)
    host.run(60)
    host.reboot()
    host.restart_daemon()
    host.run(130)
    assert host.codes == ["driver_not_loaded"]


def test_a_gpu_that_began_to_be_missed_before_a_reboot_is_missed_after_it() -> None:
    host = Host(8, uptime=90 * 86_400.0)
    host.step()
    del host.gpus[3]
    host.run(20)
    host.reboot()
    host.restart_daemon()
    host.run(40)
    assert host.codes == ["gpu_missing"]


# --- resets and checkpoints


def test_a_fault_after_a_reset_outlives_a_checkpoint() -> None:
    host = Host(8)
    host.step(host.xid(3, 95))
    host.run(20)
    host.step(reset(host, 3))
    host.run(20)
    host.step(host.xid(3, 95))
    host.run(70)
    checkpointed(host)
    host.run(20)
    assert [(str(f.key), f.latched) for f in host.findings] == [(f"xid.95@gpu/{slot(3)}", True)]


def test_a_reset_that_no_pass_has_confirmed_yet_outlives_a_checkpoint() -> None:
    host = Host(8)
    host.step(host.xid(3, 95))
    host.run(20)
    host.step(reset(host, 3), collect=False)
    assert host.codes == ["xid"]
    checkpointed(host)
    assert host.state.tracks[Key("xid", gpu(slot(3)), "95")].count == 1
    host.uptime += 5
    host.run(20)
    assert host.health is Health.HEALTHY


def test_a_fault_that_comes_back_right_after_a_reset_stays() -> None:
    host = Host(8)
    host.step(host.xid(3, 95))
    host.uptime += 2
    done = reset(host, 3)
    host.uptime += 2
    host.step(done, host.xid(3, 95))
    host.run(70)
    assert [(str(f.key), f.latched) for f in host.findings] == [(f"xid.95@gpu/{slot(3)}", True)]


def test_a_storm_that_a_reset_does_not_end_stays_a_failure() -> None:
    host = Host(8)
    host.step(host.xid(3, 95))
    for second in range(40):
        host.uptime += 1
        host.step(*([reset(host, 3)] if second == 20 else []), host.xid(3, 95))
    host.restart_daemon()
    host.run(60)
    assert host.codes == ["xid"]


def test_a_reset_that_is_reported_late_ends_nothing_that_came_after_it() -> None:
    host = Host(8)
    host.step()
    late = reset(host, 3)
    host.uptime += 60
    host.step(host.xid(3, 95))
    host.run(20)
    host.step(late)
    host.run(60)
    assert host.codes == ["xid"]


def test_an_xid_79_from_before_a_reset_does_not_make_the_next_reset_a_loss() -> None:
    host = Host(8)
    host.step()
    lost = host.gpus.pop(3)
    host.step(host.xid(3, 79))
    host.run(10)
    host.gpus[3] = lost
    host.step(reset(host, 3))
    host.run(20)
    gone = host.gpus.pop(3)
    host.run(20)
    host.gpus[3] = gone
    host.run(30)
    assert host.health is Health.HEALTHY


# --- lines from before our time


def test_an_old_line_that_was_acknowledged_stays_acknowledged_though_its_sign_stays() -> None:
    host = Host(8)
    host.change(3, remapped_rows_pending=1)
    host.step(host.xid(3, 95, history=True))
    host.run(20)
    host.acknowledge(f"xid.95@gpu/{slot(3)}")
    host.run(20)
    host.restart_daemon()
    host.run(20)
    assert host.codes == ["row_remap_pending"]


@pytest.mark.slow
def test_a_warning_from_an_old_line_ends_once_and_for_all() -> None:
    host = Host(8)
    host.change(3, remapped_rows_pending=1)
    host.step(host.xid(3, 63, history=True))
    host.run(3 * 3600)
    assert [e.kind for e in host.ledger if e.key and e.key.code == "xid"] == ["xid", "raised", "cleared"]


def test_a_driver_that_is_not_loaded_confirms_no_old_line() -> None:
    host = Host(8)
    host.gpus = {}
    host.nvml_change = lambda facts: replace(facts, problem=NvmlProblem.DRIVER_NOT_LOADED)
    host.step(host.xid(3, 95, history=True))
    host.run(20)
    assert (host.health, host.codes) == (Health.UNKNOWN, [])


def test_an_old_xid_79_of_a_gpu_that_does_not_answer_on_the_bus_any_more_is_confirmed_by_that() -> None:
    host = Host(8)
    old = host.xid(3, 79, history=True)
    del host.gpus[3]
    host.devices[3] = replace(host.devices[3], responds=False)
    host.step(old)
    host.run(20)
    assert host.codes == ["xid"]


def test_a_memory_error_that_was_contained_before_our_time_is_a_warning() -> None:
    host = Host(8)
    host.change(3, ecc_uncorrected_volatile=1)
    host.step(host.xid(3, 94, history=True))
    host.run(20)
    assert (host.health, set(host.codes)) == (Health.WARNING, {"xid", "ecc_uncorrectable"})


# --- acknowledgements


def test_a_warning_that_is_seen_no_more_can_be_acknowledged_before_its_hour_is_over() -> None:
    host = Host(8)
    host.step(host.xid(0, 94))
    host.run(60)
    host.acknowledge(f"xid.94@gpu/{slot(0)}")
    host.run(10)
    assert host.health is Health.HEALTHY


def line(host: Host, sequence: int, number: int = 95) -> XidEvent:
    """A numbered line of the kernel log, stamped now."""
    return replace(host.xid(3, number), origin=LogOrigin(boot_id=host.boot_id, sequence=sequence))


def acknowledged(host: Host, sequence: int = 100) -> XidEvent:
    """A finding that somebody acknowledged, on a GPU whose sign stays; the line that it was made of."""
    host.change(3, remapped_rows_pending=1)
    host.step()
    first = line(host, sequence)
    host.step(first)
    host.run(20)
    host.acknowledge(f"xid.95@gpu/{slot(3)}")
    host.run(20)
    assert host.codes == ["row_remap_pending"]
    return first


RESTARTS = (lambda _: None, Host.restart_daemon, Host.checkpointed)


@pytest.mark.parametrize("restart", RESTARTS)
@pytest.mark.parametrize("clock", [0.0, -120.0, 90.0])
def test_an_acknowledged_line_that_is_read_again_is_no_news(restart: Callable[[Host], None], clock: float) -> None:
    """`clock`: by how much the clock of the log, by which such lines are stamped, differs from the daemon's."""
    host = Host(8)
    first = acknowledged(host)
    restart(host)
    again = replace(first, at=replace(first.at, boottime=first.at.boottime + clock))
    host.step(again, replace(again, history=True))
    host.run(20)
    assert host.codes == ["row_remap_pending"]
    assert host.state.records[Key("xid", gpu(slot(3)), "95")].count == 1


@pytest.mark.parametrize("restart", RESTARTS)
def test_a_later_line_than_the_acknowledged_one_is_news(restart: Callable[[Host], None]) -> None:
    host = Host(8)
    first = acknowledged(host)
    restart(host)
    host.step(first, line(host, 101))
    host.run(20)
    assert set(host.codes) == {"row_remap_pending", "xid"}


@pytest.mark.parametrize(("before", "after"), [(100, BY_TIME + 7), (BY_TIME + 7, 100)])
@pytest.mark.parametrize("restart", RESTARTS)
def test_where_the_log_is_read_in_another_way_the_acknowledged_line_is_no_news_and_a_new_one_is(
    restart: Callable[[Host], None], before: int, after: int
) -> None:
    """The numbers of the two do not compare if a pod replaces a package within one boot, or the reverse."""
    host = Host(8)
    first = acknowledged(host, before)
    restart(host)
    again = replace(first, history=True, origin=LogOrigin(boot_id=host.boot_id, sequence=after))
    host.step(again)
    host.run(20)
    assert host.codes == ["row_remap_pending"]
    host.step(line(host, after + 1))
    host.run(20)
    assert set(host.codes) == {"row_remap_pending", "xid"}


@pytest.mark.parametrize("restart", RESTARTS)
def test_without_a_number_a_line_from_before_the_acknowledgement_is_recognised_by_its_time(
    restart: Callable[[Host], None],
) -> None:
    host = Host(8)
    first = replace(acknowledged(host), origin=None)
    restart(host)
    host.step(first)
    host.run(20)
    assert host.codes == ["row_remap_pending"]
    host.step(host.xid(3, 95))
    host.run(20)
    assert set(host.codes) == {"row_remap_pending", "xid"}


def test_what_was_acknowledged_in_one_boot_is_news_in_the_next() -> None:
    host = Host(8)
    acknowledged(host)
    host.reboot()
    host.step(line(host, 100))
    host.run(20)
    assert set(host.codes) == {"row_remap_pending", "xid"}


def test_lines_that_are_read_again_are_counted_once_whether_acknowledged_or_not() -> None:
    host = Host(8)
    lines = [line(host, number) for number in range(100)]
    host.step(*lines)
    host.restart_daemon()
    host.step(*lines, line(host, 100))
    assert host.state.records[Key("xid", gpu(slot(3)), "95")].count == 101


def test_a_latch_is_an_event_at_the_same_time_with_and_without_a_restart() -> None:
    hosts = [Host(1), Host(1)]
    for host in hosts:
        host.step(host.xid(0, 95))
        host.run(10)
    hosts[0].restart_daemon()
    for host in hosts:
        host.run(5)
    assert [event.kind for host in hosts for event in host.ledger].count(EventKind.LATCHED) == 2


# --- the memory of records


def test_garbage_of_earlier_boots_makes_room_for_what_is_new() -> None:
    host = Host(1)
    host.devices, host.switches = {}, []  # no witness of the slots
    event = host.xid(0, 31)
    host.step(*[replace(event, slot=f"{n:04x}:00:00.0") for n in range(10_000)])
    host.reboot()
    host.step(host.xid(0, 95))
    assert Key("xid", gpu(slot(0)), "95") in host.state.records
    assert host.codes == ["xid"]


# --- ledgers of other versions, or with rows that somebody edited


@pytest.mark.parametrize("detail", ["", "abc", "-1"])
def test_a_record_that_is_no_xid_is_left_out(detail: str) -> None:
    host = Host(1)
    host.step()
    host.state = fold(host.state, remembered(host, EventKind.XID, Key("xid", gpu(slot(0)), detail)))
    checkpointed(host)
    host.run(10)
    assert host.health is Health.HEALTHY


def test_a_condition_that_this_version_does_not_know_is_left_out() -> None:
    host = Host(1)
    host.step()
    host.state = fold(
        host.state, remembered(host, EventKind.RAISED, Key("of_a_later_version", NODE), severity="failure")
    )
    checkpointed(host)
    host.run(10)
    assert host.health is Health.HEALTHY


def test_recorded_values_that_this_version_does_not_know_fall_back_to_the_conditions_own() -> None:
    host = Host(1)
    host.step()
    key = Key("xid", gpu(slot(0)), "95")
    host.state = fold(
        host.state, remembered(host, EventKind.RAISED, key, severity="dire", advice="pray", latch="forever")
    )
    host.state = fold(host.state, remembered(host, EventKind.HEALTH, Key("health", NODE), to="splendid"))
    host.run(70)
    assert [(f.severity, f.advice, f.latched) for f in host.findings] == [("failure", "reset_gpu", True)]


# --- GPUs that were given up


def test_a_given_up_gpu_is_expected_again_once_nvml_lists_it() -> None:
    host = Host(8)
    host.step()
    gone = host.gpus.pop(3)
    host.run(60)
    host.accept()
    host.run(60)
    checkpointed(host)
    host.step(host.xid(3, 95))
    assert host.last is not None
    assert (host.health, host.last.verdict.expected) == (Health.HEALTHY, 7)
    host.uptime += 10
    host.gpus[3] = gone
    host.run(10)
    assert host.last.verdict.expected == 8
    host.answer(3, GpuAnswer.LOST)
    host.run(40)
    assert host.codes == ["gpu_missing"]


def moved(host: Host, index: int, to: str) -> None:
    host.gpus[index] = replace(host.gpus[index], slot=to)
    host.devices[index] = replace(host.devices[index], slot=to)


def test_gpus_whose_buses_are_renumbered_at_boot_are_all_there() -> None:
    host = Host(4)
    host.step()
    host.reboot()
    host.restart_daemon()
    for index in range(4):  # a card before them takes a number: each is where the next one was
        moved(host, index, slot(index + 1))
    host.run(20)
    assert host.last is not None
    assert (host.health, host.last.verdict.expected) == (Health.HEALTHY, 4)


def test_a_gpu_that_is_gone_is_missed_though_another_was_put_elsewhere() -> None:
    host = Host(4)
    host.step()
    host.reboot()
    host.restart_daemon()
    moved(host, 3, slot(9))
    host.gpus[3] = replace(host.gpus[3], uuid="GPU-another")
    host.run(20)
    assert [str(f.key) for f in host.findings] == [f"gpu_missing@gpu/{slot(3)}"]


Restart = Callable[[Host], None]


def on_another_host(host: Host, *, gpus: int, restart: Restart) -> None:
    """Boot the machine with so many GPUs of another host, at addresses of that host, as a VM that was stopped and started."""
    host.reboot()
    restart(host)
    host.gpus, host.devices = (
        {n: replace(healthy_gpu(n), slot=slot(0x40 + n), uuid=f"GPU-another-{n}", serial=f"9{n}") for n in range(gpus)},
        {n: replace(host.devices[n], slot=slot(0x40 + n)) for n in range(gpus)},
    )


@pytest.mark.parametrize("restart", [Host.restart_daemon, Host.checkpointed])
@pytest.mark.parametrize("driver_first", [True, False])
def test_a_machine_that_got_all_its_gpus_from_another_host_misses_none(restart: Restart, driver_first: bool) -> None:
    host = Host(4, rules=Rules(machine_type="Google/a2-highgpu-4g"))
    host.run(60)
    on_another_host(host, gpus=4, restart=restart)
    if not driver_first:
        host.nvml_change = lambda facts: replace(facts, gpus=(), problem=NvmlProblem.DRIVER_NOT_LOADED)
        host.run(20)
        host.nvml_change = lambda facts: facts
    host.run(60)
    host.checkpointed()
    host.run(60)
    assert host.last is not None
    assert (host.health, host.findings, host.last.verdict.expected) == (Health.HEALTHY, (), 4)
    assert sorted(host.state.pins) == [slot(0x40 + n) for n in range(4)]
    del host.gpus[2], host.devices[2]
    host.run(60)
    assert [str(finding.key) for finding in host.findings] == [f"gpu_missing@gpu/{slot(0x42)}"]


def test_a_machine_that_got_fewer_gpus_from_another_host_misses_those_it_had() -> None:
    host = Host(4)
    host.run(60)
    on_another_host(host, gpus=3, restart=Host.restart_daemon)
    host.run(60)
    assert (host.health, set(host.codes)) == (Health.FAILURE, {"gpu_missing"})


def test_a_dead_gpu_is_missed_though_the_others_moved_and_one_was_added() -> None:
    host = Host(2)
    host.run(60)
    host.reboot()
    host.restart_daemon()
    moved(host, 1, slot(9))
    host.gpus[0] = replace(host.gpus[0], slot=slot(8), uuid="GPU-another")
    host.devices[0] = replace(host.devices[0], slot=slot(8))
    host.run(60)
    assert [str(finding.key) for finding in host.findings] == [f"gpu_missing@gpu/{slot(0)}"]


def gone_at_boot(host: Host, index: int, restart: Restart) -> None:
    """Reboot without that GPU: those behind it get the bus numbers of the ones before them."""
    host.reboot()
    restart(host)
    del host.gpus[index], host.devices[index]
    for behind in range(index + 1, len(host.gpus) + 1):
        moved(host, behind, slot(behind - 1))


@pytest.mark.parametrize("bus_first", [True, False])
@pytest.mark.parametrize("restart", [Host.restart_daemon, Host.checkpointed])
def test_a_gpu_that_is_gone_at_boot_is_missed_though_the_others_take_each_other_s_slots(
    restart: Restart, bus_first: bool
) -> None:
    host = Host(8)
    host.step()
    lost = host.gpus[2]
    gone_at_boot(host, 2, restart)
    if not bus_first:
        host.step(nvml=host.nvml(), collect=False)
    host.run(60)
    restart(host)
    host.run(60)
    [missing] = host.findings
    assert (host.health, str(missing.key)) == (Health.FAILURE, f"gpu_missing@gpu/{slot(7)}")
    assert (missing.evidence["uuid"], missing.evidence["serial"]) == (lost.uuid, lost.serial)


@pytest.mark.parametrize("restart", [Host.restart_daemon, Host.checkpointed])
def test_a_gpu_that_is_back_or_replaced_after_the_buses_were_renumbered_is_missed_no_more(restart: Restart) -> None:
    for board in (healthy_gpu(2), replace(healthy_gpu(2), uuid="GPU-another", serial="9")):
        host = Host(8)
        host.step()
        gone_at_boot(host, 2, restart)
        host.run(60)
        host.reboot()
        restart(host)
        for index in range(3, 8):
            moved(host, index, slot(index))
        host.gpus[2], host.devices[2] = board, replace(host.devices[3], slot=slot(2))
        host.run(60)
        assert host.last is not None
        assert (host.health, host.last.verdict.expected) == (Health.HEALTHY, 8)
        assert host.state.pins[slot(2)].uuid == board.uuid


def test_boards_that_were_exchanged_with_each_other_are_all_there() -> None:
    host = Host(4)
    host.step()
    host.reboot()
    host.restart_daemon()
    first, last = host.gpus[0], host.gpus[3]
    host.gpus[0], host.gpus[3] = replace(last, slot=slot(0)), replace(first, slot=slot(3))
    host.run(60)
    assert (host.health, len(host.state.pins)) == (Health.HEALTHY, 4)
    assert [host.state.pins[slot(n)].uuid for n in (0, 3)] == [last.uuid, first.uuid]


@pytest.mark.parametrize("loaded", [False, True])
def test_no_gpu_is_missed_while_nvml_has_not_said_which_boards_renumbered_buses_have(loaded: bool) -> None:
    host = Host(4)
    host.step()
    host.reboot()
    host.restart_daemon()
    for index in range(4):
        moved(host, index, slot(index + 1))
    for _ in range(12):
        host.uptime += 5.0
        if loaded:
            host.step(pci=host.pci(), collect=False)
        else:
            host.nvml_change = lambda _: NvmlFacts(problem=NvmlProblem.DRIVER_NOT_LOADED)
            host.step()
        assert "gpu_missing" not in host.codes
    host.nvml_change = lambda facts: facts
    host.run(20)
    assert (host.health, sorted(host.state.pins)) == (Health.HEALTHY, [slot(n) for n in range(1, 5)])


def test_a_gpu_that_is_gone_at_boot_is_missed_at_once_though_nvml_has_not_named_the_others() -> None:
    host = Host(4)
    host.step()
    host.reboot()
    host.restart_daemon()
    del host.gpus[2], host.devices[2]
    for index in (0, 1, 3):
        moved(host, index, slot(index + 1))
    host.step(pci=host.pci(), collect=False)
    assert (host.health, host.codes) == (Health.FAILURE, ["gpu_missing"])


def exchanged(host: Host, boards: int) -> None:
    """Other boards, in slots in which there was none."""
    host.gpus = {n: replace(healthy_gpu(n), slot=slot(n + 20), uuid=f"GPU-other-{n}") for n in range(boards)}
    host.devices = {n: replace(host.devices[0], slot=slot(n + 20)) for n in range(boards)}


@pytest.mark.parametrize("restart", [Host.restart_daemon, Host.checkpointed])
def test_no_gpu_is_missed_where_all_boards_are_others_in_other_slots(restart: Restart) -> None:
    host = Host(4)
    host.step(host.xid(1, 64))
    host.run(20)
    assert host.health is Health.FAILURE
    host.reboot()
    restart(host)
    exchanged(host, 4)
    host.run(60)
    restart(host)
    host.run(60)
    assert host.last is not None
    assert (host.health, host.last.verdict.expected) == (Health.HEALTHY, 4)
    assert not host.state.given_up


def test_gpus_are_missed_where_fewer_others_are_here_or_one_of_them_is_still_listed() -> None:
    for others, kept in ((3, False), (4, True)):
        host = Host(4)
        host.step()
        old = host.gpus[0], host.devices[0]
        host.reboot()
        host.restart_daemon()
        exchanged(host, others)
        if kept:
            host.gpus[9], host.devices[9] = old
        host.run(60)
        assert set(host.codes) == {"gpu_missing"}
