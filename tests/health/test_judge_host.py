"""The judge on ports and mounts: against what they once were, over restarts and reboots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpuwarden.health.inventory import accept, accepted
from gpuwarden.health.model import Advice, EventKind, Health
from gpuwarden.health.view import Rules, Sight
from gpuwarden_collectors.base import PassOutcome
from gpuwarden_collectors.host_facts import InfinibandFacts, MountFacts, PortFacts
from support.hosts import slot
from support.whole_hosts import WholeHost, hung, mount, port

GONE = PassOutcome.ABSENT
HOUR = 3600.0


def healthy_for(seconds: float, host: WholeHost) -> None:
    """Nothing is found meanwhile, at any pass."""
    end = host.uptime + seconds
    while host.uptime < end:
        host.run(10)
        assert host.health is Health.HEALTHY, host.ids


@pytest.fixture
def host() -> WholeHost:
    host = WholeHost()
    host.run(30)
    assert host.health is Health.HEALTHY
    return host


# --- Ports ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ports",
    [(port("mlx5_0"), port("mlx5_1", state="down", physical_state="polling")), (port("mlx5_0"),)],
    ids=["down", "gone"],
)
def test_a_port_that_was_up_fails_the_node_after_two_minutes_and_ends_when_it_is_back(
    host: WholeHost, ports: tuple[PortFacts, ...]
) -> None:
    host.ports(*ports)
    healthy_for(110, host)
    host.run(30)
    assert (host.ids, host.health) == ({"infiniband_down@port/mlx5_1/1"}, Health.FAILURE)
    host.ports(port("mlx5_0"), port("mlx5_1"))
    host.run(40)
    assert host.ids == {"infiniband_down@port/mlx5_1/1"}  # it must be up for a minute
    host.run(40)
    assert host.health is Health.HEALTHY


def test_a_reload_of_the_network_driver_is_no_fault(host: WholeHost) -> None:
    host.beside.infiniband = GONE
    healthy_for(60, host)
    host.ports(port("mlx5_0", state="init", rate_gbps=10.0), port("mlx5_1", state="down", rate_gbps=10.0))
    healthy_for(30, host)
    host.ports(port("mlx5_0"), port("mlx5_1"))
    healthy_for(300, host)


def test_a_network_driver_that_does_not_come_back_fails_all_its_ports(host: WholeHost) -> None:
    host.beside.infiniband = GONE
    host.run(130)
    down = host.found("infiniband_down")
    assert [finding.advice for finding in down] == [Advice.RESTART_SERVICE] * 2


def test_a_port_that_was_never_up_is_nobody_s_to_miss() -> None:
    host = WholeHost()
    host.ports(port("mlx5_0"), port("mlx5_9", state="down"))
    healthy_for(600, host)


def test_what_ports_once_were_survives_a_restart_and_a_reboot(host: WholeHost) -> None:
    host.restart_daemon()
    host.reboot()
    host.ports(port("mlx5_0", rate_gbps=200.0))
    host.run(300)
    assert host.ids == {"infiniband_down@port/mlx5_1/1", "infiniband_rate_low@port/mlx5_0/1"}


def test_while_the_host_boots_ports_and_mounts_have_time(host: WholeHost) -> None:
    host.reboot()
    host.uptime = 20.0
    host.ports(port("mlx5_0", state="init"))
    host.mounts(mount("/"), MountFacts(path="/data", expected=True, mounted=False))
    healthy_for(270, host)
    host.run(30)
    assert set(host.codes) == {"infiniband_down", "mount_missing"}


def test_a_port_that_is_excluded_from_now_on_is_forgotten_and_its_finding_ends(host: WholeHost) -> None:
    host.ports(port("mlx5_0"))
    host.run(130)
    assert host.codes == ["infiniband_down"]
    host.beside.infiniband = InfinibandFacts(ports=(port("mlx5_0"),), excluded=(r"(?s:mlx5_1)\Z",))
    host.run(70)
    assert host.health is Health.HEALTHY
    host.restart_daemon()
    host.ports(port("mlx5_0"))
    healthy_for(300, host)


# --- Names of ports ------------------------------------------------------------------------------------------------


ADAPTERS = [f"0000:{bus}:00.0" for bus in ("18", "29", "3a", "4b")]


def named(*names: str, slots: Sequence[str] = ADAPTERS, **more: Any) -> tuple[PortFacts, ...]:
    """Ports of these devices, each on an adapter of its own."""
    return tuple(port(name, slot=at, **more) for name, at in zip(names, slots, strict=True))


def with_ports(*ports: PortFacts) -> WholeHost:
    host = WholeHost()
    host.ports(*ports)
    host.run(30)
    assert host.health is Health.HEALTHY
    return host


def test_ports_that_another_package_of_drivers_names_anew_are_not_missed() -> None:
    host = with_ports(*named("ibp24s0", "ibp41s0", "ibp58s0", "ibp75s0"))
    host.reboot()
    host.ports(*named("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"))
    healthy_for(600, host)
    host.restart_daemon()
    healthy_for(300, host)


def test_a_port_that_is_down_under_its_new_name_fails_the_node() -> None:
    host = with_ports(*named("ibp24s0", "ibp41s0", "ibp58s0", "ibp75s0"))
    host.reboot()
    host.ports(*named("mlx5_0", "mlx5_1", "mlx5_2", slots=ADAPTERS[:3]), port("mlx5_3", slot=ADAPTERS[3], state="down"))
    host.run(600)
    assert host.ids == {"infiniband_down@port/mlx5_3/1"}


def test_the_missing_adapter_is_named_where_those_behind_it_moved_up() -> None:
    host = with_ports(
        *named("mlx5_0", "mlx5_1", "mlx5_2", slots=ADAPTERS[:3], rate_gbps=400.0),
        port("mlx5_3", slot=ADAPTERS[3], rate_gbps=100.0),
    )
    host.reboot()
    left = named("mlx5_0", "mlx5_1", slots=(ADAPTERS[0], ADAPTERS[2]))
    host.ports(*left, port("mlx5_2", slot=ADAPTERS[3], rate_gbps=100.0))
    host.run(600)
    assert host.ids == {"infiniband_down@port/mlx5_3/1"}  # and no port is slower than before
    (down,) = host.found("infiniband_down")
    assert down.evidence == {"why": "the port is gone", "adapter": ADAPTERS[1]}
    host.ports(*left, port("mlx5_2", slot=ADAPTERS[3], rate_gbps=50.0))
    host.run(600)
    assert host.ids == {"infiniband_down@port/mlx5_3/1", "infiniband_rate_low@port/mlx5_2/1"}


def test_adapters_that_a_reloaded_driver_finds_one_by_one_are_not_mixed_up() -> None:
    names = ("mlx5_0", "mlx5_1", "mlx5_2")
    host = with_ports(*named(*names, slots=ADAPTERS[:3]))
    host.ports(*named("mlx5_0", slots=ADAPTERS[2:3]))
    host.run(30)
    host.ports(*named("mlx5_0", "mlx5_1", slots=(ADAPTERS[2], ADAPTERS[0])))
    host.run(600)
    (down,) = host.found("infiniband_down")
    assert down.evidence["adapter"] == ADAPTERS[1]
    host.ports(*named(*names, slots=(ADAPTERS[2], ADAPTERS[0], ADAPTERS[1])))
    host.run(120)
    healthy_for(600, host)


def test_ports_named_by_their_place_are_the_same_where_the_buses_are_numbered_anew() -> None:
    """An update of the firmware does that, or one card more."""

    def placed(**guids: str) -> tuple[PortFacts, ...]:
        return tuple(port(name, slot=f"0000:{int(name[3:-2]):02x}:00.0", guid=guid) for name, guid in guids.items())

    host = with_ports(*placed(ibp93s0="a", ibp94s0="b", ibp160s0="c"))
    host.restart_daemon()
    host.reboot()
    host.ports(*placed(ibp94s0="a", ibp95s0="b", ibp161s0="c"))
    healthy_for(600, host)
    host.restart_daemon()
    host.reboot()
    host.ports(*placed(ibp95s0="a", ibp162s0="c"))
    host.run(600)
    assert host.codes == ["infiniband_down"]
    (down,) = host.found("infiniband_down")
    assert down.evidence == {"why": "the port is gone"}  # where it was another one is


def test_an_adapter_that_was_exchanged_is_the_same_port() -> None:
    old, new = (port("mlx5_0", slot=ADAPTERS[0], guid=guid) for guid in ("a", "b"))
    host = with_ports(old, port("mlx5_1", slot=ADAPTERS[1], guid="c"))
    host.reboot()
    host.ports(new, port("mlx5_1", slot=ADAPTERS[1], guid="c"))
    healthy_for(600, host)
    host.ports(replace(new, state="down"), port("mlx5_1", slot=ADAPTERS[1], guid="c"))
    host.run(600)
    assert host.ids == {"infiniband_down@port/mlx5_0/1"}


@pytest.mark.parametrize("name", ["mlx5_bond_0", "rocep24s0f0"])
def test_two_ports_of_an_adapter_that_become_a_bond_are_not_missed(name: str) -> None:
    first, second = "0000:18:00.0", "0000:18:00.1"
    roce = {"link_layer": "Ethernet", "rate_gbps": 100.0}
    host = with_ports(port("rocep24s0f0", slot=first, **roce), port("rocep24s0f1", slot=second, **roce))
    bond = port(name, slot=first, merged=(second,), **{**roce, "rate_gbps": 200.0})
    host.ports(bond)
    healthy_for(600, host)
    host.ports(replace(bond, state="down"))
    host.run(600)
    assert host.ids == {f"infiniband_down@port/{name}/1"}
    host.ports(port("rocep24s0f0", slot=first, **roce), port("rocep24s0f1", slot=second, **roce))
    host.run(120)
    assert "infiniband_down" not in host.codes


def test_devices_that_share_a_function_are_known_by_their_own_names() -> None:
    function = "0000:18:00.0"
    whole, part, other = (port(f"mlx5_{number}", slot=function, rate_gbps=400.0 / (number + 1)) for number in range(3))
    host = with_ports(whole, part)
    host.ports(whole, part, other)
    healthy_for(300, host)
    host.ports(whole)  # an administrator removed the subfunctions
    healthy_for(300, host)


def test_an_operator_accepts_the_ports_as_they_are(host: WholeHost) -> None:
    host.ports(port("mlx5_0", rate_gbps=200.0))
    host.run(300)
    assert set(host.codes) == {"infiniband_down", "infiniband_rate_low"}
    host.accept()
    host.run(70)
    assert host.health is Health.HEALTHY
    host.restart_daemon()
    healthy_for(300, host)


def test_what_was_accepted_is_named_by_what_became_less_of_it() -> None:
    host = WholeHost(3)
    host.run(30)
    host.change(1, pcie_width=8)
    host.gpus[2] = replace(host.gpus[2], links=host.gpus[2].links[:4])
    host.ports(port("mlx5_0", rate_gbps=200.0))
    host.run(30)
    assert accepted(accept(host.state, Sight.of(host.view, host.rules, host.now))) == {
        "given_up": ["mlx5_1/1"], "slower": ["mlx5_0/1"], "fewer_links": [slot(2)], "narrower": [slot(1)],
    }  # fmt: skip


@pytest.mark.slow
def test_three_times_down_within_three_hours_is_flapping_however_short(host: WholeHost) -> None:
    for downs in (1, 2):
        host.ports(port("mlx5_0"), port("mlx5_1", link_downed=downs))
        healthy_for(1800, host)
    host.ports(port("mlx5_0"), port("mlx5_1", link_downed=3))
    host.run(5)
    assert host.ids == {"infiniband_flapping@port/mlx5_1/1"}
    assert host.health is Health.WARNING
    host.run(1.9 * HOUR, every=20)
    assert host.codes == ["infiniband_flapping"]
    host.run(0.6 * HOUR, every=20)  # the first two are out of the window, and it was quiet for the rest
    assert host.codes == []


def test_a_restart_ends_no_flapping_before_the_port_was_followed_for_as_long(host: WholeHost) -> None:
    host.ports(port("mlx5_0"), port("mlx5_1", link_downed=3))
    host.run(20)
    host.restart_daemon()
    host.run(2.9 * HOUR, every=20)
    assert host.codes == ["infiniband_flapping"]
    host.run(0.5 * HOUR, every=20)
    assert host.codes == []


def test_the_counters_of_a_port_that_is_known_no_more_are_forgotten(host: WholeHost) -> None:
    host.ports(port("mlx5_0"), port("mlx5_1", symbol_error=0))
    host.run(10)
    host.ports(port("mlx5_0"))
    host.run(10)
    assert ("port/mlx5_1/1", "symbol_error") in host.state.moments.host_windows  # it may come back, and count on
    host.accept()
    host.run(10)
    assert ("port/mlx5_1/1", "symbol_error") not in host.state.moments.host_windows


def on_roce(*, route: int | None = 0, down: Sequence[int] = (), management: float = 100.0) -> tuple[PortFacts, ...]:
    """A management port and two of the job fabric, all Ethernet. `route`: the port with the default route, None: nobody has one."""
    rates = (management, 400.0, 400.0)
    return tuple(
        port(
            f"mlx5_{n}", link_layer="Ethernet", rate_gbps=rate, state="down" if n in down else "active",
            default_route=None if route is None else n == route,
        )
        for n, rate in enumerate(rates)
    )  # fmt: skip


def severities(host: WholeHost) -> dict[str, str]:
    return {finding.key.subject.part: finding.severity.value for finding in host.found("infiniband_down")}


def roce_host(*, management: float = 100.0) -> WholeHost:
    host = WholeHost()
    host.ports(*on_roce(management=management))
    host.run(30)
    return host


def test_a_management_port_that_is_down_warns_and_one_of_the_fabric_fails_also_after_a_restart() -> None:
    host = roce_host(management=400.0)
    host.ports(*on_roce(route=None, down=[0], management=400.0))  # with the port its route is gone
    host.run(150)
    assert (severities(host), host.health) == ({"mlx5_0/1": "warning"}, Health.WARNING)
    host.restart_daemon()
    host.run(30)
    assert severities(host) == {"mlx5_0/1": "warning"}
    host.checkpointed()
    host.ports(*on_roce(route=None, down=[0, 2], management=400.0))
    host.run(150)
    assert severities(host) == {"mlx5_0/1": "warning", "mlx5_2/1": "failure"}


def test_a_default_route_that_is_absent_for_a_moment_makes_no_other_port_of_it() -> None:
    host = roce_host(management=400.0)
    for route in (None, 0, None):
        host.ports(*on_roce(route=route, management=400.0))
        host.run(30)
    host.ports(*on_roce(route=None, down=[0], management=400.0))
    host.run(150)
    assert severities(host) == {"mlx5_0/1": "warning"}


def test_a_port_that_replaces_the_management_port_stays_one_of_the_fabric() -> None:
    host = roce_host(management=400.0)
    host.ports(*on_roce(route=1, down=[0], management=400.0))
    host.run(150)
    host.ports(*on_roce(route=None, down=[0, 1], management=400.0))
    host.run(150)
    assert severities(host) == {"mlx5_0/1": "warning", "mlx5_1/1": "failure"}


def test_a_default_route_that_moves_to_another_port_takes_the_role_along() -> None:
    host = roce_host(management=400.0)
    host.ports(*on_roce(route=1, management=400.0))
    host.run(30)
    host.ports(*on_roce(route=None, down=[0, 1], management=400.0))
    host.run(150)
    assert severities(host) == {"mlx5_0/1": "failure", "mlx5_1/1": "warning"}


def test_a_default_route_over_something_else_takes_no_role_away() -> None:
    host = roce_host(management=400.0)
    host.ports(*on_roce(route=9, management=400.0))  # a tunnel
    host.run(30)
    host.ports(*on_roce(route=9, down=[0], management=400.0))
    host.run(150)
    assert severities(host) == {"mlx5_0/1": "warning"}


def test_the_only_port_of_a_machine_fails_it_also_with_the_default_route() -> None:
    host = WholeHost()
    host.ports(port("mlx5_0", link_layer="Ethernet", default_route=True))
    host.run(30)
    host.ports(port("mlx5_0", link_layer="Ethernet", state="down"))
    host.run(150)
    assert severities(host) == {"mlx5_0/1": "failure"}


# --- Mounts --------------------------------------------------------------------------------------------------------


def test_the_failover_of_a_file_server_is_no_fault_and_a_server_that_is_gone_is(host: WholeHost) -> None:
    host.mounts(mount("/"), hung("/data", expected=True))
    healthy_for(100, host)
    host.mounts(mount("/"), mount("/data", expected=True))
    healthy_for(60, host)
    host.mounts(mount("/"), hung("/data", expected=True))
    host.run(130)
    assert host.ids == {"mount_hung@mount//data"}
    assert host.health is Health.FAILURE


def test_an_expected_mount_that_is_gone_fails_the_node_and_another_may_go(host: WholeHost) -> None:
    host.mounts(mount("/"), mount("/data", expected=True), mount("/scratch"))
    host.run(10)
    host.mounts(mount("/"), mount("/data", expected=True))
    healthy_for(300, host)
    host.mounts(mount("/"), MountFacts(path="/data", expected=True, mounted=False))
    host.run(70)
    assert host.ids == {"mount_missing@mount//data"}
    host.mounts(mount("/"))  # the configuration expects it no more
    host.run(40)
    assert host.health is Health.HEALTHY


def test_a_mount_that_became_read_only_is_found_also_after_a_restart(host: WholeHost) -> None:
    host.restart_daemon()
    host.mounts(mount("/"), mount("/data", expected=True, read_only=True), mount("/sets", read_only=True))
    host.run(70)
    assert host.ids == {"mount_read_only@mount//data"}
    assert host.health is Health.FAILURE


def test_a_mount_that_is_gone_is_forgotten_but_not_while_the_host_boots(host: WholeHost) -> None:
    host.reboot()
    host.uptime = 30.0
    host.mounts(mount("/"))
    host.run(60)
    assert set(host.state.host.mounts) == {"/", "/data"}
    host.run(600)
    assert set(host.state.host.mounts) == {"/"}


def test_a_full_file_system_warns_after_a_minute_and_keeps_warning_while_it_hangs(host: WholeHost) -> None:
    host.mounts(mount("/", bytes_free=0, bytes_available=0), mount("/data", expected=True))
    healthy_for(50, host)
    host.run(30)
    assert (host.codes, host.health) == (["disk_full"], Health.WARNING)
    host.mounts(hung("/"), mount("/data", expected=True))
    host.run(80)
    assert host.codes == ["disk_full"]
    host.mounts(mount("/"), mount("/data", expected=True))
    host.run(70)
    assert host.health is Health.HEALTHY


# --- Collectors without a result -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("outcome", [PassOutcome.FAILED, PassOutcome.TIMED_OUT])
def test_a_collector_that_fails_neither_adds_nor_ends_anything_but_that_it_failed(outcome: PassOutcome) -> None:
    for before, codes in (((port("mlx5_0"), port("mlx5_1")), set()), ((port("mlx5_0"),), {"infiniband_down"})):
        host = WholeHost()
        host.run(10)
        host.ports(*before)
        host.run(200)
        host.beside.infiniband = outcome
        host.run(7 * HOUR, every=60)
        assert set(host.codes) == codes | {"collector_failed"}
        (failed,) = host.found("collector_failed")
        assert (failed.key.detail, failed.evidence["why"]) == ("infiniband", "no such thing")


@pytest.mark.parametrize("collector", ["storage", "memory", "processes", "services", "plugin"])
def test_every_collector_of_the_host_is_reported_when_it_fails(host: WholeHost, collector: str) -> None:
    setattr(host.beside, collector, PassOutcome.FAILED)
    host.run(40)
    assert host.ids == {f"collector_failed.{collector}@node"}
    assert host.health is Health.WARNING


def test_what_a_collector_found_is_over_when_it_is_switched_off(host: WholeHost) -> None:
    host.ports(port("mlx5_0"))
    host.run(200)
    assert host.codes == ["infiniband_down"]
    host.restart_daemon()
    host.rules = Rules(off=("infiniband",))
    host.beside.infiniband = None
    host.run(70)
    assert host.codes == []


# --- Passes that are as far apart as may be -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ((mount("/"), MountFacts(path="/data", expected=True, mounted=False)), "mount_missing"),
        ((mount("/"), mount("/data", expected=True, read_only=True)), "mount_read_only"),
    ],
)
def test_one_look_at_a_mount_that_is_mounted_anew_fails_nothing_however_long_until_the_next(
    host: WholeHost, wrong: tuple[MountFacts, ...], code: str
) -> None:
    well = (mount("/"), mount("/data", expected=True))
    for mounts, codes in ((wrong, []), (well, []), (wrong, []), (wrong, [code])):
        host.mounts(*mounts)
        host.step()
        assert host.codes == codes
        host.beside.storage = None
        host.run(60)
        host.uptime += 1
    assert sum(event.kind == EventKind.RAISED for event in host.ledger) == 1
