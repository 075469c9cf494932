"""The verbs that change something: what they ask of the daemon and what they print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuwarden_collectors.nvml.simulated_faults import FAULTS
from support.commands import gpuwarden
from support.control_server import refusal, result, serving

GPU = {
    "pci_bus_id": "0000:4e:00.0", "uuid": "GPU-1", "name": "NVIDIA H100", "serial": "165", "why": "", "expected": True,
    "presence": "present", "first_seen": 1_800_000_000.0,
}  # fmt: skip
GONE = {**GPU, "pci_bus_id": "0000:4f:00.0", "presence": "gone", "why": "not on the PCI bus"}
FOREIGN = {
    **GPU,
    "pci_bus_id": "0000:50:00.0",
    "uuid": "",
    "name": "",
    "expected": False,
    "presence": "foreign",
    "why": "bound to vfio-pci",
}


@pytest.mark.parametrize(
    ("words", "asked", "answer", "printed"),
    [
        (["ack", "xid.79@gpu/0000:4e:00.0"], {"verb": "ack", "finding": "xid.79@gpu/0000:4e:00.0"}, "acknowledged: it", "acknowledged: it\n"),
        (["inject", "--gpu", "3", "xid", "79"], {"verb": "inject", "fault": ["xid", "79"], "gpu": 3}, "injected\x1b", "injected\\x1b\n"),
        (["inject", "clear"], {"verb": "inject", "fault": ["clear"], "gpu": None}, "cleared", "cleared\n"),
        (["inventory", "accept"], {"verb": "accept"}, {"given_up": ["a", "b"]}, "no longer expected: a, b\n"),
        (["inventory", "accept"], {"verb": "accept"}, {"fewer_links": ["a"]}, "inactive NVLinks are no longer expected of: a\n"),
        (["inventory", "accept"], {"verb": "accept"}, {"narrower": ["a"]}, "the present number of PCIe lanes is accepted for: a\n"),
        (["inventory", "accept"], {"verb": "accept"}, {"given_up": []}, "nothing to accept: every expected GPU is present\n"),
        (["inventory", "show"], {"verb": "inventory"}, [], "no GPU is expected, and none was found\n"),
    ],
)  # fmt: skip
def test_a_verb_is_asked_of_the_daemon_and_its_answer_is_printed(
    words: list[str], asked: dict[str, object], answer: object, printed: str, tmp_path: Path
) -> None:
    with serving(tmp_path / "run", lambda _: result(answer)) as requests:
        done = gpuwarden(*words, "--run-dir", tmp_path / "run", temporary=tmp_path)
    assert (requests, done.returncode, done.stdout, done.stderr) == ([asked], 0, printed, "")


def test_the_inventory_shows_what_belongs_here_and_where_it_is(tmp_path: Path) -> None:
    with serving(tmp_path / "run", lambda _: result([GPU, GONE, FOREIGN])):
        shown = gpuwarden("inventory", "show", "--run-dir", tmp_path / "run", temporary=tmp_path)
        json_shown = gpuwarden("inventory", "show", "--json", "--run-dir", tmp_path / "run", temporary=tmp_path)
    assert [line.split("  ") for line in shown.stdout.splitlines()[1:]] == [
        line.split("  ")
        for line in (
            "0000:4e:00.0  since 2027-01-15  present                     GPU-1  NVIDIA H100",
            "0000:4f:00.0  since 2027-01-15  gone: not on the PCI bus    GPU-1  NVIDIA H100",
            "0000:50:00.0  no                foreign: bound to vfio-pci  -      -",
        )
    ]
    assert json.loads(json_shown.stdout) == [GPU, GONE, FOREIGN]


@pytest.mark.parametrize("words", [["ack", "x"], ["inject", "lost"], ["inventory", "show"]])
def test_a_refusal_is_shown_with_its_exit_code_and_no_daemon_is_69(words: list[str], tmp_path: Path) -> None:
    with serving(tmp_path / "run", lambda _: refusal("not for you", 77)):
        done = gpuwarden(*words, "--run-dir", tmp_path / "run", temporary=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (77, "", f"gpuwarden {words[0]}: not for you\n")
    assert gpuwarden(*words, "--run-dir", tmp_path, temporary=tmp_path).returncode == 69


def test_help_of_inject_lists_every_fault(tmp_path: Path) -> None:
    listed = gpuwarden("inject", "--help", temporary=tmp_path).stdout
    assert all(f"\n  {name} " in listed for name in [*FAULTS, "clear"])


def test_help_of_inject_says_that_xid_79_takes_the_gpu_with_it(tmp_path: Path) -> None:
    listed = gpuwarden("inject", "--help", temporary=tmp_path).stdout
    assert "With Xid 79 the GPU is lost, too" in listed
    assert "xid 79            GPU 3 falls off the bus: the node is a failure" in listed
