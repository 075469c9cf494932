"""Addresses of nv-hostengine, and which listener is taken for it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuwarden_collectors.base import CollectorError
from gpuwarden_collectors.dcgm.addresses import Address, parse_address, running_engine

STRANGER = os.geteuid() + 1000


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        yield path


def table(folder: Path, *rows: tuple[str, str, int], name: str = "tcp") -> Path:
    """A table of sockets as the kernel prints it: local address, state and user in columns 1, 3 and 7."""
    lines = ["  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"]
    lines += [f"   0: {local} 00000000:0000 {state} 0:0 00:0 0 {uid} 0 1 1" for local, state, uid in rows]
    (folder / name).write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("unix:///run/nv.sock", Address(path="/run/nv.sock")),
        ("localhost:5556", Address(host="localhost", port=5556)),
        ("10.0.0.1", Address(host="10.0.0.1", port=5555)),
    ],
)
def test_an_address_is_a_socket_or_a_port(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "unix://run", "/run/nv.sock", "host:0", "host:65536", "host:x", "a:1:2"])
def test_an_invalid_address_is_an_error(text: str) -> None:
    with pytest.raises(CollectorError, match="expected unix:///path, host or host:port"):
        parse_address(text)


def test_a_socket_that_is_listened_on_is_found(listener: Path, tmp_path: Path) -> None:
    candidates = (f"unix://{tmp_path}/none", f"unix://{listener}")
    assert running_engine(candidates, tmp_path) == Address(path=str(listener))


def test_a_socket_that_nobody_listens_on_any_more_is_no_engine(tmp_path: Path) -> None:
    path = tmp_path / "left behind"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
    assert running_engine((f"unix://{path}",), tmp_path) is None


def test_a_file_or_a_link_is_no_engine(listener: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(listener)
    assert running_engine((f"unix://{tmp_path}/file", f"unix://{tmp_path}/link"), tmp_path) is None


@pytest.mark.needs("root")
def test_a_socket_of_another_user_is_not_trusted(listener: Path, tmp_path: Path) -> None:
    os.chown(listener, STRANGER, -1)
    assert running_engine((f"unix://{listener}",), tmp_path) is None


@pytest.mark.needs("root")
def test_a_socket_in_a_folder_that_this_user_may_not_search_is_named(listener: Path) -> None:
    """The daemon connects as this user, who would not reach the engine either."""
    listener.parent.chmod(0o700)
    os.seteuid(STRANGER)
    try:
        with pytest.raises(CollectorError, match=f"cannot see the socket {listener}: Permission denied"):
            running_engine((f"unix://{listener}",))
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(("name", "local"), [("tcp", "0100007F:15B3"), ("tcp6", f"{'0' * 32}:15B3")])
def test_a_port_that_root_listens_on_is_found(tmp_path: Path, name: str, local: str) -> None:
    net = table(tmp_path, ("0100007F:15B2", "0A", STRANGER), (local, "0A", 0), name=name)
    assert running_engine(("127.0.0.1:5555",), net) == Address(host="127.0.0.1", port=5555)


def test_a_port_of_another_user_is_not_trusted(tmp_path: Path) -> None:
    net = table(tmp_path, ("0100007F:15B3", "0A", STRANGER))
    assert running_engine(("127.0.0.1:5555",), net) is None
    net = table(tmp_path, ("0100007F:15B3", "0A", STRANGER), ("00000000:15B3", "0A", 0))
    assert running_engine(("127.0.0.1:5555",), net) is None


def test_a_connection_from_a_port_is_no_listener(tmp_path: Path) -> None:
    net = table(tmp_path, ("0100007F:15B3", "01", 0))
    assert running_engine(("127.0.0.1:5555",), net) is None


def test_the_tables_of_the_kernel_are_read_as_they_are() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert running_engine((f"127.0.0.1:{port}",)) == Address(host="127.0.0.1", port=port)
    assert running_engine((f"127.0.0.1:{port}",)) is None
