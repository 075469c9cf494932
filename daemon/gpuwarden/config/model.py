"""The keys of the configuration, their types, and the constraints between them.

Read once, before anything starts; all faults are reported together as `file: key: what was expected, what was found`.
`sources.py` reads the values, `structure.py` converts them to these classes.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Literal, TypeVar

from gpuwarden.base.addresses import ADDRESS, Address
from gpuwarden.base.durations import format_duration
from gpuwarden.base.paths import RUN_DIR, STATE_DIR
from gpuwarden.config.bounds import misfits
from gpuwarden.config.catalogue import catalogue_misfits
from gpuwarden.config.collectors import Collectors, plugin_misfits
from gpuwarden.config.exec import ExecOptions, exec_misfits
from gpuwarden.config.jobs import JobOptions, job_misfits
from gpuwarden.config.notify import NotifyOptions, notify_misfits
from gpuwarden.config.placement import placement
from gpuwarden.config.policy import UNCOUNTED, BreakerOptions, breaker_misfits
from gpuwarden.config.secrets import EXPECTED as A_SECRET
from gpuwarden.config.secrets import SecretFile
from gpuwarden.config.series import series_misfits
from gpuwarden.config.sources import Fault, KeyPath, Sources, dotted, merge, with_line
from gpuwarden.config.structure import UNKNOWN_KEY, structure
from gpuwarden.config.termination import TerminationOptions, termination_misfits
from gpuwarden.features import Excludes, parts
from gpuwarden.health.host.limits import DiskLimits, Limits, MemoryLimits, SwapLimits
from gpuwarden.health.runbooks import RUNBOOKS
from gpuwarden.health.view import CheckRule, ExpectedSettings, XidRule
from gpuwarden.policy.model import Settings
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.options import Misfit, bounded, internal, text_list, with_tables
from gpuwarden_collectors.plugin.options import SiteCheck
from gpuwarden_collectors.slurm.options import SlurmOptions

Mode = Literal["observe", "enforce"]
Table = TypeVar("Table")


@dataclass(frozen=True, slots=True)
class Paths:
    """Where the host's files are, for containers and tests."""

    sysfs: Path = Path("/sys")
    """Where sysfs is mounted."""
    proc: Path = Path("/proc")
    """Where proc is mounted."""
    kmsg: Path = Path("/dev/kmsg")
    """The kernel log. If `/dev/kmsg` cannot be opened, as in a pod, the log is read with syslog(2), which needs root and CAP_SYSLOG."""
    host: Path | None = None
    """Where the host's root file system is mounted, in a pod: below it mounts are checked, and `/etc/machine-id` and cloud-init's instance id read
    ([kubernetes.md](../use/kubernetes.md#mounts-of-the-host)). Not set: this process sees the host's own file system.
    """


@dataclass(frozen=True, slots=True)
class Inventory:
    """What this host must have."""

    expected_gpus: int | None = bounded(None, 0, 256)
    """Number of GPUs. Not set: the number that this type of machine has ([failures.md](../develop/failures.md#a-machine-that-was-never-complete)); for an
    unknown type, every GPU that was ever found here.
    """


@dataclass(frozen=True, slots=True)
class Publish:
    """What is served over HTTP ([serving.md](../use/serving.md))."""

    listen: Address = field(default_factory=lambda: Address("0.0.0.0", 9839))  # noqa: S104 - Prometheus comes from outside
    """The address to listen on; port 0: any free port. One address family: a host with IPv6 alone needs `"[::]:9839"`."""
    series: tuple[str, ...] = text_list("default")
    """Which series `/metrics` has ([metrics.md](metrics.md)): `"default"`, what gpuwarden's rules, dashboards and commands read and dcgm-exporter's
    default counters; `"full"`, all; or a list of names, in which `"default"` stands for all of that set.
    """
    hostname_label: Literal["Hostname", "hostname"] = "Hostname"
    """Name of the label with the host's name on the DCGM series: dcgm-exporter has used both spellings."""
    mig_series: Literal["instances", "gpus", "both"] = "instances"
    """If a GPU has MIG instances: whether the series of the default counters are for its instances, for the GPU, or for both (dcgm-exporter's
    `-d f`, `-d g`, `-d g,i`).
    """
    hpc_job_mapping_dir: Path | None = None
    """Folder of the files that map GPUs to jobs, for the label `hpc_job`, in dcgm-exporter's format. Not set: no such label."""
    switch: str = ""
    """Name of this host's leaf switch or block (topology/block), for the label `switch` of `gpuwarden_machine_info`, by which `gpuwarden fleet --why` compares nodes.
    Empty: the name in Slurm's topology, if `[slurm]` is enabled.
    """
    runbooks: str = RUNBOOKS
    """Address of the folder with the runbooks (docs/use/runbooks), for status, JSON and notifications."""
    publish_jobs: bool = False
    """Show the names of users and jobs to everyone who can connect."""
    web_config: Path | None = None
    """A file with TLS settings and users, in the format of Prometheus' exporter-toolkit. Not set: plain HTTP, without a login."""


