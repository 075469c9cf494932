"""Queries to Prometheus, or to a server with its HTTP API (Thanos, Mimir, VictoriaMetrics).

All queries together, including name resolution, have one deadline, and each response has a size limit. No redirect is
followed and no proxy is used: credentials are sent only to the configured host.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field
from http.client import HTTPConnection, HTTPException, HTTPResponse
from math import isfinite
from socket import SHUT_RDWR, socket
from typing import Any
from urllib.parse import urlencode

from gpuwarden.base.json_text import parsed
from gpuwarden.prometheus.access import Access
from gpuwarden_collectors.dataclass import dataclass

RESPONSE_MAX = 64 << 20
"""Size limit of one response in bytes; for 10,000 nodes the largest takes about 6 MB."""
LANES = 2
ENDS_WITHIN = 1.0
"""Seconds to wait for abandoned threads: one that resumes while the interpreter exits can crash it (seen on 3.11)."""
_CHUNK = 1 << 20
_ERROR_MAX = 300  # characters of a server's error message


class PrometheusError(Exception):
    """Prometheus cannot be queried, or its response is invalid. The message has the reason and the advice."""


class TooLargeError(PrometheusError):
    """Prometheus rejects the query for its size, or does not answer in time: a query with fewer steps may succeed."""


@dataclass(frozen=True, slots=True)
class Times:
    """The range of a range query in Unix time; steps are `step` seconds apart and include both ends."""

    start: float
    end: float
    step: float


@dataclass(frozen=True, slots=True)
class Sample:
    """The value of one series at `at`, Unix time by Prometheus' clock. `value` is finite."""

    labels: Mapping[str, str]
    at: float
    value: float


