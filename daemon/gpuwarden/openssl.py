"""OpenSSL stays out of a daemon that speaks no TLS: 7 MiB.

`asyncio` and `aiohttp` import `ssl` if they can, and `aiohttp` then reads all certificates of the system, twice. Both work
without it, which is what they find: None in `sys.modules` makes an import fail (Python's language reference, 5.3.1).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib.util import find_spec
from typing import Any

from gpuwarden.config import Config

_HASHES = (("_md5",), ("_sha1",), ("_sha256", "_sha2"), ("_sha3",), ("_blake2",))
"""Modules of Python's own for the hashes that hashlib guarantees. Some distributions leave them out for OpenSSL's."""


def is_needed(config: Config) -> bool:
    """Whether anything of this configuration speaks TLS, or may once a file that it names is read. A reload brings none."""
    addresses_in_files = any(webhook.url_file is not None for webhook in config.notify.webhook.values())
    return (
        config.publish.web_config is not None
        or config.kubernetes.enabled
        or addresses_in_files
        or any(text.startswith("https:") for text in _texts(config))
    )


def leave_out() -> None:
    """To be called before `asyncio` and `aiohttp` are imported; what was imported already stays."""
    sys.modules.setdefault("ssl", None)  # type: ignore[arg-type] # as the import system defines it
    if all(any(map(find_spec, names)) for names in _HASHES):
        sys.modules.setdefault("_hashlib", None)  # type: ignore[arg-type]


def _texts(value: Any) -> Iterator[str]:
    """Every text in a tree of dataclasses, mappings and tuples."""
    if isinstance(value, str):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from _texts(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, tuple):
        for each in value:
            yield from _texts(each)
