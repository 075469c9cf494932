"""Reads container labels from the API that Docker and Podman share, over the runtime's Unix socket.

Requests use HTTP/1.0, so that the answer ends with the connection. A runtime that hangs, as Docker does when its disk
is full, costs one wait and then is not queried for a while. Labels are optional, so no failure here is an error. A
thread makes the requests, so that a late answer is still stored.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.host_files import printable
from gpuwarden_collectors.receivers.declared import declared_signal, folder_name

SIGNAL_LABEL = "gpuwarden.signal"
STALL_LABEL = "gpuwarden.stall"
DSTACK_LABEL = "ai.dstack.shim.task-id"
"""Label with dstack's job id, which the job itself has in DSTACK_JOB_ID."""
PATIENCE = 1.0
"""Seconds that one scan waits for the labels of all containers."""
LATE = 10.0
"""Seconds within which all answers of one thread must arrive."""
QUIET = 10.0
"""Seconds for which a runtime is not queried after a failure."""

_ANSWER_MOST = 1 << 20  # bytes; 5 to 20 KiB are usual
_KEPT_MOST = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLabels:
    """`declared` as in Receiver. `task` is dstack's name of the job. `name` is the container's. `stall`: `watch` opts in to `job_stalled`."""

    declared: str = ""
    task: str = ""
    name: str = ""
    stall: str = ""


UNLABELLED = ContainerLabels()


class Labels:
    """Container labels from the runtime that listens at `path`.

    A container's labels never change, so each container is queried once.
    """

    def __init__(
        self, path: Path, *, patience: float = PATIENCE, late: float = LATE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._patience = patience
        self._late = late
        self._clock = clock
        self._asking: threading.Thread | None = None
        self._known: dict[str, ContainerLabels] = {}
        self._failed = float("-inf")

    def of(self, containers: Iterable[str]) -> Mapping[str, ContainerLabels]:
        """Returns the labels by container id. Raises nothing.

        A container that is unknown to the runtime, or not answered yet, has no labels.
        """
        wanted = list(containers)
        if len(self._known) > _KEPT_MOST:
            self._known = {name: self._known[name] for name in wanted if name in self._known}
        unknown = [container for container in wanted if container not in self._known]
        is_asking = self._asking is not None and self._asking.is_alive()
        if unknown and not is_asking and self._clock() >= self._failed + QUIET:
            self._asking = threading.Thread(target=self._learn, args=(unknown,), name="labels", daemon=True)
            with suppress(RuntimeError):  # no thread could be started: the next scan retries
                self._asking.start()
                self._asking.join(self._patience)
        return {name: self._known.get(name, UNLABELLED) for name in wanted}

    def _learn(self, containers: Iterable[str]) -> None:
        until = self._clock() + self._late
        for container in containers:
            try:
                self._known[container] = _labels(_ask(self._path, container, lambda: until - self._clock()))
            except OSError:
                self._failed = self._clock()
                return


def _ask(path: Path, container: str, left: Callable[[], float]) -> bytes:
    """Returns the body of the answer, empty for a container unknown to the runtime. Raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as talk:
        talk.settimeout(max(left(), 0.001))
        talk.connect(str(path))
        talk.sendall(f"GET /containers/{container}/json HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        answer = b""
        while len(answer) < _ANSWER_MOST:
            if (rest := left()) <= 0:
                raise TimeoutError
            talk.settimeout(rest)
            if not (more := talk.recv(64 << 10)):
                break
            answer += more
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.partition(b"\r\n")[0].split(b" ")
    if len(status) < 2 or not status[0].startswith(b"HTTP/1.") or status[1] not in (b"200", b"404"):
        raise ConnectionError
    return body if status[1] == b"200" else b""


def _labels(body: bytes) -> ContainerLabels:
    """Parses the labels. Raises ConnectionError for an invalid or incomplete answer."""
    try:
        document = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise ConnectionError from error
    labels = _part(_part(document, "Config"), "Labels")
    return ContainerLabels(
        declared=declared_signal(_text(labels, SIGNAL_LABEL)),
        task=folder_name(_text(labels, DSTACK_LABEL)),
        name=printable(_text(document, "Name").removeprefix("/"), 200),
        stall=_text(labels, STALL_LABEL).strip().lower()[:16],
    )


def _part(document: object, key: str) -> object:
    return document.get(key) if isinstance(document, dict) else None


def _text(document: object, key: str) -> str:
    part = _part(document, key)
    return part if isinstance(part, str) else ""