@dataclass(frozen=True, slots=True)
class Control:
    """The control socket, which the commands use to reach the daemon."""

    group: str = ""
    """A group whose members may use the control socket, besides root. Empty: only root."""


@dataclass(frozen=True, slots=True)
class Log:
    """The daemon's log."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lines of this level and above are logged."""
    format: Literal["auto", "text", "json"] = "auto"
    """How a line is written: `auto` is text on a terminal and JSON elsewhere."""


@dataclass(frozen=True, slots=True)
class State:
    """Files that survive reboots."""

    dir: Path = STATE_DIR
    """The folder of the ledger."""


@dataclass(frozen=True, slots=True)
class Run:
    """Files that last until the next boot."""

    dir: Path = RUN_DIR
    """The folder of the sockets and the verdict file."""


_FEATURES = parts("options")


@dataclass(frozen=True, slots=True)
@with_tables({name: table for feature in _FEATURES.values() for name, table in feature.TABLES.items()})
class Config:
    """The whole configuration: the tables below, and one of each feature that has options."""

    mode: Mode = "observe"
    """`observe`: gpuwarden only shows what it would do. `enforce`: it does it."""
    node: str = field(default_factory=lambda: os.uname().nodename)
    """The name under which this host is published. Not set: in a pod the environment variable NODE_NAME, else the kernel's hostname."""
    paths: Paths = field(default_factory=Paths)
    inventory: Inventory = field(default_factory=Inventory)
    expected: ExpectedSettings = field(default_factory=ExpectedSettings)
    collectors: Collectors = field(default_factory=Collectors)
    plugins: Mapping[str, SiteCheck] = field(default_factory=dict)
    disk: DiskLimits = field(default_factory=DiskLimits)
    memory: MemoryLimits = field(default_factory=MemoryLimits)
    swap: SwapLimits = field(default_factory=SwapLimits)
    checks: Mapping[str, CheckRule] = field(default_factory=dict)
    xids: Mapping[str, XidRule] = field(default_factory=dict)
    sxids: Mapping[str, XidRule] = field(default_factory=dict)
    policy: Settings = field(default_factory=Settings)
    breaker: BreakerOptions = field(default_factory=BreakerOptions)
    slurm: SlurmOptions = field(default_factory=SlurmOptions)
    exec: ExecOptions = field(default_factory=ExecOptions)
    notify: NotifyOptions = field(default_factory=NotifyOptions)
    termination: TerminationOptions = field(default_factory=TerminationOptions)
    jobs: JobOptions = field(default_factory=JobOptions)
    publish: Publish = field(default_factory=Publish)
    control: Control = field(default_factory=Control)
    log: Log = field(default_factory=Log)
    state: State = field(default_factory=State)
    run: Run = field(default_factory=Run)
    fault: str = internal("", compare=False)
    """For people, why the configured files are not in force: it was started with the last good ones. Empty: they are."""
    origins: Mapping[KeyPath, str] | None = internal(None, compare=False)
    """Who gave each key that is not at its default; None: it was not loaded."""

    @property
    def limits(self) -> Limits:
        """Limits from which this host counts as full."""
        return Limits(disk=self.disk, memory=self.memory, swap=self.swap)

    def of(self, table: type[Table]) -> Table:
        """Return the table of a feature, by its class."""
        tables = (entry for feature in _FEATURES.values() for entry in feature.TABLES.items())
        options: Table = getattr(self, next(name for name, its_class in tables if its_class is table))
        return options

    def excluding(self, *ways: Excludes) -> tuple[str, ...]:
        """Return the names of the features that exclude this node in one of these ways."""
        able = {name: feature for name, feature in _FEATURES.items() if hasattr(feature, "excludes")}
        return tuple(name for name, feature in able.items() if feature.excludes(self) in ways)

    @property
    def repairs(self) -> bool:
        """True if a feature may repair this node; a test then precedes its return after each repair."""
        return any(feature.repairs(self) for feature in _FEATURES.values() if hasattr(feature, "repairs"))

    @property
    def counted(self) -> bool:
        """True if a scheduler counts the excluded nodes."""
        return bool(self.excluding(Excludes.BY_REGISTER))

    @property
    def excludes(self) -> bool:
        """True if this configuration enables anything that excludes the node."""
        return self.counted or any(_uncounting(self))


