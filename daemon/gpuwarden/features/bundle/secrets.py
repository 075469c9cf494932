"""The configuration without secrets.

Keys for a secret hold the path of a file, never the secret (`config/secrets.py`). What is left are texts in which
people may still put one. They are replaced by their kind, wherever they occur:

    an address (`://`)        scheme, host and port stay: paths and queries of webhooks are often their password
    `command`                 the program stays, its arguments do not
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from gpuwarden.config.model import PARSERS, Config
from gpuwarden.config.render import as_toml
from gpuwarden_collectors.options import keys

LEFT_OUT = "left-out"


def shown(config: Config) -> str:
    """Return the configuration as TOML, without what may be a secret."""
    return as_toml(_clean("", config), config.origins or {})


def _clean(name: str, value: Any) -> Any:
    if isinstance(value, tuple(PARSERS)):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{key.name: _clean(key.name, getattr(value, key.name)) for key in keys(value)})
    if isinstance(value, Mapping):
        return {key: _clean(key, each) for key, each in value.items()}
    if isinstance(value, tuple):
        return _command(value) if name == "command" else tuple(_clean(name, each) for each in value)
    return address(value) if isinstance(value, str) and "://" in value else value


def _command(words: tuple[Any, ...]) -> tuple[Any, ...]:
    left_out = len(words) - 1
    return words if left_out < 1 else (words[0], f"({left_out} arguments {LEFT_OUT})")


def address(url: str) -> str:
    """Return an address without user, password, path and query."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return LEFT_OUT
    if not host:  # a socket, such as unix:///run/dcgm.sock
        return url if parts.scheme == "unix" else LEFT_OUT
    where = f"[{host}]" if ":" in host else host
    more = f"/{LEFT_OUT}" if parts.path.strip("/") or parts.query or parts.fragment else ""
    return f"{parts.scheme}://{where}{f':{port}' if port else ''}{more}"
