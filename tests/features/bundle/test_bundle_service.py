"""The service that makes archives for the daemon: it takes findings by their ids and nothing else, one archive at a time."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.base.paths import bundles
from gpuwarden.base.services import NoAnswer
from gpuwarden.config.model import Config, State, load
from gpuwarden.config.sources import Sources
from gpuwarden.features.bundle.client import ANSWER_MOST, FINDINGS_MOST, Bundle, ask
from gpuwarden.features.bundle.service import remove_old, serve
from support.bundling import FINDING, Archive, BundleHost, answering, raised

OTHER = "gpu_missing@gpu/0000:10:00.0"


def answer(config: Config, request: bytes) -> dict[str, Any]:
    """Return what the service answers to these bytes."""
    ours, its = socket.socketpair()
    thread = threading.Thread(target=serve, args=(config, its))
    thread.start()
    ours.sendall(request)
    ours.shutdown(socket.SHUT_WR)
    got = b"".join(iter(lambda: ours.recv(1 << 16), b""))
    thread.join()
    ours.close()
    response: dict[str, Any] = json.loads(got)
    return response


def config_of(folder: Path) -> Config:
    return replace(Config(), state=State(dir=folder / "state"))


@pytest.mark.parametrize(
    "request_",
    [
        b"",
        b"\n",
        b"not json\n",
        b"[]\n",
        b'{"findings": []}\n',
        b'{"findings": "xid.79@node"}\n',
        b'{"findings": ["no at sign"]}\n',
        b'{"findings": ["a@b\\n"]}\n',
        b'{"findings": [1]}\n',
        b'{"findings": ["a@b"], "output": "/etc/passwd"}\n',
        json.dumps({"findings": ["a@b"] * (FINDINGS_MOST + 1)}).encode() + b"\n",
        json.dumps({"findings": ["a@" + "b" * 500]}).encode() + b"\n",
        b"x" * 100_000,
    ],
    ids=str,
)
def test_nothing_but_findings_is_a_request(tmp_path: Path, request_: bytes) -> None:
    assert answer(config_of(tmp_path), request_[:5000]) == {"error": "this is not a request"}
    assert list(tmp_path.iterdir()) == []


def test_while_an_archive_is_made_another_one_waits(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    folder = bundles(config.state.dir)
    folder.mkdir(mode=0o700)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        response = answer(config, b'{"findings": ["xid.79@node"]}\n')
    assert response == {"error": "another archive is being made", "busy": True}


def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    bundles(config.state.dir).mkdir(mode=0o777)
    bundles(config.state.dir).chmod(0o777)
    assert "is not safe to use: others may enter it" in answer(config, b'{"findings": ["xid.79@node"]}\n')["error"]


@pytest.mark.slow
def test_it_makes_an_archive_about_all_findings_in_a_folder_of_its_own_and_keeps_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = BundleHost(tmp_path)
    host.remember(raised(), raised(OTHER))
    host.configure("[bundle]\nkeep = 1\n")
    monkeypatch.setenv("PATH", str(host.bin))
    config = load(Sources(file=host.config, environment={}))
    request = json.dumps({"findings": [FINDING, "xid.1@node", OTHER]}).encode() + b"\n"
    first = answer(config, request)
    assert first["not_found"] == ["xid.1@node"]
    archive = Archive(Path(first["file"]), tmp_path / "first")
    assert archive.manifest["findings"] == [FINDING, OTHER]
    assert {"status.json", "black-box"} <= set(first["missing"])
    folder = bundles(config.state.dir)
    assert (Path(first["file"]).parent, folder.stat().st_mode & 0o777) == (folder, 0o700)
    second = answer(config, request)
    assert [file.name for file in sorted(folder.glob("*.tar.*"))] == [Path(second["file"]).name]
    assert "no finding 'xid.1@node' is in the ledger" in answer(config, b'{"findings": ["xid.1@node"]}\n')["error"]


def test_the_newest_archives_stay_and_other_files_too(tmp_path: Path) -> None:
    for number in range(5):
        file = tmp_path / f"gpuwarden-bundle-n1-{9 - number}.tar.zst"
        file.touch()
        os.utime(file, (number, number))
    (tmp_path / "mine.tar.zst").touch()
    remove_old(tmp_path, 2)
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "gpuwarden-bundle-n1-5.tar.zst",
        "gpuwarden-bundle-n1-6.tar.zst",
        "mine.tar.zst",
    ]


def asked_of(path: Path, within: float = 60.0) -> Bundle:
    return asyncio.run(ask(path, [FINDING, OTHER], within, busy_again=0.01))


def test_what_the_service_has_not_found_is_of_what_it_was_asked_for(tmp_path: Path) -> None:
    document = {"file": "/var/x.tar.zst", "missing": [], "not_found": [OTHER, "another@node", 7]}
    with answering(tmp_path / "s", json.dumps(document).encode()):
        assert asked_of(tmp_path / "s").not_found == (OTHER,)


def test_the_daemon_sends_findings_and_gets_the_path(tmp_path: Path) -> None:
    path = tmp_path / "s"
    busy, made = (
        b'{"error": "another", "busy": true}',
        b'{"file": "/var/x.tar.zst", "missing": ["a", 1], "sha256": "0"}',
    )
    with answering(path, busy, made) as asked:
        bundle = asked_of(path)
    assert bundle == Bundle(file="/var/x.tar.zst", missing=("a",))
    assert [json.loads(request) for request in asked] == [{"findings": [FINDING, OTHER]}] * 2


@pytest.mark.parametrize(
    ("answer", "within", "why"),
    [
        (b'{"error": "cannot\\nwrite"}', 60.0, "^cannot write$"),
        (b"", 60.0, "gave no result; see the journal of gpuwarden-bundle@"),
        (b"[" * 50_000, 60.0, "gave no result"),
        (b"x" * (ANSWER_MOST + 1), 60.0, "gave no result"),
        (None, 0.2, r"has not answered within 0\.2 s"),
    ],
    ids=["error", "nothing", "deep", "long", "silent"],
)
def test_any_other_answer_or_none_is_a_reason(tmp_path: Path, answer: bytes | None, within: float, why: str) -> None:
    path = tmp_path / "s"
    with answering(path, answer), pytest.raises(NoAnswer, match=why):
        asked_of(path, within)


def test_without_the_socket_it_says_how_to_enable_it(tmp_path: Path) -> None:
    with pytest.raises(NoAnswer, match=r"does not exist: systemctl enable --now gpuwarden-bundle\.socket"):
        asked_of(tmp_path / "none")
