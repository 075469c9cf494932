"""A server that is told by HTTP: one POST for each message, on one connection as long as there is more to tell.

    Content-Type: application/json          Idempotency-Key: the id of the message, the same for every attempt
    X-Gpuwarden-Timestamp: Unix time        X-Gpuwarden-Signature: sha256=HMAC-SHA256(key, timestamp "." body) in hex

What a server answers to it:

    2xx                        it was told
    400 404 410 413 422        it does not want this message: it is not told again
    401 403 407, redirects     kept until a person has changed something; no redirect is followed
    409                        after an earlier attempt: it was taken then; else later
    all others, and no answer  later; Retry-After is heeded

No proxy is asked. Secrets are read anew for each connection, and none of them, nor the path of the address, is in any text.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass
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

UNWANTED = frozenset({400, 404, 410, 413, 422})
BARRED = frozenset({401, 403, 407})
LONGEST_WAIT = 240.0
"""Seconds; who asks for more is asked again after this, and by chance up to a quarter more."""
_ANSWER_MOST = 16 << 10  # bytes that are read of an answer, so that the connection can be used again
_WORDS_MOST = 120


class WebhookReceiver:
    """`wall` gives Unix time."""

    def __init__(self, options: WebhookOptions, wall: Callable[[], float] = time.time) -> None:
        self._options = options
        self._wall = wall
        self._line: _Line | None = None
        self._posting: asyncio.Future[Delivery] | None = None

    async def deliver(self, message: Message, *, again: bool) -> Delivery:
        """In a thread, which is left behind where it hangs; no second one is begun beside it."""
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
            return Delivery(Result.LATER, f"no answer within {self._options.timeout:g} s")
        return self._posting.result()

    def rest(self) -> None:
        if self._posting is None or self._posting.done():
            self._drop()

    def _give_up(self, call: _Call) -> None:
        """The thread ends by itself, unless it hangs elsewhere. Not by `close`, which others may not do to a TLS connection."""
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
                if kept and not call.given_up:  # a server may end a connection that it keeps at any time
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
    """`given_up`: nobody waits for it any more."""

    message: Message
    again: bool
    given_up: bool = False


class _Line:
    """A connection, and what was read of the secrets when it was made. `over`: the server ends it, or it cannot be used again."""

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
        """Raises what the connection raises."""
        body, stamp = message.body.encode(), str(int(now))
        headers = {
            "Content-Type": "application/json", "User-Agent": f"gpuwarden/{__version__}",
            "Idempotency-Key": message.key, "X-Gpuwarden-Timestamp": stamp,
        }  # fmt: skip
        if self._key:
            signed = hmac.new(self._key, f"{stamp}.".encode() + body, hashlib.sha256).hexdigest()
            headers["X-Gpuwarden-Signature"] = f"sha256={signed}"
        if self._authorization:
            headers["Authorization"] = self._authorization
        self.connection.request("POST", self._target, body, headers)
        answer = self.connection.getresponse()
        try:
            answer.read(_ANSWER_MOST)
            self.over = not answer.isclosed() or answer.will_close
        finally:
            answer.close()  # which holds the socket, whatever becomes of the connection
        return _judged(answer, now, again=again)


def _judged(answer: HTTPResponse, now: float, *, again: bool) -> Delivery:
    status = answer.status
    if 200 <= status < 300 or (status == 409 and again):
        return DELIVERED
    said = f"it answers {status} {reasons.line(answer.reason)[:_WORDS_MOST]}".rstrip()
    if status in UNWANTED:
        return Delivery(Result.REFUSED, said)
    if status in BARRED:
        return Delivery(Result.BARRED, f"{said}: are its credentials right?")
    if 300 <= status < 400:
        return Delivery(Result.BARRED, f"{said}, which is not followed: give the right address itself")
    return Delivery(Result.LATER, said, _retry_after(answer.getheader("Retry-After", ""), now))


def _retry_after(text: str, now: float) -> float:
    """Seconds; from a number of them, or from a date (RFC 9110)."""
    try:
        seconds = float(text) if text.strip().isdigit() else parsedate_to_datetime(text).timestamp() - now
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return min(max(seconds, 0.0), LONGEST_WAIT)


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return f"no answer: {why[:_WORDS_MOST]}"


def _address(file: SecretFile | None) -> str:
    """Raises SecretError. What is wrong with it is not said in its words."""
    url = "" if file is None else file.read()
    if address_fault(url, query=True):
        raise SecretError(f"{file} does not hold an address such as https://host.example/path")
    return url


def _path(secret: SecretFile | None) -> Path | None:
    return None if secret is None else secret.path()
