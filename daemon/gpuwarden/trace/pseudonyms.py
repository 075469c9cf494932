"""Pseudonyms for all names in a trace that identify a machine, board, process or person.

A name has the same pseudonym throughout one trace. The key of the hash is random and not stored: without one, pids and
serial numbers could be recovered by trying all of them.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from gpuwarden.health.xid.bursts import as_text, from_text
from gpuwarden_collectors.event_facts import Source
from gpuwarden_collectors.host_facts import PluginFacts

_PIDS = 4_194_304  # Linux gives pids below this
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_OUR_SOURCES = frozenset(source.value for source in Source)
_JOB = re.compile(r"\bjob/((?:slurm|container|pod|session)/[\w./-]{1,400}|(?:container-)?[0-9a-f]{1,12}\b)", re.ASCII)
_PID = re.compile(r"\bpid[=:]?'?\s*(\d{1,10})", re.IGNORECASE)
_V4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]*\w)")
_V6 = re.compile(r"(?<![\w:.])[0-9a-fA-F:]*:[0-9a-fA-F:]*:[0-9a-fA-F:.]*(?![\w:])")
_SITE_CHECK = "plugin_"
_WORDS = "text"
"""The key of a site check's text, which may be any text of the host."""


class Pseudonyms:
    """A function from the JSON of a line to the JSON with pseudonyms. `hosts`: names of this machine."""

    def __init__(self, hosts: Iterable[str], key: bytes | None = None) -> None:
        self._key = key or secrets.token_bytes(32)
        named = sorted((re.escape(host) for host in hosts if host), key=len, reverse=True)
        self._hosts = re.compile(rf"\b(?:{'|'.join(named)})\b(-[\w-]+)?(?:\.[A-Za-z][\w-]*)*") if named else None
        self._by_name: Mapping[str, Callable[[Any], Any]] = {
            "uuid": self._text,
            "serial": self._serial,
            "chassis_serial": self._serial,
            "guid": self._pseudonym,
            "pid": self._pid,
            "began": self._uuid,
            "boot_id": self._uuid,
            "by": lambda _: "operator",
            "uid": self._pid,
            "cancelled_by": self._pid,
            "job": self._job,
            "limit_job": self._job,
            "sluid": self._pseudonym,
            "group": self._pseudonym,
            "limit_group": self._pseudonym,
            "user": self._pseudonym,
            "job_name": self._pseudonym,
            "failed_node": self._pseudonym,
            "namespace": self._pseudonym,
            "pod": self._pods,
            "container": self._pseudonym,
            "comm": self._comm,
            "source": self._source,
            "bursts": self._bursts,
            "workers": self._pids,
        }

    def __call__(self, content: Any) -> Any:
        match content:
            case dict():
                told = _wordless(content) if _is_of_site_check(content) else content
                return {name: self._value(name, value) for name, value in told.items()}
            case list():
                return [self(item) for item in content]
            case str():
                return self._text(content)
        return content

    def _identified(self, content: Any) -> Any:
        """Replace names in facts of jobs, containers and workloads, whose `id` and `name` appear in other lines too."""
        match content:
            case dict():
                pairs = ((name, value, isinstance(value, dict | list)) for name, value in content.items())
                return {
                    name: self._names(value)
                    if name == "also"
                    else self._identified(value)
                    if deep
                    else self._value("job" if name in ("id", "name") else name, value)
                    for name, value, deep in pairs
                }
            case list():
                return [self._identified(item) for item in content]
        return self(content)

    def _names(self, names: Any) -> Any:
        return (
            [self._job(name) if isinstance(name, str) else self(name) for name in names]
            if isinstance(names, list)
            else self(names)
        )

    def _value(self, name: str, value: Any) -> Any:
        if name in ("jobs", "containers", "workloads"):
            return self._identified(value)
        replacer = self._by_name.get(name)
        if replacer is None or isinstance(value, dict | list):
            return self(value)
        return replacer(value) if value else value  # "", 0 and null identify nothing

    def _text(self, text: str) -> str:
        text = _JOB.sub(lambda match: f"job/{self._job(match[1])}", text)  # the name of a pod may be a UUID
        text = _UUID.sub(lambda match: self._uuid(match[0]), text)
        text = _PID.sub(lambda match: f"pid={self._pid(int(match[1]))}", text)
        for form in (_V4, _V6):
            text = form.sub(lambda match: self._address(match[0]), text)
        return text if self._hosts is None else self._hosts.sub(lambda match: f"host{match[1] or ''}", text)

    def _uuid(self, name: str) -> str:
        digest = self._digest(name.lower()).hex()
        return "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32]))

    def _address(self, text: str) -> str:
        """Replace an IP address, except loopback and unspecified ones, and text that only looks like one (PCI)."""
        try:
            address = ipaddress.ip_address(text.rstrip(".:") if not text.endswith("::") else text)
        except ValueError:
            return text
        return text if address.is_loopback or address.is_unspecified else self._pseudonym(str(address))

    def _serial(self, name: str) -> str:
        return f"{int.from_bytes(self._digest(name)) % 10**13:013d}"

    def _pid(self, pid: int) -> int:
        return 1 + int.from_bytes(self._digest(str(pid))) % (_PIDS - 1)

    def _job(self, name: int | str) -> int | str:
        """Replace the number of a job or the id of a container, also after its kind, as in `slurm/7`."""
        if isinstance(name, int):
            return self._pid(name)
        return " ".join(map(self._job_name, name.split()[:64]))

    def _job_name(self, name: str) -> str:
        if "/" in name:
            kind, *parts = name.split("/")
            return "/".join((kind, *map(self._job_name, parts)))
        head, container, number = name.rpartition("container-")
        is_pid = number.isascii() and number.isdecimal() and not container
        return head + container + (str(self._pid(int(number))) if is_pid else self._pseudonym(number))

    def _pids(self, text: str) -> str:
        """Replace the PIDs of the workers of an active test."""
        return " ".join(str(self._pid(int(word))) for word in text.split() if word.isdecimal())

    def _pods(self, text: str) -> str:
        """Replace the name of a pod; in the evidence of a finding also several names, each after its namespace."""
        return " ".join("/".join(map(self._pseudonym, word.split("/"))) for word in text.split()[:64])

    def _bursts(self, text: str) -> str:
        bursts = (replace(burst, pids=tuple(map(self._pid, burst.pids))) for burst in from_text(text))
        return as_text(tuple(bursts))

    def _pseudonym(self, name: str) -> str:
        return f"x{self._digest(name).hex()[:8]}"

    def _comm(self, name: str) -> str:
        """Replace a process name, except names of the driver's own processes, which detectors use."""
        return name if name.startswith("nvidia") else self._pseudonym(name)

    def _source(self, name: str) -> str:
        """Replace the source of a mount, which may name a server, but not the source of an Xid."""
        return name if name in _OUR_SOURCES else self._pseudonym(name)

    def _digest(self, name: str) -> bytes:
        return hashlib.blake2b(name.encode("utf-8", "replace"), key=self._key, digest_size=16).digest()


def _is_of_site_check(content: Mapping[str, Any]) -> bool:
    """Return True for a pass of the site checks, and for a finding or event of one of them."""
    names = (content.get(key) for key in ("id", "key"))
    return content.get("pass") == PluginFacts.collector or any(
        str(name or "").startswith(_SITE_CHECK) for name in names
    )


def _wordless(content: Any) -> Any:
    match content:
        case dict():
            return {
                name: "" if name == _WORDS and isinstance(value, str) else _wordless(value)
                for name, value in content.items()
            }
        case list():
            return [_wordless(item) for item in content]
    return content
