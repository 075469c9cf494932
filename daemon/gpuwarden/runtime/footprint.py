"""What stays out of the daemon's process, though libraries that it uses would load it (gains: docs/develop/decisions.md).

None in `sys.modules` makes an import fail (Python's language reference, 5.3.1). The libraries named here are made to do
without what they then miss.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from threading import Lock
from types import ModuleType
from typing import Any

from gpuwarden.config.model import Config

_FROZENLIST = "frozenlist._frozenlist"
"""Compiled, it brings in the C++ runtime. aiohttp uses these lists at its start."""
_COMPRESSION = ("bz2", "lzma")
"""shutil takes them for archives, if they are there."""
_PROXIES = ("getproxies", "proxy_bypass")
"""What aiohttp's client wants of `urllib.request`, which brings in a client of its own, 0.5 MiB."""
_HASHES = (("_md5",), ("_sha1",), ("_sha256", "_sha2"), ("_sha3",), ("_blake2",))
"""Python's own modules for the hashes that hashlib guarantees. Some distributions leave them out for OpenSSL's."""
_REMOVAL = Lock()


def leave_out(config: Config) -> None:
    """To be called before `asyncio` and `aiohttp` are imported; what was imported already stays."""
    for module in (_FROZENLIST, *_COMPRESSION):
        _forbid(module)
    _leave_out_entities()
    _put_off_names("email.policy", HTTP=_Later("email.policy", "HTTP"))
    _put_off_names("idna", encode=_Later("idna", "encode"), decode=_Later("idna", "decode"))
    _put_off_names("pickle", PicklingError=type("PicklingError", (Exception,), {}))
    _put_off_names("urllib.request", **{name: _Later("urllib.request", name) for name in _PROXIES})
    _put_off("aiohttp")  # its client, 1.3 MiB; the server's modules need nothing of it
    if not speaks_tls(config):
        _put_off_names("asyncio.sslproto")
        _forbid("ssl")  # asyncio and aiohttp take it if it is there, and aiohttp then reads all certificates, twice
        if all(any(map(find_spec, names)) for names in _HASHES):
            _forbid("_hashlib")


def speaks_tls(config: Config) -> bool:
    """Whether anything does, or may once a file that is named here is read. A reload adds nothing that does."""
    return (
        config.publish.web_config is not None
        or config.kubernetes.enabled
        or any(webhook.url_file is not None for webhook in config.notify.webhook.values())
        or any(text.startswith("https:") for text in _texts(_without_shown(config)))
    )


def _without_shown(config: Config) -> Config:
    """Return the configuration without the address that is only shown to people."""
    return replace(config, publish=replace(config.publish, runbooks=""))


def let_in(config: Config) -> None:
    """For a reload, whose configuration may name a file of TLS for the first time: it is checked, and in force after a restart."""
    if speaks_tls(config):
        for module in ("ssl", "_hashlib"):
            if module in sys.modules and sys.modules[module] is None:
                del sys.modules[module]


def _forbid(module: str) -> None:
    sys.modules.setdefault(module, None)  # type: ignore[arg-type] # as the import system defines it


def _put_off(package: str) -> None:
    """Its modules may be imported one by one; its `__init__` runs when a name is wanted that is none of them.

    Nothing is put off where its version, which its modules want, is not in its source.
    """
    spec = None if package in sys.modules else find_spec(package)
    if spec is None or not hasattr(spec.loader, "get_source"):
        return
    loader: Any = spec.loader
    version = re.search(r'^__version__ = "([^"]+)"', loader.get_source(package) or "", re.MULTILINE)
    if version is None:
        return
    module: Any = module_from_spec(spec)

    def wanted(name: str) -> Any:
        if "__getattr__" not in vars(module) or find_spec(f"{package}.{name}") is not None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        del module.__getattr__
        loader.exec_module(module)
        return getattr(module, name)

    module.__version__, module.__getattr__ = version[1], wanted
    sys.modules[package] = module


def _leave_out_entities() -> None:
    """Of `html` aiohttp escapes; the names of characters, 0.45 MiB, are for the way back."""
    if "html" not in sys.modules:
        entities = ModuleType("html.entities")
        vars(entities)["html5"] = {}
        sys.modules["html.entities"] = entities
        html = import_module("html")
        del html.unescape, sys.modules["html.entities"]


class _Later:
    """A name of a module, which is imported when this is called or an attribute of it is wanted."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return getattr(_real(self._module), self._name)(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(_real(self._module), self._name), name)


def _put_off_names(module: str, **names: Any) -> None:
    """The module is imported once a name of it is wanted that is none of these; who imports these gets what is given here."""
    if module in sys.modules:
        return
    made: Any = ModuleType(module)

    def wanted(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_real(module), name)

    vars(made).update(names, __getattr__=wanted, _put_off=True)
    sys.modules[module] = made
    package, _, own = module.rpartition(".")
    if package in sys.modules:
        setattr(sys.modules[package], own, made)


def _real(module: str) -> ModuleType:
    with _REMOVAL:  # two threads may want it at once; the import has locks of its own
        if getattr(sys.modules.get(module), "_put_off", False):
            del sys.modules[module]
    return import_module(module)


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
