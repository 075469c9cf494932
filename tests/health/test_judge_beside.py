"""The judge on memory, processes, services and site checks, and its memory of the host cut anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.health.checkpoint import checkpoint
from gpuwarden.health.host.limits import DiskLimits, Limits, SwapLimits
from gpuwarden.health.model import Health, Key, Severity
from gpuwarden.health.state import State, fold
from gpuwarden.health.view import CheckRule, Rules
from gpuwarden_collectors.base import PassOutcome
from gpuwarden_collectors.host_facts import PluginState, ProcessesFacts, StuckProcess
from gpuwarden_collectors.pci_facts import PciDevice, PciKind
from support.whole_hosts import FABRIC_MANAGER, GIB, WholeHost, hung, memory, mount, port, service

OK, WARNING, FAILURE, UNKNOWN = PluginState.OK, PluginState.WARNING, PluginState.FAILURE, PluginState.UNKNOWN
PERSISTENCED = "nvidia-persistenced.service"
HOUR = 3600.0


@pytest.fixture
def host() -> WholeHost:
    host = WholeHost()
    host.run(30)
    assert host.health is Health.HEALTHY
    return host


# --- Memory and processes ------------------------------------------------------------------------------------------


def test_memory_that_is_used_up_warns_when_it_lasts(host: WholeHost) -> None:
    host.beside.memory = memory(available=GIB)
    host.run(100)
    assert host.health is Health.HEALTHY
    host.run(30)
    assert (host.codes, host.health) == (["memory_low"], Health.WARNING)


def test_limits_of_the_site_are_in_force_from_the_pass_on_that_follows_a_reload(host: WholeHost) -> None:
    host.beside.memory = replace(memory(), swap_total_bytes=100 * GIB, swap_free_bytes=40 * GIB)
    host.run(300)
    assert host.health is Health.HEALTHY
    limits = Limits(disk=DiskLimits(used_percent=50), swap=SwapLimits(used_percent=60))
    host.rules = replace(host.rules, limits=limits)
    host.run(130)
    assert host.ids == {"disk_full@mount//", "disk_full@mount//data", "memory_low.swap@node"}
    host.rules = Rules()
    host.run(70)
    assert host.health is Health.HEALTHY


def test_data_lost_between_two_daemons_is_reported_by_the_second(host: WholeHost) -> None:
    host.beside.memory = memory(uncorrected=1)
    host.run(60)
    host.beside.memory = memory(uncorrected=2)
    host.restart_daemon()
    host.run(60)
    assert "memory_ecc_uncorrectable" in host.codes


def test_lost_data_in_main_memory_stays_until_the_node_reboots_also_over_a_restart(host: WholeHost) -> None:
    host.beside.memory = memory(uncorrected=1)
    host.run(5)
    assert (host.codes, host.health) == (["memory_ecc_uncorrectable"], Health.FAILURE)
    host.restart_daemon()
    host.run(3 * HOUR, every=30)
    assert host.codes == ["memory_ecc_uncorrectable"]
    host.reboot()
    host.beside.memory = memory()
    host.run(30)
    assert host.health is Health.HEALTHY


def test_errors_from_before_our_time_are_history() -> None:
    host = WholeHost()
    host.beside.memory = memory(uncorrected=3)
    host.run(300)
    assert host.health is Health.HEALTHY


def test_a_process_of_the_driver_that_cannot_be_ended_fails_the_node_until_it_ends(host: WholeHost) -> None:
    stuck = StuckProcess(pid=7, comm="nvidia-smi", seen_for=400.0, gpu=True)
    host.beside.processes = ProcessesFacts(stuck=(stuck,))
    host.run(5)
    assert (host.codes, host.health) == (["process_hung"], Health.FAILURE)
    host.restart_daemon()
    host.beside.processes = ProcessesFacts(followed_for=290.0)
    host.run(60)
    assert host.codes == ["process_hung"]  # nobody can know yet
    host.beside.processes = ProcessesFacts(followed_for=300.0)
    host.run(40)
    assert host.health is Health.HEALTHY


# --- Services ------------------------------------------------------------------------------------------------------


def test_a_driver_reload_and_a_restart_of_a_service_are_no_faults(host: WholeHost) -> None:
    for stopped in (service(PERSISTENCED, active="inactive", sub="dead"), service(PERSISTENCED, active="failed")):
        host.services(service(), stopped)
        host.run(100)
        host.services(service(), service(PERSISTENCED))
        host.run(60)
        assert not any(
            event.key and event.key.code == "service_down" and event.kind == "raised" for event in host.ledger
        )


def test_a_service_that_stays_down_warns_and_the_fabric_manager_of_nvswitches_fails(host: WholeHost) -> None:
    host.services(service(active="failed", result="signal"), service(PERSISTENCED, active="inactive"))
    host.run(130)
    assert {(f.key.subject.part, f.severity) for f in host.found("service_down")} == {
        (FABRIC_MANAGER, Severity.WARNING), (PERSISTENCED, Severity.WARNING),
    }  # fmt: skip
    host.devices[99] = PciDevice(slot="0000:99:00.0", kind=PciKind.SWITCH, device_id=0x22A3)
    host.run(5)
    assert {f.key.subject.part: f.severity for f in host.found("service_down")}[FABRIC_MANAGER] is Severity.FAILURE
    assert host.health is Health.FAILURE


def test_a_restart_changes_nothing_about_the_fabric_manager_before_the_gpus_and_the_bus_are_read(
    host: WholeHost,
) -> None:
    host.devices[99] = PciDevice(slot="0000:99:00.0", kind=PciKind.SWITCH, device_id=0x22A3)
    host.services(service(active="failed", result="signal"))
    host.run(130)
    host.restart_daemon()
    before = len(host.ledger)
    host.step(nvml=host.nvml(PassOutcome.FAILED), pci=host.unread("pci"))
    host.step()
    assert [event.kind for event in host.ledger[before:] if event.key and event.key.code == "service_down"] == []
    assert [finding.severity for finding in host.found("service_down")] == [Severity.FAILURE]


def test_on_a_host_without_nvlink_fabric_its_manager_may_end_as_it_likes(host: WholeHost) -> None:
    for index in host.gpus:
        host.change(index, fabric_state=0)
    host.services(service(active="failed", result="exit-code"))
    host.run(300)
    assert host.health is Health.HEALTHY


def test_a_boot_brings_its_services_up_in_its_own_time(host: WholeHost) -> None:
    host.reboot()
    host.uptime = 20.0
    host.services(service(active="inactive"))
    host.run(270)
    assert host.health is Health.HEALTHY
    host.run(40)
    assert host.codes == ["service_down"]


def test_a_service_that_restarts_in_a_loop_is_down_until_it_has_been_quiet_for_as_long(host: WholeHost) -> None:
    for restarts in range(1, 5):
        host.services(service(restarts=restarts))
        host.run(100)
    assert host.codes == ["service_down"]
    host.restart_daemon()
    host.run(550)
    assert host.codes == ["service_down"]
    host.run(120)
    assert host.health is Health.HEALTHY


@pytest.mark.parametrize(
    ("uuid", "clique", "configured", "reported"),
    [
        (0, 0, False, False),
        (1, 32766, False, True),
        (1, 0, False, True),
        (0, 0, True, True),
        (None, None, False, False),
    ],
)
def test_imex_may_fail_on_a_node_whose_nvlink_domain_is_its_own(
    host: WholeHost, uuid: int | None, clique: int | None, *, configured: bool, reported: bool
) -> None:
    """IMEX has no nodes file there and ends with an error (NVIDIA/NVSentinel#1471: not installed or not configured)."""
    for index in host.gpus:
        host.change(index, fabric_in_cluster=uuid, fabric_clique=clique)
    host.services(service(), service("nvidia-imex.service", active="failed", result="exit-code", configured=configured))
    host.run(300)
    assert host.codes == (["service_down"] if reported else [])


# --- Site checks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("state", "health"), [(WARNING, Health.WARNING), (FAILURE, Health.FAILURE)])
def test_a_site_check_counts_at_once_and_ends_with_its_first_good_run(
    host: WholeHost, state: PluginState, health: Health
) -> None:
    host.checked(nhc=state)
    host.step()
    assert (host.ids, host.health) == ({"plugin_nhc@node"}, health)
    host.restart_daemon()
    host.checked("nhc")
    host.run(60)
    assert host.health is health  # it has not run since
    host.checked(nhc=UNKNOWN, unknown_runs=1)
    host.run(60)
    assert host.health is health
    host.checked(nhc=OK)
    host.run(5)
    assert host.health is Health.HEALTHY


def test_a_site_check_with_three_inconclusive_runs_warns_until_a_conclusive_one(host: WholeHost) -> None:
    host.checked(nhc=FAILURE)
    host.step()
    host.checked(nhc=UNKNOWN, unknown_runs=3)
    host.run(5)
    assert host.ids == {"plugin_nhc@node", "plugin_failed@plugin/nhc"}
    host.restart_daemon()
    host.checked(nhc=UNKNOWN, unknown_runs=1)  # the count begins again, and ends nothing
    host.run(60)
    assert "plugin_failed@plugin/nhc" in host.ids
    host.checked(nhc=OK)
    host.run(5)
    assert host.health is Health.HEALTHY


def test_a_site_check_that_no_longer_runs_keeps_its_result_and_is_reported(host: WholeHost) -> None:
    host.checked(nhc=WARNING)
    while host.uptime < 10_000 + 300:
        host.step()
        host.uptime += 30
    assert host.ids == {"plugin_nhc@node", "plugin_failed@plugin/nhc"}


@pytest.mark.parametrize("others", [True, False])
def test_what_a_site_check_found_that_is_configured_no_more_is_over(host: WholeHost, *, others: bool) -> None:
    host.checked(nhc=FAILURE, gone=UNKNOWN, unknown_runs=3)
    host.step()
    assert len(host.ids) == 3
    host.restart_daemon()
    if others:
        host.checked(other=OK)
    else:
        host.beside.plugin = PassOutcome.ABSENT
    host.run(5)
    assert host.health is Health.HEALTHY


def test_a_site_configures_how_long_a_check_must_fail_and_whether_it_takes_effect() -> None:
    host = WholeHost(rules=Rules(checks={"plugin_slow": CheckRule(rise=60.0), "plugin_new": CheckRule(shadow=True)}))
    host.checked(slow=FAILURE, new=FAILURE)
    host.run(50)
    assert (host.ids, host.health) == ({"plugin_new@node"}, Health.HEALTHY)
    host.run(20)
    assert host.health is Health.FAILURE


# --- Cut anywhere ----------------------------------------------------------------------------------------------------

ACTIONS: dict[str, Callable[[WholeHost, int], object]] = {
    "wait": lambda host, n: host.run(15.0 * n, every=15),
    "ports": lambda host, n: host.ports(
        port("mlx5_0", state=("active", "down")[n % 2]), port("mlx5_1", rate_gbps=(400.0, 200.0)[n // 2 % 2])
    ),
    "unplug": lambda host, n: host.ports(port(f"mlx5_{n % 3}")),
    "mounts": lambda host, n: host.mounts(
        mount("/"), (mount, hung)[n % 2]("/data", expected=n % 3 > 0, read_only=n % 5 == 0)
    ),
    "services": lambda host, n: host.services(service(active=("active", "failed")[n % 2])),
    "memory": lambda host, n: setattr(host.beside, "memory", memory(available=(GIB, 500 * GIB)[n % 2])),
    "plugin": lambda host, n: host.checked(nhc=(OK, WARNING, FAILURE, UNKNOWN)[n % 4], unknown_runs=n % 7),
    "blind": lambda host, n: setattr(host.beside, ("infiniband", "storage")[n % 2], PassOutcome.TIMED_OUT),
    "accept": lambda host, _: host.accept(),
    "reboot": lambda host, _: host.reboot(),
}
scripts = st.lists(st.tuples(st.sampled_from(sorted(ACTIONS)), st.integers(0, 20)), max_size=10)


def play(host: WholeHost, script: list[tuple[str, int]]) -> None:
    for action, number in script:
        ACTIONS[action](host, number)
        host.step()


def outcome(host: WholeHost) -> object:
    host.run(300, every=15)
    return host.health, {(str(f.key), f.severity, f.first_seen) for f in host.findings}, host.state.host


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(before=scripts, after=scripts)
def test_a_restart_at_any_point_of_any_story_leads_to_the_same_end(
    before: list[tuple[str, int]], after: list[tuple[str, int]]
) -> None:
    through, cut = WholeHost(), WholeHost()
    for host in (through, cut):
        host.step()
        play(host, before)
    cut.restart_daemon()
    assert cut.state.host == through.state.host
    for host in (through, cut):
        host.run(15)
        play(host, after)
    assert outcome(cut) == outcome(through)


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(script=scripts)
def test_a_checkpoint_folds_to_what_is_remembered_of_the_host(script: list[tuple[str, int]]) -> None:
    host = WholeHost()
    host.step()
    play(host, script)
    state = State()
    for event in checkpoint(host.state, host.now):
        state = fold(state, replace(event, key=event.key and Key.parse(str(event.key))))  # as the ledger spells it
    assert state.host == host.state.host
    assert {key for key, t in state.tracks.items() if t.raised} == {k for k, t in host.state.tracks.items() if t.raised}
