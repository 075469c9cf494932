"""Asking Prometheus, or what speaks like it (Thanos, Mimir, VictoriaMetrics), by its HTTP API.

All questions together have one deadline, name resolution included, and each answer a size. No redirect is followed and no proxy
asked: credentials go to the address that was given, and nowhere else.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse
from math import isfinite
from socket import SHUT_RDWR, socket
from typing import Any
from urllib.parse import urlencode

from gpuwarden.prometheus.access import Access

ANSWER_MAX = 64 << 20
"""Bytes of one answer; of 10,000 nodes the largest has about 6 MB."""
LANES = 2
_CHUNK = 1 << 20
_WORDS_MAX = 300  # characters of what a server says of its errors


class PrometheusError(Exception):
    """It cannot be asked, or what it says cannot be used. The message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One series at the time `at` of Prometheus' clock, Unix time. `value` is finite."""

    labels: Mapping[str, str]
    at: float
    value: float


@dataclass(slots=True)
class Answers:
    """For each query its samples. `warnings` are Prometheus' own: with any, the answer may be of a part only."""

    samples: dict[str, list[Sample]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def ask(access: Access, queries: Mapping[str, str], seconds: float, *, largest: int = ANSWER_MAX) -> Answers:
    """All at one instant of Prometheus' clock, which the first answer tells; `largest` bytes an answer. Raises PrometheusError."""
    work = _Work(access, queries, seconds, largest)
    # A thread, since neither resolving a name nor a server that sends a byte a second heeds the timeout of a socket.
    thread = threading.Thread(target=work.run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        work.give_up()
        raise _late(access, seconds)
    if work.failure is not None:
        raise work.failure
    return work.answers


class _Work:
    """The first query by itself, and then LANES of the others at a time, so that one is answered while another is read."""

    def __init__(self, access: Access, queries: Mapping[str, str], seconds: float, largest: int) -> None:
        self._access, self._seconds, self._largest = access, seconds, largest
        self._waiting = deque(queries.items())
        self._connections: list[HTTPConnection] = []
        self._at: float | None = None
        self.answers = Answers()
        self.failure: Exception | None = None

    def run(self) -> None:
        self._lane(1)
        lanes = [threading.Thread(target=self._lane, args=(len(self._waiting),), daemon=True) for _ in range(LANES)]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()

    def give_up(self) -> None:
        """End what is waited for. Not by `close`, which other threads may not do to a TLS connection."""
        self._waiting.clear()
        for connection in self._connections:
            if connection.sock is not None:
                with suppress(OSError):
                    socket.shutdown(connection.sock, SHUT_RDWR)

    def _lane(self, most: int) -> None:
        connection = self._access.connection(self._seconds)
        self._connections.append(connection)
        try:
            for _ in range(most):
                try:
                    name, query = self._waiting.popleft()
                except IndexError:
                    return
                samples = self._ask(connection, query)
                self._at = samples[0].at if self._at is None and samples else self._at
                self.answers.samples[name] = samples
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            self._waiting.clear()
            self.failure = self.failure or _told(self._access, self._seconds, error)
        finally:
            connection.close()

    def _ask(self, connection: HTTPConnection, query: str) -> list[Sample]:
        words = {"query": query, "timeout": f"{self._seconds:g}"}
        if self._at is not None:
            words["time"] = f"{self._at:.3f}"
        headers = {"Accept": "application/json"}
        if self._access.authorization:
            headers["Authorization"] = self._access.authorization
        connection.request("GET", f"{self._access.path}/api/v1/query?{urlencode(words)}", headers=headers)
        answer = connection.getresponse()
        try:
            body = _body(self._access, answer, self._largest)
        finally:
            answer.close()  # which holds the socket, whatever becomes of the connection
        if answer.status != 200:
            raise PrometheusError(_refusal(self._access, answer, body))
        return self._samples(body)

    def _samples(self, body: bytes) -> list[Sample]:
        match _parsed(body):
            case {"status": "success", "data": {"resultType": "vector", "result": list(result)}, **more}:
                warnings = more.get("warnings")
                if isinstance(warnings, list):
                    told = [str(warning)[:_WORDS_MAX] for warning in warnings[:10]]
                    self.answers.warnings += [one for one in told if one not in self.answers.warnings]
                try:
                    return [sample for row in result if (sample := _sample(row)) is not None]
                except (KeyError, TypeError, ValueError, AttributeError):
                    pass
        raise PrometheusError(
            f"what answers at {self._access.url} is no Prometheus: {body[:60].decode('latin-1')!r}; "
            "is a login page, or a wrong path, before it?"
        )


def _late(access: Access, seconds: float) -> PrometheusError:
    return PrometheusError(
        f"{access.url} has not answered within {seconds:g} s: is it very busy? {access.hints.time}".rstrip()
    )


def _told(access: Access, seconds: float, error: Exception) -> Exception:
    """What to say of what went wrong; a bug of ours as it is."""
    if isinstance(error, TimeoutError):
        return _late(access, seconds)
    if isinstance(error, OSError | HTTPException):
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return PrometheusError(f"cannot ask {access.url}: {why[:_WORDS_MAX]}; {access.hints.address}")
    return error


def _body(access: Access, answer: HTTPResponse, largest: int) -> bytes:
    """All of it. Raises PrometheusError if it is too large or ends too early."""
    received = bytearray()
    while chunk := b"" if (answer.length or 0) > largest else answer.read(_CHUNK):
        received += chunk
        if len(received) > largest:
            break
    if len(received) > largest or (answer.length or 0) > largest:
        raise PrometheusError(f"{access.url} answers with more than {largest >> 20} MiB: is it Prometheus?")
    if answer.length:
        raise PrometheusError(f"{access.url} hung up before it had answered: {answer.length} bytes are missing")
    return bytes(received)


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _sample(row: Any) -> Sample | None:
    """None for what is no number. Raises what the wrong shape leads to."""
    at, text = row["value"]
    value, labels = float(text), row["metric"]
    if not isinstance(labels, dict) or not all(isinstance(label, str) for label in labels.values()):
        raise TypeError
    at = float(at)
    return Sample(labels, at, value) if isfinite(value) and isfinite(at) else None


_TO_DO = {
    403: "these credentials are not allowed to ask",
    404: "is the path in the address right?",
    422: "is it Prometheus 2.42 or later, and loads it all of gpuwarden's rules?",
}


def _refusal(access: Access, answer: HTTPResponse, body: bytes) -> str:
    if 300 <= answer.status < 400:
        to = (answer.getheader("Location") or "elsewhere")[:_WORDS_MAX]
        return f"{access.url} sends us on to {to!r}, which is not followed: give the right address itself"
    said = _parsed(body)
    words = said.get("error") if isinstance(said, dict) else None
    told = f": {words[:_WORDS_MAX]}" if isinstance(words, str) and words else f" {answer.reason[:60]}".rstrip()
    to_do = access.hints.credentials if answer.status == 401 else _TO_DO.get(answer.status, "")
    return f"{access.url} answers {answer.status}{told}" + (f"; {to_do}" if to_do else "")
