"""What is learnt of containers from a runtime: a real HTTP server on a Unix socket, which answers as Docker does, or does not."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gpuwarden_collectors.receivers.facts import NOTHING
from gpuwarden_collectors.receivers.labels import QUIET, UNLABELLED, ContainerLabels, Labels
from gpuwarden_collectors.receivers.reader import ReceiversReader
from gpuwarden_collectors.receivers.watched import WatchedReader
from support.job_trees import Forest, forest, member
from support.job_world import until

ID = "ab" * 32
PATIENCE = 60.0
Answer = Callable[[str, socket.socket], None]


def description(labels: object, name: object = "/llama-0-0-1a2b3c4d") -> bytes:
    return json.dumps(
        {"Id": ID, "Name": name, "Config": {"Labels": labels, "Env": ["X=1"]}, "State": {"Pid": 7}}
    ).encode()


def response_of(body: bytes, status: bytes = b"200 OK") -> Answer:
    head = b"HTTP/1.0 " + status + b"\r\nContent-Type: application/json\r\n\r\n"
    return lambda _, talk: talk.sendall(head + body)


class Runtime:
    """`answer` is called with the path that was asked for, in a thread of its own; then the connection ends."""

    def __init__(self, path: Path, answer: Answer) -> None:
        self.path = path
        self.answer = answer
        self.asked: list[str] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                talk, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(talk,), daemon=True).start()

    def _talk(self, talk: socket.socket) -> None:
        with talk:
            request = b""
            while b"\r\n\r\n" not in request and (more := talk.recv(4096)):
                request += more
            self.asked.append(request.split(b" ")[1].decode())
            with suppress(OSError):  # who asked has had enough
                self.answer(self.asked[-1], talk)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextmanager
def runtime(folder: Path, answer: Answer) -> Iterator[Runtime]:
    running = Runtime(folder / "docker.sock", answer)
    try:
        yield running
    finally:
        running.close()


@pytest.mark.parametrize(
    ("label", "watched"), [("watch", True), (" WATCH", True), ("yes", False), (7, False), (None, False)]
)
def test_the_label_of_a_container_opts_it_in_to_be_watched_for_stalls(
    label: object, tmp_path: Path, *, watched: bool
) -> None:
    folder = tmp_path / "7"
    folder.mkdir()
    (folder / "stat").write_text("7 (python) S 1 1 1 0 -1 4194560 1 0 0 0 1 1 0 0 20 0 1 0 500 1 1\n")
    (folder / "environ").write_bytes(b"RANK=3\0")
    (folder / "cgroup").write_text(f"0::/system.slice/docker-{ID}.scope\n")
    with runtime(tmp_path, response_of(description({"gpuwarden.stall": label}))) as docker:
        reader = WatchedReader(tmp_path, pids=lambda: [7], labels=Labels(docker.path, patience=PATIENCE))
        for _ in range(3):
            assert [container.id for container in reader.read().containers] == [ID[:12]] * watched
        assert len(docker.asked) == 1


def test_a_container_is_asked_for_once(tmp_path: Path) -> None:
    body = description({"gpuwarden.signal": "sigusr2", "ai.dstack.shim.task-id": "0c7b-77", "other": "1"})
    with runtime(tmp_path, response_of(body)) as docker:
        labels = Labels(docker.path, patience=PATIENCE)
        for _ in range(3):
            assert labels.of([ID]) == {ID: ContainerLabels(declared="USR2", task="0c7b-77", name="llama-0-0-1a2b3c4d")}
        assert docker.asked == [f"/containers/{ID}/json"]


BODIES = {
    "no labels": (description(None), ContainerLabels(name="llama-0-0-1a2b3c4d")),
    "junk in labels": (description({"gpuwarden.signal": "KILL", "ai.dstack.shim.task-id": "../../etc"}, name="/a\x1b[2J"), ContainerLabels(declared=NOTHING, name="a?[2J")),
    "other types": (description({"gpuwarden.signal": ["TERM"], "ai.dstack.shim.task-id": 7}, name=7), UNLABELLED),
    "a list": (b"[]", UNLABELLED),
    "nothing": (b"", UNLABELLED),
    "not JSON": (b"<html>", UNLABELLED),
    "nested": (b"[" * 200_000, UNLABELLED),
    "cut off": (description({"gpuwarden.signal": "TERM"})[:-1], UNLABELLED),
}  # fmt: skip


@pytest.mark.parametrize(("body", "labels"), BODIES.values(), ids=BODIES)
def test_whatever_the_description_is_it_has_labels_or_none(
    tmp_path: Path, body: bytes, labels: ContainerLabels
) -> None:
    with runtime(tmp_path, response_of(body)) as docker:
        assert Labels(docker.path, patience=PATIENCE).of([ID]) == {ID: labels}


def endless(_: str, talk: socket.socket) -> None:
    talk.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
    while True:
        talk.sendall(b"x" * 65536)


def silent(_: str, talk: socket.socket) -> None:
    talk.recv(1)


FAILURES: dict[str, Answer] = {
    "endless": endless,
    "silent": silent,
    "closed": lambda _, talk: None,
    "another protocol": lambda _, talk: talk.sendall(b"SSH-2.0-x\r\n"),
    "an error": response_of(b"{}", b"500 Internal Server Error"),
    "a redirect": response_of(b"{}", b"301 Moved"),
}


@pytest.mark.parametrize("answer", FAILURES.values(), ids=FAILURES)
def test_a_runtime_that_fails_costs_one_wait_and_is_left_alone_for_a_while(tmp_path: Path, answer: Answer) -> None:
    now = [100.0]
    with runtime(tmp_path, answer) as docker:
        labels = Labels(docker.path, patience=0.2, late=0.5, clock=lambda: now[0])
        for _ in range(3):
            assert labels.of([ID, "cd" * 32]) == {ID: UNLABELLED, "cd" * 32: UNLABELLED}
        until(lambda: docker.asked, "the question")  # on a busy machine its thread is late
        assert len(docker.asked) == 1
        docker.answer = response_of(description({"gpuwarden.signal": "HUP"}))
        while labels.of([ID])[ID].declared != "HUP":
            now[0] += QUIET


def test_an_answer_that_came_too_late_to_be_waited_for_counts_from_then_on(tmp_path: Path) -> None:
    released = threading.Event()

    def late(path: str, talk: socket.socket) -> None:
        released.wait(PATIENCE)
        response_of(description({"gpuwarden.signal": "HUP"}))(path, talk)

    with runtime(tmp_path, late) as docker:
        labels = Labels(docker.path, patience=0.01, late=PATIENCE, clock=lambda: 100.0)
        assert labels.of([ID]) == {ID: UNLABELLED}
        released.set()
        until = time.monotonic() + PATIENCE
        while labels.of([ID])[ID].declared != "HUP":
            assert time.monotonic() < until
            time.sleep(0.001)
        assert len(docker.asked) == 1


def test_a_runtime_that_is_not_there_or_does_not_know_it_is_no_error(tmp_path: Path) -> None:
    assert Labels(tmp_path / "docker.sock").of([ID]) == {ID: UNLABELLED}
    with runtime(tmp_path, response_of(b'{"message":"No such container"}', b"404 Not Found")) as docker:
        assert Labels(docker.path, patience=PATIENCE).of([ID]) == {ID: UNLABELLED}


@pytest.fixture
def trees() -> Iterator[Forest]:
    with forest() as grown:
        yield grown


def test_the_label_s_name_of_a_job_goes_before_the_one_in_an_environment(trees: Forest, tmp_path: Path) -> None:
    """Two real containers that claim the same name: the runtime knows whose it is. A container that does no work is not asked for."""
    name = f"task-{trees.job}"
    mine, other, idle = (f"{trees.container[1:]}{n}" for n in range(3))
    env = {"DSTACK_JOB_ID": name, "GPUWARDEN_JOB": "my-run"}
    groups = {each: trees.cgroup(f"docker/{each}") for each in (mine, other, idle)}
    pids = trees.start(
        member(
            "host",
            member("idle", cgroup=groups[idle]),
            member("other", catch=["TERM"], cgroup=groups[other], env=env),
            member("mine", catch=["TERM"], cgroup=groups[mine], env=env),
        )
    )

    def answer(path: str, talk: socket.socket) -> None:
        labels = {"ai.dstack.shim.task-id": name, "gpuwarden.signal": "USR1"} if mine in path else {}
        response_of(description(labels))(path, talk)

    with runtime(tmp_path, answer) as docker:
        jobs = ReceiversReader(Path("/proc"), containers=Labels(docker.path, patience=PATIENCE)).read(
            {pids["mine"], pids["other"]}
        )
        by_pid = {job.processes[0].pid: job for job in jobs if job.processes[0].pid in pids.values()}
        assert (by_pid[pids["mine"]].id, by_pid[pids["mine"]].declared) == (name, "USR1")
        assert (by_pid[pids["other"]].id, by_pid[pids["other"]].declared) == (other, "")
        assert {job.name for job in by_pid.values()} == {job.folder for job in by_pid.values()} == {"my-run"}
        assert not any(idle in path for path in docker.asked)
