"""Talking to the daemon: what goes over the socket, and everything that can be wrong with an answer."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuwarden.cli import client
from gpuwarden.cli.client import Daemon, NoDaemon
from gpuwarden.cli.parser import CommandError
from support.control_server import refusal, result, serving


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    """Its name is short enough for a socket, wherever the tests are run."""
    before = Path.cwd()
    os.chdir(tmp_path)
    yield Path("run")
    os.chdir(before)


def daemon(run_dir: Path, deadline: float = 30.0) -> Daemon:
    return Daemon(run_dir, run_dir / "simulated", deadline=deadline)


def test_a_verb_and_its_arguments_go_out_as_one_object_and_the_result_comes_back(run_dir: Path) -> None:
    with serving(run_dir, lambda _: result(["ü", None, 1.5])) as asked:
        assert daemon(run_dir).call("inject", fault=["xid", "79"], gpu=3) == ["ü", None, 1.5]
    assert asked == [{"verb": "inject", "fault": ["xid", "79"], "gpu": 3}]


def test_a_refusal_ends_the_command_with_the_daemon_s_message_and_code(run_dir: Path) -> None:
    with serving(run_dir, lambda _: refusal("no such finding", 75)), pytest.raises(CommandError) as caught:
        daemon(run_dir).call("ack", finding="x")
    assert (str(caught.value), caught.value.code) == ("no such finding", 75)


@pytest.mark.parametrize(
    "line",
    [
        b"\n", b"x\n", b"\xff\n", b"null\n", b"[" * 100_000 + b"\n", b"{}\n", b'{"ok": true}\n', b'{"ok": 1, "result": 2}\n',
        b'{"ok": false, "error": "no"}\n', b'{"ok": false, "error": "no", "code": 0}\n', b'{"ok": false, "error": "no", "code": 256}\n',
    ],
)  # fmt: skip
def test_a_response_in_another_format_is_reported_as_another_program(line: bytes, run_dir: Path) -> None:
    with serving(run_dir, lambda _: line), pytest.raises(CommandError, match="not gpuwarden of this version") as caught:
        daemon(run_dir).call("status")
    assert caught.value.code == 69


def test_a_daemon_that_hangs_up_in_the_middle_of_its_answer_has_not_answered(run_dir: Path) -> None:
    with (
        serving(run_dir, lambda _: b'{"ok": true, '),
        pytest.raises(CommandError, match="closed the connection before") as caught,
    ):
        daemon(run_dir).call("status")
    assert caught.value.code == 75


def test_an_order_without_an_answer_may_still_be_carried_out_and_that_is_said(run_dir: Path) -> None:
    options = argparse.Namespace(run_dir=run_dir)
    with (
        serving(run_dir, lambda _: b'{"ok": true, '),
        pytest.raises(CommandError, match="The daemon may still carry this out") as caught,
    ):
        client.order(options, "exclude", reason="fan")
    assert caught.value.code == 75
    with serving(run_dir, lambda _: refusal("no such finding", 75)), pytest.raises(CommandError) as caught:
        client.order(options, "ack", finding="x")
    assert str(caught.value) == "no such finding"


def test_a_daemon_that_does_not_answer_is_given_up_at_the_deadline(run_dir: Path) -> None:
    with serving(run_dir, None), pytest.raises(CommandError, match=r"not responded within 0\.2 s") as caught:
        daemon(run_dir, deadline=0.2).call("status")
    assert caught.value.code == 75


def test_an_answer_without_end_is_cut_off(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "RESPONSE_MAX", 1 << 20)
    with serving(run_dir, lambda _: b" " * (4 << 20)), pytest.raises(CommandError, match="more than 1048576 bytes"):
        daemon(run_dir).call("status")


def test_a_long_answer_arrives_whole(run_dir: Path) -> None:
    events = [{"number": number, "text": "x" * 500} for number in range(5000)]
    with serving(run_dir, lambda _: result(events)):
        assert daemon(run_dir).call("events") == events


def test_without_a_socket_or_a_listener_there_is_no_daemon(run_dir: Path) -> None:
    with pytest.raises(NoDaemon, match=r"^no daemon answers at run/control\.sock$"):
        daemon(run_dir).call("status")
    with serving(run_dir, lambda _: b""):
        Path("left-behind").hardlink_to(run_dir / "control.sock")
    Path("left-behind").rename(run_dir / "control.sock")
    with pytest.raises(NoDaemon):
        daemon(run_dir).call("status")


def test_a_daemon_with_simulated_gpus_is_mentioned_only_where_one_listens(run_dir: Path) -> None:
    hint = r"with simulated GPUs answers elsewhere: add --run-dir run/simulated$"
    with serving(run_dir / "simulated", lambda _: result(None)), pytest.raises(NoDaemon, match=hint):
        daemon(run_dir).call("status")
    with pytest.raises(NoDaemon, match=r"control\.sock$"):
        daemon(run_dir).call("status")


@pytest.mark.needs("root")
def test_a_client_without_permission_is_shown_who_has_it(run_dir: Path) -> None:
    with serving(run_dir, lambda _: result(None)):
        (run_dir / "control.sock").chmod(0o600)
        os.seteuid(65534)
        try:
            with pytest.raises(CommandError, match=r"be root or a member of its \[control\] group") as caught:
                daemon(run_dir).call("status")
        finally:
            os.seteuid(0)
    assert caught.value.code == 77


def test_at_a_path_too_long_for_a_socket_there_is_no_daemon(run_dir: Path) -> None:
    with pytest.raises(NoDaemon):
        daemon(run_dir / ("x" * 200)).call("status")


def test_a_link_in_the_place_of_the_socket_is_not_followed(run_dir: Path) -> None:
    """Root asks in a folder of the daemon's user, who could have it ask any other service."""
    other = run_dir / "other"
    other.mkdir(parents=True)
    with serving(other, lambda _: result("followed")) as asked:
        (run_dir / "control.sock").symlink_to(other / "control.sock")
        assert daemon(other).call("status") == "followed"
        with pytest.raises(CommandError):
            daemon(run_dir).call("status")
    assert len(asked) == 1


def test_the_command_line_comes_before_the_environment_and_that_before_the_real_place(tmp_path: Path) -> None:
    variables = {"GPUWARDEN_RUN_DIR": "/b", "TMPDIR": str(tmp_path)}
    assert Daemon.chosen(Path("/a"), variables).path == Path("/a/control.sock")
    assert Daemon.chosen(None, variables).path == Path("/b/control.sock")
    assert Daemon.chosen(None, {"TMPDIR": str(tmp_path)}).path == Path("/run/gpuwarden/control.sock")


def test_a_request_is_one_line_whatever_it_holds(run_dir: Path) -> None:
    with serving(run_dir, lambda asked: result(json.dumps(asked))) as asked:
        daemon(run_dir).call("ack", finding="a\nb\udcff")
    assert asked == [{"verb": "ack", "finding": "a\nb\udcff"}]
