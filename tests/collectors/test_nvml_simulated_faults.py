"""The table of faults for simulated GPUs: what can be injected, what is refused and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuwarden_collectors.nvml.simulated_faults import FAULTS, Fault, add, brought_by, clear, load, parse_fault, save


@pytest.mark.parametrize(
    ("words", "gpu", "complaint"),
    [
        ("", 0, "known faults: xid, ecc-uncorrectable"),
        ("bogus", 0, "'bogus' is not a fault; known faults: xid"),
        ("xid", 0, "xid needs a number: xid N"),
        ("xid seventynine", 0, "xid N is a number from 0 to"),
        ("xid -1", 0, "xid N is a number from 0 to"),
        ("xid 1 2", 0, "xid takes one number"),
        ("lost 3", 0, "lost takes nothing"),
        ("nvlink-down 18", 0, "nvlink-down LINK is a number from 0 to 17"),
        ("pcie-width 99999999999999999999", 0, "pcie-width N is a number from 0 to 16"),
        ("lost", None, "lost concerns one GPU"),
        ("lost", -1, "numbered from 0"),
        ("driver-gone", 0, "driver-gone concerns all GPUs"),
    ],
)
def test_a_fault_that_makes_no_sense_is_explained(words: str, gpu: int | None, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_fault(words.split(), gpu)


def test_every_fault_of_the_table_can_be_injected_and_read_back(tmp_path: Path) -> None:
    faults: tuple[Fault, ...] = ()
    for name, kind in FAULTS.items():
        words = [name, "1"] if kind.parameter else [name]
        faults = add(faults, parse_fault(words, None if kind.driver_error else 2), 12.5)
    save(tmp_path, faults)
    assert load(tmp_path) == faults
    assert len(faults) == len(FAULTS)


def test_the_same_fault_again_restarts_its_time_but_each_xid_counts() -> None:
    overheat, xid = parse_fault(["overheat"], 0), parse_fault(["xid", "79"], 0)
    assert add(add((), overheat, 1.0), overheat, 2.0) == (replace(overheat, at=2.0),)
    assert len(add(add((), xid, 1.0), xid, 2.0)) == 2


@pytest.mark.parametrize(
    ("words", "brought"), [("xid 79", (Fault("lost", 2),)), ("xid 95", ()), ("overheat", ()), ("nvlink-down 9", ())]
)
def test_xid_79_alone_brings_another_fault_which_is_the_loss_of_its_gpu(words: str, brought: tuple[Fault, ...]) -> None:
    assert brought_by(parse_fault(words.split(), 2)) == brought


def test_clearing_one_gpu_leaves_the_faults_of_the_others() -> None:
    faults = (Fault("lost", 0), Fault("lost", 1), Fault("driver-gone"))
    assert clear(faults, 0) == (Fault("lost", 1), Fault("driver-gone"))
    assert clear(faults) == ()


def test_there_is_an_end_to_injecting() -> None:
    faults: tuple[Fault, ...] = ()
    with pytest.raises(ValueError, match="clear some first"):  # noqa: PT012 - which one is too many is not the point
        for number in range(1000):
            faults = add(faults, Fault("xid", 0, number), 0.0)
