"""The declarations of a process: its command line and its initial environment.

A program can overwrite both with anything. Reading them takes the process's memory lock: see timed_reads.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.host_files import printable
from gpuwarden_collectors.receivers.facts import NOTHING, SIGNALS

ENVIRON_MOST = 1 << 20
"""Bytes read of an environment. The kernel's default limit is 2 MiB, 128 KiB per variable. The rest is ignored."""
NODES_MOST = 4096
"""Longest list of nodes in bytes: enough for 800 nodes of which no two are consecutive."""
COMMAND_MOST = 4096
"""Bytes, of which the first few arguments are used."""

_ARGUMENTS_MOST = 32
_REFUSALS = ("NONE", "NO", "OFF", "0")
_RANKS = (b"RANK", b"OMPI_COMM_WORLD_RANK", b"PMIX_RANK", b"PMI_RANK")
_LOCAL_RANKS = (b"LOCAL_RANK", b"OMPI_COMM_WORLD_LOCAL_RANK", b"MPI_LOCALRANKID")
_NODES = (b"SLURM_JOB_NUM_NODES", b"DSTACK_NODES_NUM")
_WORLDS = (b"WORLD_SIZE", b"OMPI_COMM_WORLD_SIZE", b"PMI_SIZE")
_NUMBER = re.compile(r"\d{1,9}")
_HOSTLIST = re.compile(r"(?!.*[0-9]{20})(?:[A-Za-z0-9_.,-]|\[[0-9,-]+\])+")
_FOLDER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")  # as gpuwarden_job names its folder of acknowledgements

Identity = tuple[str, str, str]
"""Source of a rank's number, the number, and its local number on this host. Its helpers inherit all three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declarations:
    """The declarations of one process."""

    command: tuple[str, ...] = ()
    """The first arguments of its command line."""
    declared: str = ""
    """As in Receiver."""
    identity: Identity | None = None
    """Its number as a rank; None if it has none."""
    job: int | None = None
    """Slurm's number of the job; None outside of Slurm."""
    step: str = ""
    """Slurm's step; empty outside of Slurm."""
    step_nodes: str = ""
    """The nodes of that step as Slurm writes them; empty if not declared or longer than NODES_MOST."""
    task: str = ""
    """dstack's name of the job; empty outside of dstack."""
    folder: str = ""
    """Name of its folder of acknowledgements; empty if it has none."""
    title: str = ""
    """Name of the job for people."""
    nodes: int = 0
    """Number of nodes that the job has; 0 if not declared."""
    world: int = 0
    """Number of ranks that the job has; 0 if not declared."""


UNREAD = Declarations()


def declared_signal(text: str) -> str:
    """Returns one of SIGNALS, NOTHING, or "" for an empty text.

    A signal that the daemon may not send counts as NOTHING, because the user requested no other.
    """
    name = text.strip().upper().removeprefix("SIG")
    if not name:
        return ""
    return name if name in SIGNALS and name not in _REFUSALS else NOTHING


def folder_name(text: str) -> str:
    """Returns the name of a folder, or "" for a text that cannot be one."""
    return text if _FOLDER.fullmatch(text) else ""


def command_in(data: bytes) -> tuple[str, ...]:
    return tuple(
        argument.decode("utf-8", "replace")
        for argument in data.split(b"\0", _ARGUMENTS_MOST)[:_ARGUMENTS_MOST]
        if argument
    )


def declarations_in(environ: bytes, cmdline: bytes) -> Declarations:
    """Parses the content of `environ` and `cmdline`, cut to ENVIRON_MOST and COMMAND_MOST. Raises nothing."""
    if len(environ) >= ENVIRON_MOST:
        environ = environ[: environ.rfind(b"\0") + 1]  # drops the truncated last variable
    variables = _Variables(b"\0" + environ)
    step = variables.number(b"SLURM_STEP_ID")
    job = variables.number(b"SLURM_JOB_ID") or variables.number(b"SLURM_JOBID")
    title = variables.text(b"GPUWARDEN_JOB") or variables.text(b"SLURM_JOB_NAME")
    folders = (variables.text(name) for name in (b"GPUWARDEN_JOB", b"SLURM_JOB_ID", b"DSTACK_JOB_ID"))
    return Declarations(
        command=command_in(cmdline),
        declared=declared_signal(variables.text(b"GPUWARDEN_SIGNAL")),
        identity=_identity(variables),
        job=int(job) if job else None,
        step=step or ("batch" if job else ""),
        step_nodes=variables.nodes(b"SLURM_STEP_NODELIST") if step else "",
        task=folder_name(variables.text(b"DSTACK_JOB_ID")),
        folder=next((name for name in folders if folder_name(name)), ""),
        title=printable(title, 200),
        nodes=variables.largest(_NODES),
        world=variables.largest(_WORLDS),
    )


class _Variables:
    """An environment, searched for a few of its many variables and not parsed. The first occurrence counts."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def raw(self, name: bytes) -> bytes:
        at = self._data.find(b"\0" + name + b"=")
        if at < 0:
            return b""
        begin = at + len(name) + 2
        end = self._data.find(b"\0", begin)
        return self._data[begin : end if end >= 0 else None]

    def text(self, name: bytes) -> str:
        return self.raw(name)[:1024].decode("utf-8", "replace")

    def nodes(self, name: bytes) -> str:
        """Returns a list of nodes, or "" if it is invalid or longer than NODES_MOST, since all of it is needed."""
        value = self.raw(name)
        text = value.decode("utf-8", "replace") if len(value) <= NODES_MOST else ""
        return text if _HOSTLIST.fullmatch(text) else ""

    def number(self, name: bytes) -> str:
        """Returns a number as text, or "" for anything else, such as Slurm's ten-digit ids of special steps."""
        text = self.text(name)
        return text if text.isascii() and _NUMBER.fullmatch(text) else ""

    def largest(self, names: Iterable[bytes]) -> int:
        return max(int(self.number(name) or 0) for name in names)


def _identity(variables: _Variables) -> Identity | None:
    local = next(filter(None, map(variables.number, _LOCAL_RANKS)), "")
    for name in _RANKS:
        if rank := variables.number(name):
            return name.decode(), rank, local
    if local:
        return "LOCAL_RANK", "", local
    step, rank = variables.number(b"SLURM_STEP_ID"), variables.number(b"SLURM_PROCID")
    return (f"SLURM_PROCID of {step}", rank, variables.number(b"SLURM_LOCALID")) if step and rank else None
