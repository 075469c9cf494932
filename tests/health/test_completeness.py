"""Machines that were never complete: found by their type or by a gap in their modules, and no healthy one taken for such."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwarden.health.machine_types import GPUS_OF
from gpuwarden.health.model import Health, Severity
from gpuwarden.health.view import CheckRule, Rules
from gpuwarden_collectors.base import Observation, PassOutcome
from gpuwarden_collectors.facts import Placement
from support.hosts import Host

CODE = "inventory_incomplete"
G6E = "Amazon EC2/g6e.12xlarge"


def machine(gpus: int, machine_type: str = "", **rules: object) -> Host:
    return Host(gpus, rules=Rules(machine_type=machine_type, **rules))  # type: ignore[arg-type]


def with_modules(numbers: list[int]) -> Host:
    host = Host(len(numbers))
    host.gpus = {n: replace(host.gpus[n], placement=Placement(module_id=number)) for n, number in enumerate(numbers)}
    return host


def after_minutes(host: Host) -> list[str]:
    host.run(300)
    return [finding.key.code for finding in host.findings]


# --- by the type of machine


def test_three_of_four_gpus_from_the_first_boot_warn_and_say_why() -> None:
    host = machine(3, G6E)
    assert after_minutes(host) == [CODE]
    (finding,) = host.findings
    assert (finding.severity, host.health) == (Severity.WARNING, Health.WARNING)
    assert finding.evidence["why"] == "3 of the 4 GPUs of the machine type g6e.12xlarge were ever seen here"
    assert host.last is not None
    assert (host.last.verdict.expected, host.last.verdict.expected_from) == (4, "machine_type")
    host.reboot()
    assert after_minutes(host) == [CODE]


def test_it_is_a_failure_if_the_site_sets_it() -> None:
    host = machine(3, G6E, checks={CODE: CheckRule(severity=Severity.FAILURE)})
    after_minutes(host)
    assert host.health is Health.FAILURE


def test_a_gpu_that_was_once_here_is_missing_and_that_is_a_failure() -> None:
    host = machine(4, G6E)
    assert after_minutes(host) == []
    host.reboot()
    del host.gpus[3], host.devices[3]
    assert after_minutes(host) == ["gpu_missing"]
    assert host.health is Health.FAILURE


def test_the_last_gpu_of_the_type_ends_the_warning() -> None:
    host, complete = machine(3, G6E), Host(4)
    after_minutes(host)
    host.gpus[3], host.devices[3] = complete.gpus[3], complete.devices[3]
    assert after_minutes(host) == []


@pytest.mark.parametrize(
    ("gpus", "machine_type"),
    [
        (4, G6E),
        (5, G6E),
        (3, ""),
        (3, "Amazon EC2/g9z.12xlarge"),
        (3, "QEMU/Standard PC (Q35 + ICH9, 2009)"),
        (3, "Microsoft Corporation/Virtual Machine"),
        (3, "Evil/g6e.12xlarge"),
        (1, "Amazon EC2/g6f.xlarge"),
        (4, "Google/a3-highgpu-4g"),
        (3, "Google/Google Compute Engine"),
    ],
)
def test_a_complete_or_unknown_type_is_healthy(gpus: int, machine_type: str) -> None:
    assert after_minutes(machine(gpus, machine_type)) == []


def test_what_the_site_configured_alone_counts() -> None:
    host = machine(3, G6E, expected_gpus=3)
    assert after_minutes(host) == []
    assert host.last is not None
    assert host.last.verdict.expected_from == "configured"
    assert after_minutes(machine(0, G6E, expected_gpus=0)) == []


def test_gpus_of_a_guest_are_not_missed() -> None:
    """A70: bound to vfio-pci, they are on the bus and not in NVML."""
    host = machine(4, G6E)
    for n in (2, 3):
        del host.gpus[n]
        host.devices[n] = replace(host.devices[n], driver="vfio-pci")
    assert after_minutes(host) == []
    assert host.last is not None
    assert host.last.verdict.expected == 2


def test_a_gpu_that_was_given_up_is_not_missed() -> None:
    host = machine(4, G6E)
    after_minutes(host)
    del host.gpus[3], host.devices[3]
    host.run(60)
    host.accept()
    assert after_minutes(host) == []


def test_a_container_that_cannot_read_the_bus_is_not_judged() -> None:
    host = machine(2, G6E)
    host.devices = {}
    assert after_minutes(host) == []
    assert host.last is not None
    assert host.last.verdict.expected_from == "learned"


def lose_sight_of_the_bus(host: Host) -> None:
    host.pci = lambda: Observation(  # type: ignore[method-assign]
        collector="pci", outcome=PassOutcome.FAILED, started=host.now, finished=host.now
    )


def test_a_bus_that_can_no_longer_be_read_ends_no_finding() -> None:
    host = machine(3, G6E)
    assert after_minutes(host) == [CODE]
    lose_sight_of_the_bus(host)
    assert CODE in after_minutes(host)


def test_modules_are_not_compared_where_the_bus_was_never_read() -> None:
    host = with_modules([1, 2, 4])
    lose_sight_of_the_bus(host)
    assert CODE not in after_minutes(host)


def test_mig_changes_nothing() -> None:
    host = machine(4, G6E)
    for n in host.gpus:
        host.change(n, mig_mode=1)
    assert after_minutes(host) == []


# --- by the modules of the baseboard


@pytest.mark.parametrize(
    "numbers", [[1, 2, 4], [2, 3, 5], [1, 2, 3, 5, 6, 7, 8], [0, 1, 2, 4, 5, 6, 7], [1, 3, 4, 6, 8]]
)
def test_a_gap_in_the_modules_warns(numbers: list[int]) -> None:
    host = with_modules(numbers)
    assert after_minutes(host) == [CODE]
    gaps = sorted(set(range(numbers[0], numbers[-1])) - set(numbers))
    assert host.findings[0].evidence["never_seen"] == " ".join(map(str, gaps))


@pytest.mark.parametrize(
    "numbers",
    [
        [1, 2, 3, 4, 5, 6, 7, 8],
        [1, 2, 3, 4],
        [1, 3],  # parts of a board as NVIDIA's fabric manager gives them to guests
        [5, 7],
        [1, 2, 5, 6],
        [4],
        [0, 0, 0],  # cards without a baseboard
        [1, 1, 1, 1, 1],
        [1, 2, 3],  # the last of four may be missing: not found
        [1, 2, 17],  # no numbers of one board
    ],
)
def test_whole_boards_parts_of_boards_and_cards_are_healthy(numbers: list[int]) -> None:
    assert after_minutes(with_modules(numbers)) == []


def test_modules_of_different_models_of_other_owners_and_behind_a_missing_gpu_are_not_compared() -> None:
    host = with_modules([1, 2, 4])
    host.gpus[0] = replace(host.gpus[0], name="NVIDIA A100-SXM4-80GB")
    assert after_minutes(host) == []

    host = with_modules([1, 2, 4])
    host.devices[3] = replace(Host(4).devices[3], driver="vfio-pci")
    assert after_minutes(host) == []

    host = with_modules([1, 2, 3, 4])
    host.run(60)
    del host.gpus[2], host.devices[2]
    assert after_minutes(host) == ["gpu_missing"]


# --- the table


def test_the_table_names_whole_machines_by_their_exact_firmware() -> None:
    assert GPUS_OF["Amazon EC2/p5.48xlarge"] == 8
    assert GPUS_OF["Amazon EC2/p5.4xlarge"] == 1
    assert GPUS_OF["Azure/Standard_ND128isr_NDR_GB200_v6"] == 4
    assert (
        GPUS_OF["Google/a3-ultragpu-8g"]
        == GPUS_OF["Google/a4-highgpu-8g-lowmem"]
        == GPUS_OF["Google/g2-standard-96"]
        == 8
    )
    assert GPUS_OF["Google/a2-megagpu-16g"] == 16
    assert GPUS_OF["Google/a4x-highgpu-4g"] == 4
    assert {name.partition("/")[0] for name in GPUS_OF} == {"Amazon EC2", "Azure", "Google"}
    assert set(GPUS_OF.values()) == {1, 2, 4, 8, 16}
    assert not [name for name in GPUS_OF if "g6f." in name or "gr6f." in name or "g4ad." in name]
