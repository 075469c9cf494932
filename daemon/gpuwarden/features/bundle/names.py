"""Other names in an archive made with --anonymise, as in traces (`trace/pseudonyms.py`), and what differs from those.

Replaced are: names of this host, IP addresses, UUIDs (those of GPUs and boots too), pids, names of users, jobs, pods, containers and
processes. Serial numbers of boards, chassis and system stay: without them no vendor replaces anything. The key of the hash is made for one
archive and kept nowhere.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from typing import Any

from gpuwarden.trace.pseudonyms import Pseudonyms

_PEOPLE = frozenset(
    {
        "user",
        "job_name",
        "by",
        "namespace",
        "pod",
        "container",
        "failed_node",
        "group",
        "limit_group",
        "also",
        "job",
        "limit_job",
    }
)
"""Keys of events and status whose values are names that may also be within texts."""
_COMMON = frozenset(
    {
        "root",
        "operator",
        "gpuwarden",
        "slurm",
        "node",
        "job",
        "none",
        "reset",
        "reboot",
        "failure",
        "default",
        "kubernetes",
        "pod",
        "container",
        "session",
    }
)
_OF_JOB = "@job/"
"""In the id of an event that is about a job."""
_SHORTEST, _NAMES_MOST = 3, 4096
_V4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]*\w)")
_V6 = re.compile(r"(?<![\w:.])[0-9a-fA-F:]*:[0-9a-fA-F:]*:[0-9a-fA-F:.]*(?![\w:])")
_NAME = re.compile(r"\bname=([^,\s][^,]*)")
"""The name of a process in a line of the driver: `Xid (PCI:…): 31, pid=1234, name=python, …`."""
_PROCESS = re.compile(r"^(\s+(?:Process )?Name\s*:\s+)(\S.*)$", re.MULTILINE)
_PROCESS_ID = re.compile(r"^(\s+Process ID\s*:\s+)(\d+)$", re.MULTILINE)
"""Of the processes in `nvidia-smi -q`."""
_HOME = re.compile(r"/(?:home|Users|root|scratch|users)/[^\s,;\"']+")


class Names(Pseudonyms):
    """Called with JSON it returns the JSON to be written instead. `people`: other names that are replaced wherever they are."""

    def __init__(self, hosts: Iterable[str], people: Iterable[str] = (), key: bytes | None = None) -> None:
        super().__init__(hosts, key)
        named = sorted({one for one in people if _is_telling(one)}, key=len, reverse=True)[:_NAMES_MOST]
        self._people = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, named))})(?!\w)") if named else None

    def text(self, text: str) -> str:
        """Return a text of several lines, as of a program."""
        text = _PROCESS_ID.sub(lambda found: f"{found[1]}{self._pid(int(found[2]))}", text)
        return self._text(_PROCESS.sub(lambda found: f"{found[1]}{self._pseudonym(found[2])}", text))

    def _text(self, text: str) -> str:
        text = super()._text(text)
        text = _NAME.sub(lambda found: f"name={self._comm(found[1])}", text)
        text = _HOME.sub(lambda found: f"/{self._pseudonym(found[0])}", text)
        for form in (_V4, _V6):
            text = form.sub(lambda found: self._address(found[0]), text)
        return text if self._people is None else self._people.sub(lambda found: self._pseudonym(found[0]), text)

    def _address(self, text: str) -> str:
        try:
            found = ipaddress.ip_address(text.rstrip(".:") if not text.endswith("::") else text)
        except ValueError:
            return text
        return text if found.is_loopback or found.is_unspecified else self._pseudonym(str(found))

    def _serial(self, name: str) -> str:
        return name

    def _value(self, name: str, value: Any) -> Any:
        if name == "also" and isinstance(value, str):
            return self._job(value)
        return value if name in ("serial", "chassis_serial") and isinstance(value, str) else super()._value(name, value)


def people(content: Any) -> Iterator[str]:
    """Yield the names of people and jobs in JSON."""
    match content:
        case dict():
            for name, value in content.items():
                if isinstance(value, str) and (name in _PEOPLE or (name == "id" and _OF_JOB in value)):
                    yield from (value, *re.split(r"[\s/@]+", value))
                else:
                    yield from people(value)
        case list():
            for item in content:
                yield from people(item)


def _is_telling(name: str) -> bool:
    return len(name) >= _SHORTEST and name.lower() not in _COMMON and not name.isdecimal()
