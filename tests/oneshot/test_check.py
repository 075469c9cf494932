"""`gpuwarden check` on a host of the test: one pass, and what it does not know it reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.daemons import FakeHost, Json


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path, gpus=2)


def check(host: FakeHost) -> tuple[int, Json]:
    done = host.command("check", "--config", host.config, "--json")
    return done.returncode, json.loads(done.stdout)


@pytest.mark.slow
def test_without_a_ledger_a_healthy_host_is_healthy(host: FakeHost) -> None:
    code, document = check(host)
    assert (code, document["status"], document["reasons"]) == (0, "healthy", [])
    assert not host.state_dir.exists()


@pytest.mark.slow
def test_a_ledger_that_cannot_be_read_is_a_warning_and_never_health(host: FakeHost) -> None:
    host.state_dir.mkdir()
    (host.state_dir / "ledger.db").write_bytes(b"this is no database" * 1000)
    code, document = check(host)
    assert (code, document["reasons"]) == (1, ["ledger_unavailable"])
    assert "corrupt" in document["findings"][0]["evidence"]["why"]


@pytest.mark.slow
def test_the_one_pass_reads_of_every_gpu_also_what_a_daemon_reads_once_a_day(host: FakeHost) -> None:
    host.fake.reading("*", "inforom_valid", 0)
    code, document = check(host)
    assert code == 1
    assert sorted((finding["check"], finding["gpu"]) for finding in document["findings"]) == [
        ("inforom_invalid", 0),
        ("inforom_invalid", 1),
    ]