PARSERS = {Address: (ADDRESS, Address.parse), SecretFile: (A_SECRET, SecretFile.parse)}
"""Classes that are written as text in the configuration."""

_SOCKET_PATH_MAX = 107  # bytes; sun_path of unix(7) without its final zero
_NODE_MAX = 253  # characters of a name in DNS


class ConfigError(Exception):
    """The configuration cannot be used. `faults` has at least one."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = faults


def load(sources: Sources, series: Collection[str] | None = None) -> Config:
    """Load the configuration. `series`: valid names for `publish.series`; None: no check. Raises ConfigError."""
    layers, faults = sources.read()
    tree, origins = merge(layers)
    config, unfit = structure(tree, Config, parsers=PARSERS)
    faults += [_fault(origins[path], path, message) for path, message in unfit]
    faulty = {".".join(path) for path, _ in unfit}
    paths = {".".join(path): path for path in origins}  # a site's own names may contain dots
    for keys, message in (*_misfits(config), *series_misfits(config.publish.series, config.breaker, series)):
        if not faulty.intersection(keys):
            key = next((key for key in keys if key in paths), keys[0])
            path = paths.get(key, tuple(key.split(".")))
            faults.append(_fault(origins.get(path, "default"), path, message))
    if faults:
        raise ConfigError(faults)
    return replace(config, origins=origins)


def _fault(source: str, path: KeyPath, message: str) -> Fault:
    if message.startswith(UNKNOWN_KEY):
        message = placement(path, Config) or message
    return with_line(Fault(source, dotted(path), message), path)


def _misfits(config: Config) -> Iterator[Misfit]:
    """Yield values that have the right type but are dangerous, alone or in combination."""
    yield from misfits(config)
    nvml = config.collectors.nvml
    if nvml.init_deadline < nvml.deadline:
        deadlines = f"{format_duration(nvml.init_deadline)} beside {format_duration(nvml.deadline)}"
        message = (
            f"expected init_deadline to be no shorter than deadline, found {deadlines}: the first pass takes longer"
        )
        yield ("collectors.nvml.init_deadline", "collectors.nvml.deadline"), message
    yield from exec_misfits(config.exec)
    yield from notify_misfits(config.notify)
    yield from _uncounted(config)
    yield from _bad_names(config)
    yield from plugin_misfits(config.collectors.plugin.runner, config.plugins)
    yield from catalogue_misfits(config.checks, config.xids, config.sxids)
    yield from breaker_misfits(config.breaker)
    for feature in _FEATURES.values():
        if hasattr(feature, "misfits"):
            yield from feature.misfits(config)
    yield from termination_misfits(config.termination)
    yield from job_misfits(config.jobs)


def _uncounted(config: Config) -> Iterator[Misfit]:
    """Yield a fault if exclusions for failures are enabled without a count of the excluded nodes."""
    counts = config.counted or config.breaker.prometheus or config.breaker.uncounted == "allow"
    acts = list(_uncounting(config))
    if config.mode == "enforce" and acts and not counts:
        need = f'mode = "enforce" with {", ".join(acts)} needs a fleet counter for the breaker'
        yield ("breaker.uncounted", "breaker.prometheus", "mode"), f"{need}: {UNCOUNTED}"


def _uncounting(config: Config) -> Iterator[str]:
    """Yield the enabled tables that exclude this node without knowing other nodes."""
    yield from (f"[{name}]" for name in config.excluding(Excludes.BY_MARKER, Excludes.BY_ACTUATOR))
    if config.exec.exclude.command:
        yield "[exec.exclude]"


def _bad_names(config: Config) -> Iterator[Misfit]:
    if not 0 < len(config.node) <= _NODE_MAX or not config.node.isprintable() or " " in config.node:
        yield ("node",), f"expected a host's name of 1 to {_NODE_MAX} characters, found {config.node[:60]!r}"
    if config.paths.host == Path("/"):
        message = "expected the folder where a pod has the host's root, found /: leave it unset outside of a pod"
        yield ("paths.host",), message
    socket = config.run.dir / "control.sock"
    size = len(os.fsencode(socket))
    if size > _SOCKET_PATH_MAX:
        allowed = f"expected a path that leaves {socket} at most {_SOCKET_PATH_MAX} bytes"
        yield ("run.dir",), f"{allowed}, found {size}: the name of a Unix socket cannot be longer"
