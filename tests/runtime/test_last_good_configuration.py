"""A typing error before `systemctl restart` leaves no node unwatched: the service starts with the files of its last start without a fault."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gpuwarden.base.paths import beside_for_slurm
from gpuwarden.config.last_good import NAME, NoneKept, keep, kept
from gpuwarden.config.model import load
from gpuwarden.config.sources import Sources
from support.daemons import FakeHost, RunningDaemon
from support.mounts import ext4, frozen
from support.needs import root_rights


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path, gpus=2)


@pytest.fixture
def service(host: FakeHost) -> Iterator[Mapping[str, str]]:
    """The variables that systemd sets, and where its state is if the files cannot be read."""
    path = host.folder / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        yield {"NOTIFY_SOCKET": str(path), "GPUWARDEN_STATE__DIR": str(host.state_dir)}


def started(host: FakeHost, service: Mapping[str, str]) -> RunningDaemon:
    daemon = RunningDaemon(host, more=service)
    daemon.find_port()
    return daemon


def folder(state: Path) -> Path:
    return beside_for_slurm(state) if os.geteuid() == 0 else state


def sources(state: Path, file: Path) -> Sources:
    return Sources(file=file, environment={"GPUWARDEN_STATE__DIR": str(state)})


@pytest.mark.slow
def test_a_typing_error_before_a_restart_leaves_the_node_watched(host: FakeHost, service: Mapping[str, str]) -> None:
    host.configure("[xids.95]\nseverity = 'record'\n")
    started(host, service).stop()
    host.config.write_text(host.config.read_text() + "[policy\n")
    assert host.command("config", "check", "--config", host.config).returncode == 64
    daemon = started(host, service)
    try:
        daemon.wait_status("warning", "config_faulty")
        host.xid(1, 95)
        daemon.wait(lambda: 'xid="95"} 1' in daemon.get("/metrics")[1].decode(), "the Xid to be counted")
        assert daemon.heartbeat()["status"] == "warning", "a record, as the last good configuration has it"
        assert 'gpuwarden_component_up{component="config_faulty"} 0' in daemon.get("/metrics")[1].decode()
        host.configure("[xids.95]\nseverity = 'record'\n")
        assert host.command("reload", "--run-dir", host.run_dir).returncode == 0
        daemon.wait_status("healthy")
    finally:
        daemon.kill()


@pytest.mark.slow
@pytest.mark.disposable
def test_a_disk_that_hangs_holds_up_neither_a_start_nor_a_reload_with_other_files(
    host: FakeHost, service: Mapping[str, str]
) -> None:
    with ext4(folder(host.state_dir)) as disk:
        with frozen(disk):
            daemon = started(host, service)
            daemon.wait_status("healthy")
            for severity in ("record", "warning"):
                host.configure(f"[xids.95]\nseverity = '{severity}'\n")
                done = host.command("reload", "--run-dir", host.run_dir)
                assert done.returncode == 0, done.stderr
                assert "xids" in done.stdout
        daemon.wait(lambda: (disk / NAME).exists() and "warning" in (disk / NAME).read_text(), "the newest to be kept")
        daemon.stop()


@pytest.mark.slow
def test_in_mode_enforce_a_gpu_that_fails_after_such_a_start_still_excludes_the_node(
    host: FakeHost, service: Mapping[str, str]
) -> None:
    host.seclude()
    marker = host.folder / "out"
    host.configure(f'[breaker]\nuncounted = "allow"\nrecount_after = "1s"\n[file]\npath = "{marker}"\n')
    host.config.write_text(f'mode = "enforce"\n{host.config.read_text()}')
    started(host, service).stop()
    host.config.write_text(host.config.read_text() + "[policy\n")
    daemon = started(host, service)
    try:
        daemon.wait_status("warning", "config_faulty")
        assert not marker.exists()
        host.xid(1, 95)
        daemon.wait(marker.exists, "the node to be excluded")
    finally:
        daemon.kill()


def test_a_first_start_with_a_fault_is_refused(host: FakeHost, service: Mapping[str, str]) -> None:
    host.config.write_text("[policy\n")
    daemon = RunningDaemon(host, more=service)
    assert daemon.process.wait(60) == 64
    assert "there is no last good configuration to start with" in daemon.log.read_text()


@pytest.mark.slow
def test_a_command_that_a_person_typed_is_refused(host: FakeHost, service: Mapping[str, str]) -> None:
    started(host, service).stop()
    host.config.write_text("[policy\n")
    daemon = RunningDaemon(host, more={"GPUWARDEN_STATE__DIR": str(host.state_dir)})
    assert daemon.process.wait(60) == 64


@pytest.mark.parametrize("planted", ["owner", "writable file", "writable folder", "link", "other files", "not JSON"])
def test_a_copy_that_others_could_have_written_is_not_used(tmp_path: Path, planted: str) -> None:
    state, file = tmp_path / "state", tmp_path / "gpuwarden.toml"
    state.mkdir()
    file.write_text('node = "n7"\n')
    read = sources(state, file).with_files_read()
    keep(read, read.files or ())
    assert load(kept(sources(state, file))).node == "n7"
    copy = folder(state) / NAME
    assert copy.stat().st_mode & 0o777 == 0o600
    if planted == "owner":
        root_rights()
        os.chown(copy, 1000, 1000)
    elif planted == "writable file":
        copy.chmod(0o620)
    elif planted == "writable folder":
        copy.parent.chmod(0o777)
    elif planted == "link":
        copy.rename(tmp_path / "elsewhere")
        copy.symlink_to(tmp_path / "elsewhere")
    elif planted == "other files":
        file = tmp_path / "other.toml"
    else:
        copy.write_text("[" * 100_000)
    with pytest.raises(NoneKept):
        kept(sources(state, file))
