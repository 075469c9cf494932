"""The doctor says whether an archive can be made at a failure, where one is wanted."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gpuwarden.config.model import Config, load
from gpuwarden.config.sources import Layer, Sources
from gpuwarden.doctor.row import Grade
from gpuwarden.features.bundle.doctor import REPORT, bundle


def config_of(path: Path) -> Config:
    options = {"bundle": {"on_failure": True, "socket": str(path)}}
    return load(Sources(file=None, overrides=(Layer("test", options),)))


def test_where_none_is_wanted_it_says_nothing() -> None:
    assert list(bundle(Config())) == []


def test_what_is_missing_is_named_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    rows = list(bundle(config_of(tmp_path / "s")))
    assert [row.grade for row in rows] == [Grade.WARN, Grade.WARN]
    assert "systemctl enable --now gpuwarden-bundle.socket" in rows[0].to_do
    (tmp_path / REPORT).write_text("#!/bin/sh\n")
    (tmp_path / REPORT).chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        assert [row.grade for row in bundle(config_of(tmp_path / "s"))] == [Grade.OK, Grade.OK]
