"""Replaces names in an archive made with --anonymise, as in traces (`trace/pseudonyms.py`) with some exceptions.

It replaces names of this host, IP addresses, UUIDs (including those of GPUs and boots), pids, and names of users, jobs,
pods, containers and processes. Serial numbers of boards, chassis and system stay: no vendor replaces a part without
them. The key of the hash is made for one archive, and is not stored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from gpuwarden.trace.pseudonyms import Pseudonyms

_PEOPLE = frozenset("user job_name by namespace pod container failed_node group limit_group also job limit_job".split())
"""Keys of events and status whose values are names that may also occur within texts."""
_COMMON = frozenset(
    """
    root operator gpuwarden slurm node job none reset reboot failure default kubernetes pod container session""".split()
)
_OF_JOB = "@job/"
"""Part of the id of an event that is about a job."""
_SHORTEST, _NAMES_MOST = 3, 4096
_PROCESS_IN_LINE = (
    re.compile(r"\b(?P<before>(?:name|comm)=\"?)(?P<name>[^,\s\"][^,\"\n]*)"),
    re.compile(r"\b(?P<before>Comm: )(?P<name>\S+)"),
    re.compile(
        r"\b(?P<before>task )(?P<name>[^\n]{1,15}):(?P<pid>\d{1,10})(?= (?:blocked for more than|is blocked on))"
    ),
    re.compile(r"(?P<before>stuck for \d{1,6}s! \[)(?P<name>[^\n]{1,15}):(?P<pid>\d{1,10})(?=\])"),
    re.compile(
        r"(?P<before>^(?:\[[^\]\n]*\] ?)?(?:traps: )?)(?P<name>[^\n]{1,15}?)\[(?P<pid>\d{1,10})(?=\]:? (?:segfault|trap|general protection))",
        re.MULTILINE,
    ),
)
"""Where the kernel and the driver name a process: `Xid (PCI:…): 31, pid=1234, name=python, …`, `INFO: task python:1234 blocked for more than
120 seconds`, `soft lockup - CPU#1 stuck for 22s! [python:1234]`, `CPU: 1 PID: 1234 Comm: python`, `python[1234]: segfault at …`."""
_PROCESS = re.compile(r"^([ \t]+(?:Process )?Name[ \t]*:[ \t]+)(\S.*)$", re.MULTILINE)
_PROCESS_ID = re.compile(r"^([ \t]+Process ID[ \t]*:[ \t]+)(\d+)$", re.MULTILINE)
"""Lines about processes in `nvidia-smi -q`."""
_BOX = re.compile(
    r"\b(frozen-\d{8}T\d{6}Z-[^-/\s]{1,60}-)(?![0-9a-f]{4}-[0-9a-f]{2}-[0-9a-f]{2}\.[0-7]|node\.trace)([^/\s]{1,130}?)(?=\.trace\.gz)"
)
"""The name of a black box ends with its subject, which may be a job."""
_HOME = re.compile(r"/(?:home|Users|root|scratch|users)/[^\s,;\"']+")


class Names(Pseudonyms):
    """Replaces names: called with JSON, it returns the JSON to write. `people`: further names to replace everywhere."""

    def __init__(self, hosts: Iterable[str], people: Iterable[str] = (), key: bytes | None = None) -> None:
        super().__init__(hosts, key)
        named = sorted({person for person in people if _is_telling(person)}, key=len, reverse=True)[:_NAMES_MOST]
        self._people = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, named))})(?!\w)") if named else None

    def text(self, text: str) -> str:
        """Replace names in a text of several lines, such as a program's."""
        text = _PROCESS_ID.sub(lambda match: f"{match[1]}{self._pid(int(match[2]))}", text)
        return self._text(_PROCESS.sub(lambda match: f"{match[1]}{self._pseudonym(match[2])}", text))

    def _text(self, text: str) -> str:
        text = _BOX.sub(lambda match: f"{match[1]}{self._pseudonym(match[2])}", text)
        text = super()._text(text)
        for form in _PROCESS_IN_LINE:
            text = form.sub(self._process, text)
        text = _HOME.sub(lambda match: f"/{self._pseudonym(match[0])}", text)
        return text if self._people is None else self._people.sub(lambda match: self._pseudonym(match[0]), text)

    def _process(self, match: re.Match[str]) -> str:
        pid = match.groupdict().get("pid")
        name = f"{match['before']}{self._comm(match['name'])}"
        return name if pid is None else f"{name}{match.string[match.end('name')]}{self._pid(int(pid))}"

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
