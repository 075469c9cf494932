"""Basic authentication against bcrypt hashes: never on the loop, one at a time, and once for each scraper.

A valid login is remembered, as a keyed hash of the whole header; a wrong one is not, so that only those who know a password
can fill this memory. An unknown name is checked against the hash of a known one, so that
neither the time nor the response reveals which names exist.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hmac
import secrets
from collections.abc import Mapping
from enum import StrEnum, auto

import bcrypt

from gpuwarden.base.background import BackgroundWriter

KNOWN_MOST = 128
WAITING_MOST = 64
"""Checks that may wait; at cost 10 one takes about 70 ms."""
PASSWORD_MAX = 72
"""Bytes of a password that count in bcrypt."""


class Login(StrEnum):
    RIGHT = auto()
    WRONG = auto()
    BUSY = auto()  # it could not be checked in time


class Passwords:
    """The users of one state of the web-config file: name to bcrypt hash, at least one. `checker` is its one thread."""

    def __init__(self, users: Mapping[str, str], checker: BackgroundWriter) -> None:
        self._secret = secrets.token_bytes(32)
        self._hashes = [hash_.encode() for hash_ in users.values()]
        self._users = {self._keyed(name.encode()): hash_.encode() for name, hash_ in users.items()}
        self._checker = checker
        self._known: dict[bytes, None] = {}  # in the order in which they were accepted
        self._checks: dict[bytes, asyncio.Future[bool]] = {}

    def is_known(self, authorization: str) -> bool:
        """Whether exactly that header was accepted before."""
        return self._keyed(_header(authorization)) in self._known  # keyed, so that the time it takes reveals nothing

    async def login(self, authorization: str, within: float) -> Login:
        """`authorization`: the header; `within` seconds a check must be done."""
        header = _header(authorization)
        digest = self._keyed(header)
        if digest in self._known:
            return Login.RIGHT
        given = _credentials(header)
        if given is None:
            return Login.WRONG
        check = self._checks.get(digest) or self._begin(digest, *given)
        if check is None:
            return Login.BUSY
        try:
            async with asyncio.timeout(within):
                right = await asyncio.shield(check)
        except TimeoutError:
            return Login.BUSY
        return Login.RIGHT if right else Login.WRONG

    def _begin(self, digest: bytes, name: bytes, password: bytes) -> asyncio.Future[bool] | None:
        """The check, in the thread; None if too many wait. Concurrent checks of the same header share one result."""
        loop = asyncio.get_running_loop()
        check: asyncio.Future[bool] = loop.create_future()
        user = self._keyed(name)
        hash_ = self._users.get(user) or self._hashes[int.from_bytes(user[:8], "big") % len(self._hashes)]

        def settle(right: bool) -> None:
            self._checks.pop(digest, None)
            if right:
                self._remember(digest)
            if not check.done():
                check.set_result(right)

        def work() -> None:
            right = False
            try:
                right = _matches(password, hash_) and user in self._users
            finally:
                with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits any more
                    loop.call_soon_threadsafe(settle, right)

        if not self._checker.submit(work):
            return None
        self._checks[digest] = check
        return check

    def _remember(self, digest: bytes) -> None:
        while len(self._known) >= KNOWN_MOST:
            self._known.pop(next(iter(self._known)))
        self._known[digest] = None

    def _keyed(self, data: bytes) -> bytes:
        return hmac.digest(self._secret, data, "sha256")


def _header(authorization: str) -> bytes:
    return authorization.encode("utf-8", "surrogateescape")


def _matches(password: bytes, hash_: bytes) -> bool:
    return bcrypt.checkpw(password[:PASSWORD_MAX], hash_)


def _credentials(header: bytes) -> tuple[bytes, bytes] | None:
    """Name and password of `Basic …`; None for anything else."""
    scheme, _, coded = header.partition(b" ")
    if scheme.lower() != b"basic":
        return None
    try:
        name, colon, password = base64.b64decode(coded.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return (name, password) if colon else None
