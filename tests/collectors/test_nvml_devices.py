"""Devices that may not be opened: reported as such, whatever NVML makes of it, and never over a definite result about a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuwarden_collectors.facts import NvmlFacts, NvmlProblem
from gpuwarden_collectors.nvml.devices import refused
from gpuwarden_collectors.nvml.library import Code
from gpuwarden_collectors.nvml.options import NvmlOptions
from gpuwarden_collectors.nvml.reader import NvmlReader
from support.nvml_nodes import Node, node_in


@contextmanager
def nobody() -> Iterator[None]:
    """Run the block as a user without rights: root may open everything."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    with node_in(tmp_path, monkeypatch) as node:
        node.fake.control.chmod(0o644)
        yield node


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    folder = tmp_path / "dev"
    folder.mkdir()
    for name, mode in (
        ("nvidiactl", 0o666),
        ("nvidia0", 0o666),
        ("nvidia1", 0o000),
        ("nvidia-uvm", 0o000),
        ("kmsg", 0o000),
    ):
        (folder / name).touch()
        (folder / name).chmod(mode)
    return folder


def read(node: Node, dev: Path) -> NvmlFacts:
    reader = NvmlReader(NvmlOptions(library=str(node.fake.library)), dev=dev)
    try:
        reader.connect()  # what it loads need not be readable for others
        with nobody():
            return reader.read()
    finally:
        reader.close()


def test_of_the_drivers_own_devices_those_are_named_that_may_not_be_opened(dev: Path) -> None:
    with nobody():
        assert refused(dev) == (str(dev / "nvidia1"),)
        assert refused(dev / "nowhere") == ()
    (dev / "nvidia1").chmod(0o666)
    with nobody():
        assert refused(dev) == ()


def test_an_unknown_error_with_a_device_that_may_not_be_opened_is_a_lack_of_permission(node: Node, dev: Path) -> None:
    node.fake.init_error(Code.UNKNOWN)
    facts = read(node, dev)
    assert facts.problem is NvmlProblem.NO_PERMISSION
    assert str(dev / "nvidia1") in facts.problem_text
    (dev / "nvidia1").chmod(0o666)
    assert read(node, dev).problem is NvmlProblem.OTHER


def test_a_definite_result_of_nvml_is_accepted(node: Node, dev: Path) -> None:
    assert read(node, dev).problem is None
    node.fake.lost(1)
    assert read(node, dev).problem is None
    node.fake.clear().init_error(Code.DRIVER_NOT_LOADED)
    assert read(node, dev).problem is NvmlProblem.DRIVER_NOT_LOADED


def test_a_gpu_of_which_there_are_only_unknown_errors_is_no_dead_one_while_we_may_not_open_it(
    node: Node, dev: Path
) -> None:
    node.fake.lost(1, Code.UNKNOWN)
    assert read(node, dev).problem is NvmlProblem.NO_PERMISSION
    (dev / "nvidia1").chmod(0o666)
    assert read(node, dev).problem is None
