"""Delivery to an HTTP server: one POST for each message, over one connection while messages are queued.

    Content-Type: application/json          Idempotency-Key: the id of the message, the same for every attempt
    X-Gpuwarden-Timestamp: Unix time        X-Gpuwarden-Signature: sha256=HMAC-SHA256(key, timestamp "." body) in hex

Results by response:

    2xx                        delivered
    400 404 410 413 422        refused: this message is not sent again
    401 403 407, redirects     barred: kept until an operator changes something; no redirect is followed
    409                        delivered, if an earlier attempt was made; else retried later
    all others, and no response  retried later; Retry-After is honoured

No proxy is used. Secrets are read again for each connection. No log line or error contains a secret or the URL's path.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from socket import SHUT_RDWR, socket
from urllib.parse import urlsplit

from gpuwarden import __version__
from gpuwarden.base.threads import detached
from gpuwarden.base.web_address import address_fault
from gpuwarden.config.notify import WebhookOptions
from gpuwarden.config.secrets import SecretError, SecretFile
from gpuwarden.notify.delivery import DELIVERED, Delivery, Result
from gpuwarden.notify.queue import Message
from gpuwarden.policy import reasons
from gpuwarden.prometheus.access import AccessError, access, distrust
from gpuwarden_collectors.dataclass import dataclass

UNWANTED = frozenset({400, 404, 410, 413, 422})
BARRED = frozenset({401, 403, 407})
LONGEST_WAIT = 240.0
"""Seconds; the upper limit of Retry-After, to which a random 0 to 25 % is added."""
_RESPONSE_MOST = 16 << 10  # bytes that are read of a response, so that the connection can be used again
_REASON_MOST = 120


class WebhookReceiver:
    """Posts messages to a webhook. `wall` returns Unix time."""

    def __init__(self, options: WebhookOptions, wall: Callable[[], float] = time.time) -> None:
        self._options = options
        self._wall = wall
        self._line: _Line | None = None
        self._posting: asyncio.Future[Delivery] | None = None

    async def deliver(self, message: Message, *, again: bool) -> Delivery:
        """Post the message in a thread, which is abandoned if it hangs; until it ends, no other thread is started."""
        if self._posting is not None and not self._posting.done():
            return Delivery(Result.LATER, "an earlier request hangs")
        call = _Call(message, again=again)
        self._posting = detached("webhook", lambda: self._post(call))
        try:
            await asyncio.wait((self._posting,), timeout=self._options.timeout)
        finally:
            if not self._posting.done():
                self._give_up(call)
        if not self._posting.done():
            return Delivery(Result.LATER, f"no response within {self._options.timeout:g} s")
        return self._posting.result()

    def release(self) -> None:
        if self._posting is None or self._posting.done():
            self._drop()

    def _give_up(self, call: _Call) -> None:
        """Shut down the socket, which ends a waiting thread. `close` of a TLS connection is not thread-safe."""
        call.given_up = True
        line, self._line = self._line, None
        if line is not None and line.connection.sock is not None:
            with contextlib.suppress(OSError):
                socket.shutdown(line.connection.sock, SHUT_RDWR)

    def _drop(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.connection.close()

    # --- in the thread

    def _post(self, call: _Call) -> Delivery:
        while True:
            kept, line = self._line is not None, None
            try:
                line = self._line = self._line or _Line(self._options)
                delivery = line.post(call.message, self._wall(), again=call.again)
            except (SecretError, AccessError) as error:
                return Delivery(Result.BARRED, str(error))
            except (OSError, HTTPException, ValueError) as error:
                self._ended(line)
                if why := distrust(error):
                    return Delivery(Result.BARRED, f"its certificate is not trusted: {why}")
                if kept and not call.given_up:  # a server may close a persistent connection at any time
                    call.again = True
                    continue
                return Delivery(Result.LATER, _why(error))
            if line.over or call.given_up:
                self._ended(line)
            return delivery

    def _ended(self, line: _Line | None) -> None:
        self._line = None
        if line is not None:
            line.connection.close()


@dataclass(slots=True)
class _Call:
    """A POST in progress. `given_up`: `deliver` no longer waits for it."""

    message: Message
    again: bool
    given_up: bool = False


class _Line:
    """A connection, with the secrets as read at its creation. `over`: it cannot be reused, or the server closes it."""

    def __init__(self, options: WebhookOptions) -> None:
        url = options.url or _address(options.url_file)
        split = urlsplit(url)
        reached = access(
            f"{split.scheme}://{split.netloc}", token=_path(options.token), basic=_path(options.basic), ca=options.ca
        )
        self.over = False
        self.connection = reached.connection(options.timeout)
        self._target = (split.path or "/") + (f"?{split.query}" if split.query else "")
        self._authorization = reached.authorization
        self._key = options.key.read().encode() if options.key is not None else b""

    def post(self, message: Message, now: float, *, again: bool) -> Delivery:
        """Send the message and return the result. Raises what the connection raises."""
        body, stamp = message.body.encode(), str(int(now))
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"gpuwarden/{__version__}",
            "Idempotency-Key": message.key,
            "X-Gpuwarden-Timestamp": stamp,
        }
        if self._key:
            signed = hmac.new(self._key, f"{stamp}.".encode() + body, hashlib.sha256).hexdigest()
            headers["X-Gpuwarden-Signature"] = f"sha256={signed}"
        if self._authorization:
            headers["Authorization"] = self._authorization
        self.connection.request("POST", self._target, body, headers)
        response = self.connection.getresponse()
        try:
            response.read(_RESPONSE_MOST)
            self.over = not response.isclosed() or response.will_close
        finally:
            response.close()  # it holds the socket, even when the connection is closed
        return _judged(response, now, again=again)


def _judged(response: HTTPResponse, now: float, *, again: bool) -> Delivery:
    status = response.status
    if 200 <= status < 300 or (status == 409 and again):
        return DELIVERED
    why = f"it answers {status} {reasons.line(response.reason)[:_REASON_MOST]}".rstrip()
    if status in UNWANTED:
        return Delivery(Result.REFUSED, why)
    if status in BARRED:
        return Delivery(Result.BARRED, f"{why}: are its credentials right?")
    if 300 <= status < 400:
        return Delivery(Result.BARRED, f"{why}, which is not followed: give the final address")
    return Delivery(Result.LATER, why, _retry_after(response.getheader("Retry-After", ""), now))


def _retry_after(text: str, now: float) -> float:
    """Return the seconds of a Retry-After header, a number or a date (RFC 9110); 0 if it is invalid."""
    try:
        seconds = float(text) if text.strip().isdigit() else parsedate_to_datetime(text).timestamp() - now
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return min(max(seconds, 0.0), LONGEST_WAIT)


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no response in time"
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return f"no response: {why[:_REASON_MOST]}"


def _address(file: SecretFile | None) -> str:
    """Return the URL in the file. Raises SecretError, without the file's content, if it contains no valid URL."""
    url = "" if file is None else file.read()
    if address_fault(url, query=True):
        raise SecretError(f"{file} does not hold an address such as https://host.example/path")
    return url


def _path(secret: SecretFile | None) -> Path | None:
    return None if secret is None else secret.path()