@dataclass(slots=True)
class Results:
    """Samples by query name. `warnings` are Prometheus': if there are any, the result may be partial."""

    samples: dict[str, list[Sample]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def query(
    access: Access,
    queries: Mapping[str, str],
    seconds: float,
    *,
    largest: int = RESPONSE_MAX,
    times: Times | None = None,
) -> Results:
    """Run all queries at one instant, the evaluation time of the first result; with `times`, as range queries.

    `largest`: size limit of a response in bytes. Raises PrometheusError.
    """
    work = _Work(access, queries, seconds, largest, times)
    # A thread: a socket's timeout limits neither name resolution nor a server that sends one byte a second.
    thread = threading.Thread(target=work.run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        work.give_up()
        thread.join(ENDS_WITHIN)
        raise _late(access, seconds)
    if work.failure is not None:
        raise work.failure
    return work.results


class _Work:
    """Runs the first query alone, then the others, LANES at a time: one is evaluated while another is received."""

    def __init__(
        self, access: Access, queries: Mapping[str, str], seconds: float, largest: int, times: Times | None
    ) -> None:
        self._access, self._seconds, self._largest, self._times = access, seconds, largest, times
        self._waiting = deque(queries.items())
        self._connections: list[HTTPConnection] = []
        self._at: float | None = None
        self.results = Results()
        self.failure: Exception | None = None

    def run(self) -> None:
        self._lane(1)
        lanes = [threading.Thread(target=self._lane, args=(len(self._waiting),), daemon=True) for _ in range(LANES)]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()

    def give_up(self) -> None:
        """Cancel all queries by shutting down the sockets; `close` of a TLS connection is not thread-safe."""
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
                samples = self._query(connection, query)
                self._at = samples[0].at if self._at is None and samples else self._at
                self.results.samples[name] = samples
        except Exception as error:  # noqa: BLE001 - `query` raises it
            self._waiting.clear()
            self.failure = self.failure or _explained(self._access, self._seconds, error)
        finally:
            connection.close()

    def _query(self, connection: HTTPConnection, query: str) -> list[Sample]:
        parameters = {"query": query, "timeout": f"{self._seconds:g}"}
        times = self._times
        if times is not None:
            parameters |= {"start": f"{times.start:.3f}", "end": f"{times.end:.3f}", "step": f"{times.step:g}"}
        elif self._at is not None:
            parameters["time"] = f"{self._at:.3f}"
        headers = {"Accept": "application/json"}
        if self._access.authorization:
            headers["Authorization"] = self._access.authorization
        path = f"{self._access.path}/api/v1/{'query' if times is None else 'query_range'}"
        connection.request("GET", f"{path}?{urlencode(parameters)}", headers=headers)
        response = connection.getresponse()
        try:
            body = _body(self._access, response, self._largest)
        finally:
            response.close()  # it holds the socket, even when the connection is closed
        if response.status != 200:
            raise _refusal(self._access, response, body)
        return self._samples(body)

    def _samples(self, body: bytes) -> list[Sample]:
        match parsed(body):
            case {"status": "success", "data": {"resultType": "vector" | "matrix", "result": list(result)}, **more}:
                warnings = more.get("warnings")
                if isinstance(warnings, list):
                    texts = [str(warning)[:_ERROR_MAX] for warning in warnings[:10]]
                    self.results.warnings += [text for text in texts if text not in self.results.warnings]
                try:
                    return [sample for row in result for sample in _parsed_row(row)]
                except (KeyError, TypeError, ValueError, AttributeError):
                    pass
        raise PrometheusError(
            f"the server at {self._access.url} is not Prometheus: {body[:60].decode('latin-1')!r}; "
            "is a login page in front of it, or the path wrong?"
        )


def _late(access: Access, seconds: float) -> TooLargeError:
    return TooLargeError(
        f"{access.url} has not answered within {seconds:g} s: is it very busy? {access.hints.time}".rstrip()
    )


def _explained(access: Access, seconds: float, error: Exception) -> Exception:
    """Convert an I/O error to a PrometheusError with advice; return any other error, which is a bug, unchanged."""
    if isinstance(error, TimeoutError):
        return _late(access, seconds)
    if isinstance(error, OSError | HTTPException):
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return PrometheusError(f"cannot query {access.url}: {why[:_ERROR_MAX]}; {access.hints.address}")
    return error


def _body(access: Access, response: HTTPResponse, largest: int) -> bytes:
    """Read the whole body. Raises PrometheusError if it is too large or ends too early."""
    received = bytearray()
    while chunk := b"" if (response.length or 0) > largest else response.read(_CHUNK):
        received += chunk
        if len(received) > largest:
            break
    if len(received) > largest or (response.length or 0) > largest:
        raise TooLargeError(f"{access.url} answers with more than {largest >> 20} MiB: is it Prometheus?")
    if response.length:
        raise PrometheusError(
            f"{access.url} closed the connection in mid-response: {response.length} bytes are missing"
        )
    return bytes(received)


def _parsed_row(row: Any) -> list[Sample]:
    """Parse the finite samples of one series. Raises KeyError, TypeError, ValueError, AttributeError."""
    labels = row["metric"]
    if not isinstance(labels, dict) or not all(isinstance(label, str) for label in labels.values()):
        raise TypeError
    values = row["values"] if "values" in row else [row["value"]]
    samples = (Sample(labels, float(at), float(text)) for at, text in values)
    return [sample for sample in samples if isfinite(sample.value) and isfinite(sample.at)]


_TO_DO = {
    403: "these credentials are not allowed to query",
    404: "is the path in the address right?",
    422: "is it Prometheus 2.42 or later, and does it load all of gpuwarden's rules?",
}


_SIZES = re.compile(r"too many samples|timed out|maximum resolution|exceed|maxSamplesPerQuery|maxPointsPerTimeseries")
"""Errors about the size of a query from Prometheus and Thanos, Mimir, and VictoriaMetrics."""


def _refusal(access: Access, response: HTTPResponse, body: bytes) -> PrometheusError:
    if 300 <= response.status < 400:
        to = (response.getheader("Location") or "elsewhere")[:_ERROR_MAX]
        return PrometheusError(f"{access.url} redirects to {to!r}, which is not followed: give the final address")
    error = parsed(body)
    message = error.get("error") if isinstance(error, dict) else None
    detail = (
        f": {message[:_ERROR_MAX]}" if isinstance(message, str) and message else f" {response.reason[:60]}".rstrip()
    )
    if _SIZES.search(detail):
        return TooLargeError(f"{access.url} answers {response.status}{detail}")
    to_do = access.hints.credentials if response.status == 401 else _TO_DO.get(response.status, "")
    return PrometheusError(f"{access.url} answers {response.status}{detail}" + (f"; {to_do}" if to_do else ""))
