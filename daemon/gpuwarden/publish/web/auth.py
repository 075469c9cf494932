"""Basic authentication against bcrypt hashes, in a thread and one check at a time; equal headers share a check.

A valid login is cached as a keyed hash of the whole header. An invalid one is not, so that only clients with a password
can fill the cache. An unknown name is checked against the hash of a known one, so that neither the duration nor the
response reveals which names exist. The waiting time during a flood may reveal it (see `lanes`).
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
from gpuwarden.publish.web.lanes import Lanes
from gpuwarden_collectors.dataclass import dataclass

KNOWN_MOST = 128
PASSWORD_MAX = 72
"""Bytes of a password that bcrypt uses."""


class Login(StrEnum):
    RIGHT = auto()
    WRONG = auto()
    BUSY = auto()  # it could not be checked in time


@dataclass(frozen=True, slots=True)
class _Check:
    """A password to be checked. `hash_`: of the user, or of another user if the name is unknown (`exists` False)."""

    digest: bytes
    password: bytes
    hash_: bytes
    exists: bool
    result: asyncio.Future[Login]


class Passwords:
    """The users of one version of the web-config file: name to bcrypt hash, at least one. `checker`: its thread."""

    def __init__(self, users: Mapping[str, str], checker: BackgroundWriter) -> None:
        self._secret = secrets.token_bytes(32)
        self._hashes = [hash_.encode() for hash_ in users.values()]
        self._users = {self._keyed(name.encode()): hash_.encode() for name, hash_ in users.items()}
        self._checker = checker
        self._known: dict[bytes, None] = {}  # in the order in which they were accepted
        self._checks: dict[bytes, _Check] = {}  # by the header: concurrent checks of the same one share one result
        self._lanes: Lanes[_Check] = Lanes()
        self._checking = False

    def is_known(self, authorization: str) -> bool:
        """Return True if exactly that header was accepted before."""
        return self._keyed(_header(authorization)) in self._known  # keyed, so that the time it takes reveals nothing

    async def login(self, authorization: str, within: float, source: str = "") -> Login:
        """Check the header `authorization`. `within`: time limit in seconds; `source`: owner of the connection."""
        header = _header(authorization)
        digest = self._keyed(header)
        if digest in self._known:
            return Login.RIGHT
        credentials = _credentials(header)
        if credentials is None:
            return Login.WRONG
        check = self._checks.get(digest) or self._begin(digest, source, *credentials)
        try:
            async with asyncio.timeout(within):
                return await asyncio.shield(check.result)
        except TimeoutError:
            return Login.BUSY

    def _begin(self, digest: bytes, source: str, name: bytes, password: bytes) -> _Check:
        user = self._keyed(name)
        exists = user in self._users
        hash_ = self._users[user] if exists else self._hashes[int.from_bytes(user[:8], "big") % len(self._hashes)]
        check = _Check(digest, password, hash_, exists, asyncio.get_running_loop().create_future())
        self._checks[digest] = check
        for refused in self._lanes.add((source, user if exists else b""), check):
            self._settle(refused, Login.BUSY)
        self._check_next()
        return check

    def _check_next(self) -> None:
        """Start the next check of a password; the thread does one at a time."""
        if self._checking or (check := self._lanes.next()) is None:
            return
        loop = asyncio.get_running_loop()

        def work() -> None:
            result = Login.BUSY  # if it raises
            try:
                result = Login.RIGHT if _matches(check.password, check.hash_) and check.exists else Login.WRONG
            finally:
                with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing waits for the result
                    loop.call_soon_threadsafe(checked, result)

        def checked(result: Login) -> None:
            self._checking = False
            if result is Login.RIGHT:
                self._remember(check.digest)
            self._settle(check, result)
            self._check_next()

        self._checking = self._checker.submit(work)
        if not self._checking:  # the server ends
            self._settle(check, Login.BUSY)

    def _settle(self, check: _Check, result: Login) -> None:
        del self._checks[check.digest]
        if not check.result.done():
            check.result.set_result(result)

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
    """Return name and password of `Basic …`; None for any other header."""
    scheme, _, coded = header.partition(b" ")
    if scheme.lower() != b"basic":
        return None
    try:
        name, colon, password = base64.b64decode(coded.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return (name, password) if colon else None
