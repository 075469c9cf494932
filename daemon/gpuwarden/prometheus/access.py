"""Access to Prometheus: its URL and credentials. Credentials are read from files: all users can read command lines."""

from __future__ import annotations

import re
import ssl
from base64 import b64encode
from dataclasses import field
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

from gpuwarden.base.web_address import address_fault
from gpuwarden_collectors.dataclass import dataclass

_SECRET_MAX = 64 << 10  # bytes
_PRINTABLE = re.compile(r"[\x21-\x7e]+")


class AccessError(Exception):
    """The URL or a credentials file cannot be used. The message has the reason and the advice."""


@dataclass(frozen=True, slots=True)
class Hints:
    """Advice for errors, set by the caller, who knows where URL, credentials and deadline are configured."""

    address: str = "is the address right?"
    credentials: str = "are credentials needed?"
    time: str = ""


NO_HINTS = Hints()


@dataclass(frozen=True, slots=True)
class Access:
    """URL and credentials. `path` precedes `/api`. `authorization`: the full header value, "" without credentials."""

    url: str
    host: str
    port: int
    path: str
    tls: ssl.SSLContext | None
    authorization: str = field(default="", repr=False)
    hints: Hints = Hints()

    def connection(self, seconds: float) -> HTTPConnection:
        """Return a connection that is not yet open. `seconds`: timeout of each socket operation."""
        if self.tls is None:
            return HTTPConnection(self.host, self.port, timeout=seconds)
        return HTTPSConnection(self.host, self.port, timeout=seconds, context=self.tls)


def access(
    url: str, *, token: Path | None = None, basic: Path | None = None, ca: Path | None = None, hints: Hints = NO_HINTS
) -> Access:
    """Build an `Access` from a URL and files.

    `token` contains a bearer token, `basic` a line USER:PASSWORD, `ca` certificates (PEM). Raises AccessError.
    """
    if why := address_fault(url):
        raise AccessError(why)
    parts = urlsplit(url)
    if token is not None and basic is not None:
        raise AccessError("a bearer token and a password are both given: give one of them")
    authorization = ""
    if token is not None:
        authorization = f"Bearer {_secret(token, 'a bearer token')}"
    elif basic is not None:
        authorization = f"Basic {_basic(basic)}"
    if ca is not None and parts.scheme != "https":
        raise AccessError(f"{url}: certificates are used with https:// only")
    return Access(
        url=url.rstrip("/"),
        host=parts.hostname or "",
        port=parts.port or (443 if parts.scheme == "https" else 80),
        path=parts.path.rstrip("/"),
        tls=_tls(ca) if parts.scheme == "https" else None,
        authorization=authorization,
        hints=hints,
    )


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(_SECRET_MAX + 1)
    except OSError as error:
        raise AccessError(f"cannot read {file}: {error.strerror}") from error


def _secret(file: Path, content: str) -> str:
    text = _read(file).decode("latin-1").strip()
    if len(text) > _SECRET_MAX or not _PRINTABLE.fullmatch(text):
        raise AccessError(f"{file} does not hold {content}: expected one line of printable characters without spaces")
    return text


def _basic(file: Path) -> str:
    line = _read(file).rstrip(b"\r\n")
    if len(line) > _SECRET_MAX or b":" not in line or b"\n" in line:
        raise AccessError(f"{file} does not hold a user and a password: expected one line USER:PASSWORD")
    return b64encode(line).decode()


def distrust(error: Exception) -> str:
    """Return why the certificate is not trusted (`ssl.SSLCertVerificationError`); "" for any other error."""
    return str(getattr(error, "verify_message", ""))


def _tls(ca: Path | None) -> ssl.SSLContext:
    if ca is None:
        return ssl.create_default_context()
    data = _read(ca) if ca.is_file() else b""
    try:
        context = ssl.create_default_context(cadata=data.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise AccessError(f"{ca} holds no certificates in PEM: {error}") from error
    if not data:
        raise AccessError(f"{ca} holds no certificates: it is empty, or not a file")
    return context
