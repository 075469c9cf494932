"""Reads the controller's configuration: `scontrol show config`, and the partitions. Two small requests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.slurm.errors import SlurmError
from gpuwarden_collectors.slurm.hostlist import in_hostlist

if TYPE_CHECKING:
    from gpuwarden_collectors.slurm.client import Commands

_KEY = re.compile(r"^(\w+)(?:\[\d+\])?\s+=\s?(.*)$")
_RELEASE = re.compile(r"(\d{1,4})\.(\d{1,4})", re.ASCII)
_PRIMARY_DOWN = re.compile(r"^Slurmctld\(primary\) at \S+ is DOWN", re.MULTILINE)
_STATISTICS_SINCE = re.compile(r"^Data since .*\((\d{1,12})\)$", re.MULTILINE | re.ASCII)
_UNSET = ("", "(null)", "none", "n/a")
_TIME = re.compile(r"(?:(\d{1,6})-)?(\d{1,6}):(\d{2}):(\d{2})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSettings:
    """One partition's settings, as Slurm writes them; in lower case where Slurm ignores case."""

    name: str
    nodes: str
    """Its nodes, as a host list."""
    tier: int
    """PriorityTier: jobs of a higher one preempt those of a lower one."""
    preempt_mode: str
    """How its jobs are preempted: off, cancel, requeue or suspend, optionally with gang or within."""
    grace_time: int
    """Seconds from the first signal to the end of a preempted job."""
    max_time: float | None
    """Time limit of a job in seconds; None: unlimited or unknown."""
    up: bool
    """True if it starts jobs."""
    total_nodes: int = 0
    """How many nodes it has."""
    suspend_time: str = ""
    """Its own SuspendTime; empty if the global one applies."""
    topology: str = ""
    """Name of its own topology; empty without one, and before 25.05."""

    def has(self, node: str) -> bool:
        return in_hostlist(node, self.nodes)


async def read_config(commands: Commands) -> dict[str, str]:
    """Return the configuration of Slurm by key. Raises SlurmError if it cannot be read."""
    return parse_config(await _config(commands))


async def read_version(commands: Commands) -> str:
    """Returns the controller's version; this host's if the controller does not say; "" if unknown.

    A backup controller that hangs delays the configuration by MessageTimeout (see `read_start`), which may be longer
    than the time limit of a call. The controller is never older than this host's commands.
    """
    try:
        return (await read_config(commands)).get("SLURM_VERSION", "")
    except SlurmError:
        pass
    try:
        return (await commands.ask("cannot read Slurm's version", "scontrol", "--version")).split()[-1]
    except (SlurmError, IndexError):
        return ""


async def read_start(commands: Commands, now: float) -> float:
    """Returns when the controller that answers read its state, Unix time; 0 if it does not say. Raises SlurmError.

    A backup that took over says when it began to wait. Its statistics begin with its turn, and anew each midnight; in its first seconds
    they have no time, which counts as `now` (seen with 22.05.8 and 25.11.7). It is in control while the primary is down.

    The command that shows the configuration also pings each controller, and waits for MessageTimeout if one hangs (seen
    with 22.05.8 and 24.11.5). If it fails, the beginning of the statistics counts: the start, or a later midnight.
    """
    try:
        text = await _config(commands)
    except SlurmError:
        return await _statistics_since(commands, now)
    boot = value_of(parse_config(text), "BOOT_TIME")
    started = float(boot) if boot.isdecimal() else 0.0
    if _PRIMARY_DOWN.search(text) is None:
        return started
    try:
        return max(started, await _statistics_since(commands, now))
    except SlurmError:
        return started


async def _statistics_since(commands: Commands, now: float) -> float:
    """Returns since when the controller in control collects statistics, Unix time; 0 if it does not say."""
    match = _STATISTICS_SINCE.search(await commands.ask("cannot read since when a controller is in control", "sdiag"))
    return 0.0 if match is None else float(match[1]) or now


async def _config(commands: Commands) -> str:
    return await commands.ask("cannot read the configuration of Slurm", "scontrol", "--local", "show", "config")


async def read_partition_settings(commands: Commands) -> tuple[PartitionSettings, ...]:
    """Returns the settings of all partitions, including hidden ones. Raises SlurmError."""
    text = await commands.ask(
        "cannot read the partitions", "scontrol", "--local", "--all", "show", "partition", "--oneliner"
    )
    return parse_partitions(text)


def parse_config(text: str) -> dict[str, str]:
    """Parses the configuration. Repeated keys (`Prolog[0]`) are joined by commas, as older releases write them."""
    keys: dict[str, str] = {}
    for line in text.splitlines():
        match = _KEY.match(line.strip())
        if match is not None:
            before = keys.get(match[1])
            keys[match[1]] = match[2].strip() if before is None else f"{before},{match[2].strip()}"
    return keys


def value_of(keys: Mapping[str, str], key: str) -> str:
    """Returns the value of a key, or "" if it is not set."""
    value = keys.get(key, "").strip()
    return "" if value.lower() in _UNSET else value


def release_of(version: str) -> tuple[int, int] | None:
    """Return the release of a version such as 24.11.5; None for another text."""
    match = _RELEASE.match(version)
    return None if match is None else (int(match[1]), int(match[2]))


def parse_partitions(text: str) -> tuple[PartitionSettings, ...]:
    """Parses `scontrol --oneliner show partition`, sorted by name."""
    lines = (dict(word.split("=", 1) for word in line.split() if "=" in word) for line in text.splitlines())
    return tuple(
        sorted((_partition(line) for line in lines if "PartitionName" in line), key=lambda partition: partition.name)
    )


def _partition(keys: Mapping[str, str]) -> PartitionSettings:
    return PartitionSettings(
        name=keys["PartitionName"],
        nodes=value_of(keys, "Nodes"),
        tier=_number(keys.get("PriorityTier", "")),
        preempt_mode=keys.get("PreemptMode", "").lower(),
        grace_time=_number(keys.get("GraceTime", "")),
        max_time=seconds(keys.get("MaxTime", "")),
        up=keys.get("State", "").upper() == "UP",
        total_nodes=_number(keys.get("TotalNodes", "")),
        suspend_time=value_of(keys, "SuspendTime"),
        topology=value_of(keys, "Topology"),
    )


def seconds(text: str) -> float | None:
    """Seconds in `[days-]hours:minutes:seconds`; None for another text, such as UNLIMITED."""
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, rest = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + rest)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
