"""Access control of the web server by the web-config file.

The file and the files it names are read again when they change. If a changed file has a fault, the old one stays in
force and an error is reported. The same applies to a change that removes the protection: a file that is briefly empty
while it is written must not open the server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from gpuwarden.base.background import BackgroundWriter
from gpuwarden.base.log import get_logger
from gpuwarden.base.threads import promised
from gpuwarden.config.sources import Fault
from gpuwarden.publish.times import rfc3339
from gpuwarden.publish.web import http as web
from gpuwarden.publish.web.config import read
from gpuwarden.publish.web.connections import source_of
from gpuwarden.publish.web.files import Print, fingerprint
from gpuwarden.publish.web.rules import WebConfig, WebConfigError
from gpuwarden.publish.web.tls import Tls
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.token_bucket import TokenBucket

if TYPE_CHECKING:  # imports bcrypt, which is needed only with users
    from gpuwarden.publish.web.auth import Passwords

log = get_logger()

Result = TypeVar("Result")
CHECK_EVERY = 2.0
READ_WITHIN = 10.0
_CHECKERS_MOST = 8  # concurrent checks, at most one for each version of the file
SESSIONS_MOST = 512
"""OpenSSL keeps up to 20,000 sessions of TLS 1.2 for each context, and Python cannot turn that off."""


@dataclass(frozen=True, slots=True)
class Refusal:
    kind: str
    code: int
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)


WRONG = Refusal("login", 401, "name and password are needed", {"WWW-Authenticate": 'Basic realm="gpuwarden"'})
BUSY = Refusal("login", 503, "too many logins are being checked; try again", {"Retry-After": "1"})
LIMITED = Refusal("rate_limit", 429, "more requests than rate_limit allows; try again", {"Retry-After": "1"})


class Guard:
    """Decides which clients are served.

    Without a `path` every client is served, without TLS. `deadline`: most seconds for a login.
    """

    def __init__(self, path: Path | None, clock: Clock, *, deadline: float = 10.0, every: float = CHECK_EVERY) -> None:
        self._path = path
        self._clock = clock
        self._deadline = deadline
        self._every = every
        self._config = WebConfig()
        self._seen: Mapping[Path, Print] = {}
        self._doubt = self._fault = ""
        self._bucket = TokenBucket(0, 0.0, 0.0)
        self._passwords: Passwords | None = None
        self._reader: BackgroundWriter | None = None
        self._checker: BackgroundWriter | None = None
        self._watching: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Read the file, if one is configured. Raises WebConfigError."""
        if self._path is None:
            return
        self._reader = BackgroundWriter("web config", 1, newest_wins=True, on_error=self._failed, clock=self._boottime)
        try:
            result = await self._done(partial(_tried, self._path))
        except TimeoutError:
            result = _unusable(self._path, f"cannot read it: no response within {READ_WITHIN:g} s")
        if isinstance(result, WebConfigError):
            raise result
        self._take(result)
        self._watching = asyncio.create_task(self._watch(self._path))

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
            self._watching = None
        for thread in (self._reader, self._checker):
            if thread is not None:
                thread.close(timeout=0.0)

    # --- rules in force

    @property
    def tls(self) -> Tls | None:
        return self._config.tls

    @property
    def headers(self) -> Mapping[str, str]:
        return self._config.headers

    def outdated(self, request: web.BaseRequest) -> bool:
        """Return True if its connection was accepted under a version of the file that is no longer in force."""
        tls = self._config.tls
        return self._path is not None and request.get_extra_info("sslcontext") is not (tls and tls.context)

    async def refusal(self, request: web.BaseRequest) -> Refusal | None:
        """Return the reason for which this request is refused, or None. It does not depend on path or method."""
        if self._bucket.wait(asyncio.get_running_loop().time()):
            return LIMITED
        if self._passwords is None:
            return None
        authorization = request.headers.get("Authorization", "")
        if self._passwords.is_known(authorization):
            return None
        peer = request.get_extra_info("peername")
        login = await self._passwords.login(authorization, self._deadline, source_of(peer) if peer else "")
        return {"right": None, "wrong": WRONG, "busy": BUSY}[login.value]

    def error(self, now: Stamp) -> str:
        """Return the fault of the web-config file or its certificate; "" if there is none."""
        if self._fault:
            return f"{self._fault}; the previous configuration stays in force"
        stalled = 0.0 if self._reader is None else self._reader.stalled_for(now.boottime)
        if stalled > READ_WITHIN:
            return f"cannot read {self._path}: no response for {stalled:.0f} s; is its filesystem frozen?"
        return "" if self._config.tls is None else expiry(self._config.tls, now.wall)

    # --- reading

    async def _done(self, work: Callable[[], Result]) -> Result:
        """Run `work` in the thread and return its result. Raises its exception, or TimeoutError after READ_WITHIN."""
        assert self._reader is not None  # noqa: S101 - opened with the file
        done, job = promised(work)
        self._reader.submit(job)
        async with asyncio.timeout(READ_WITHIN):
            return await done

    async def _watch(self, path: Path) -> None:
        while True:
            await asyncio.sleep(self._every)
            with contextlib.suppress(TimeoutError):  # reported by `error`
                if await self._done(partial(_changed, self._seen)) or self._crowded():
                    self._consider(await self._done(partial(_tried, path)))
                elif self._doubt != self._fault:  # seen twice, so the file is not just being replaced
                    self._fault = self._doubt
                    log.error("web configuration rejected; the old one stays in force", reason=self._fault)

    def _consider(self, result: WebConfig | WebConfigError) -> None:
        if isinstance(result, WebConfigError):
            self._seen, self._doubt = result.files or self._seen, str(result)
        elif opened := self._config.opened_by(result):
            self._seen = result.files
            self._doubt = f"{self._path}: it no longer requires {opened}: restart gpuwarden if that is intended"
        else:
            self._take(result)

    def _take(self, config: WebConfig) -> None:
        before, self._config = self._config, config
        self._seen, self._doubt, self._fault = config.files, "", ""
        if config.users != before.users:
            self._passwords = self._logins(config.users)
        if (limit := config.rate_limit) != before.rate_limit:
            self._bucket = TokenBucket(limit.burst, limit.interval, asyncio.get_running_loop().time())
        if config.files == before.files:
            return
        ends = None if config.tls is None else rfc3339(config.tls.ends)
        log.info("web configuration read", file=str(self._path), certificate_until=ends, users=len(config.users))
        for warning in config.warnings:
            log.warning("web configuration has a warning", warning=warning)

    def _logins(self, users: Mapping[str, str]) -> Passwords | None:
        """Return a checker without cached logins, which may be invalid now; None without users."""
        if not users:
            return None
        from gpuwarden.publish.web.auth import Passwords  # noqa: PLC0415 - only with users

        if self._checker is None:
            self._checker = BackgroundWriter("passwords", _CHECKERS_MOST, on_error=self._failed, clock=self._boottime)
        return Passwords(users, self._checker)

    def _crowded(self) -> bool:
        return self.tls is not None and self.tls.context.session_stats()["number"] > SESSIONS_MOST

    def _failed(self, error: Exception) -> None:
        log.error("login check failed", kind=type(error).__name__)

    def _boottime(self) -> float:
        return self._clock().boottime


def _changed(seen: Mapping[Path, Print]) -> bool:
    return any(fingerprint(file) != before for file, before in seen.items())


def _tried(path: Path) -> WebConfig | WebConfigError:
    try:
        return read(path)
    except WebConfigError as error:
        return error
    except Exception as error:  # noqa: BLE001 - after any error the old file stays in force, and it is reported
        return _unusable(path, f"cannot use it: {type(error).__name__}")


def _unusable(path: Path, message: str) -> WebConfigError:
    return WebConfigError([Fault(str(path), "", message)], {path: fingerprint(path)})


def expiry(tls: Tls, now: float) -> str:
    """Return a message if the certificate has expired, or will within a week (or a tenth of its life); else ""."""
    left = tls.ends - now
    if left > min(7 * 86400, tls.life / 10):
        return ""
    when = "has expired" if left <= 0 else f"expires in {left / 3600:.0f} h"
    return (
        f"the certificate that is served {when} ({rfc3339(tls.ends)}): replace it; it is read again without a restart"
    )
