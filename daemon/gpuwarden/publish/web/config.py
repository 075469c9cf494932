"""Reads the web-config file of Prometheus' exporter-toolkit, and reports all its faults at once, each with its key.

The format is that of https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md (v0.16). A
setting that cannot be honoured is a fault if that weakens the configured protection, otherwise a warning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path

from gpuwarden.config.sources import Fault
from gpuwarden.config.structure import Parsers, structure
from gpuwarden.publish.web.files import FileError, Files
from gpuwarden.publish.web.rules import RateLimit, WebConfig, WebConfigError
from gpuwarden.publish.web.tls import AddFault, TlsServerConfig, build
from gpuwarden_collectors.dataclass import dataclass

HEADERS: Mapping[str, tuple[str, ...]] = {
    "Content-Security-Policy": (),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-Content-Type-Options": ("nosniff",),
    "X-XSS-Protection": (),
    "Strict-Transport-Security": (),
}
"""The headers that may be set, with the permitted values of those that are restricted."""
HEADER_MAX = 4096
COST_MOST, COST_SLOW = 18, 14
"""Costs of bcrypt, as powers of two: 18 takes about 20 s, 14 about 1 s."""
_HASH = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}")
_INTERVAL = re.compile(r"(?:\d{1,9}(?:\.\d{1,9})?(?:ns|us|µs|ms|s|m|h))+|0")
_PART = re.compile(r"([\d.]+)(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_SECRET = ("tls_server_config", "tls_server_config.key")


@dataclass(frozen=True, slots=True)
class HttpServerConfig:
    """Section `http_server_config`. `http2`: None if not set. The format's default is True; only a set True warns."""

    http2: bool | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WebConfigFile:
    """The keys of the file, as written."""

    tls_server_config: TlsServerConfig = field(default_factory=TlsServerConfig)
    http_server_config: HttpServerConfig = field(default_factory=HttpServerConfig)
    basic_auth_users: Mapping[str, str] = field(default_factory=dict, repr=False)
    rate_limit: RateLimit = field(default_factory=RateLimit)


def read(path: Path) -> WebConfig:
    """Read and check the web-config file. Blocks. Raises WebConfigError."""
    faults: dict[str, Fault] = {}
    warnings: list[str] = []

    def fault(key: str, message: str) -> None:
        faults.setdefault(key, Fault(str(path), key, message))

    files = Files(path, fault, warnings.append)
    web_config = _structured(files, fault)
    tls = None
    if web_config.tls_server_config != TlsServerConfig():
        tls = build(web_config.tls_server_config, files, fault, warnings.append)
    files.holds_secrets |= bool(web_config.basic_auth_users)
    _check(web_config, fault, warnings.append)
    if faults:
        raise WebConfigError(list(faults.values()), files.seen)
    files.warn_readable_secrets()
    headers = {name: value for name, value in web_config.http_server_config.headers.items() if value}
    return WebConfig(tls, web_config.basic_auth_users, headers, web_config.rate_limit, files.seen, tuple(warnings))


def _structured(files: Files, fault: AddFault) -> WebConfigFile:
    """Parse the file. Keys with a fault get their default value."""
    from gpuwarden.publish.web import yaml as web_yaml  # noqa: PLC0415 - 3 MB that most daemons do not need

    try:
        tree = web_yaml.parse(files.config())
    except FileError as error:
        fault("", f"cannot read it: {error}")
        return WebConfigFile()
    except web_yaml.YamlError as error:
        fault("", str(error))
        return WebConfigFile()
    parsers: Parsers = {float: ('a duration such as "1s" or "500ms"', _seconds), int: ("a whole number", int)}
    web_config, unfit = structure(tree, WebConfigFile, parsers=parsers)
    for keys, message in unfit:
        key = ".".join(keys)
        secret = keys[0] == "basic_auth_users" or key in _SECRET
        fault(key, message.partition(", found ")[0] if secret else message)
    return web_config


def _check(web_config: WebConfigFile, fault: AddFault, warn: Callable[[str], None]) -> None:
    for name, hash_ in web_config.basic_auth_users.items():
        _check_user(name, hash_, fault, warn)
    for name, value in web_config.http_server_config.headers.items():
        _check_header(name, value, fault)
    limit = web_config.rate_limit
    if limit.interval and limit.burst < 1:
        fault(
            "rate_limit.burst",
            f"expected at least 1 beside an interval, found {limit.burst}: every request would be refused",
        )
    if web_config.http_server_config.http2:
        warn("http_server_config.http2: HTTP/2 is not supported; every client uses HTTP/1.1")
    if web_config.tls_server_config == TlsServerConfig():
        if web_config.basic_auth_users:
            warn("basic_auth_users without tls_server_config: passwords go over the network as they are")
        else:
            warn("neither tls_server_config nor basic_auth_users: every client that can connect is served")


def _check_user(name: str, hash_: str, fault: AddFault, warn: Callable[[str], None]) -> None:
    key = f"basic_auth_users.{name}"
    match = _HASH.fullmatch(hash_)
    if match is None:
        fault(key, "expected a bcrypt hash such as `htpasswd -nBC 10 NAME` prints behind the colon")
    elif not 4 <= int(match[1]) <= COST_MOST:
        fault(key, f"expected a cost of 4 to {COST_MOST}, found {match[1]}: a check would take minutes")
    elif int(match[1]) > COST_SLOW:
        warn(f"{key}: at cost {match[1]} a login takes seconds, and scrapers give up; 10 is usual")
    if ":" in name:
        fault(key, "expected a name without a colon: no client could log in with it")


def _check_header(name: str, value: str, fault: AddFault) -> None:
    key = f"http_server_config.headers.{name}"
    if name not in HEADERS:
        fault(key, f"expected one of {', '.join(HEADERS)}: no other header can be set")
    elif HEADERS[name] and value not in HEADERS[name]:
        fault(key, f"expected {' or '.join(HEADERS[name])}, found {value[:60]!r}")
    elif not value.isprintable() or not value.isascii() or len(value) > HEADER_MAX:
        fault(key, f"expected one line of at most {HEADER_MAX} ASCII characters")


def _seconds(text: str) -> float:
    """Return the seconds of a duration in Go's format, such as `1m30s`. Raises ValueError."""
    if _INTERVAL.fullmatch(text) is None:
        raise ValueError(text)
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
