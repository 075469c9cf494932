"""Checks of the host: driver, NVML, PCI bus, kernel log, the daemon's folders, DCGM."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from gpuwarden.base.paths import LEDGER
from gpuwarden.base.threads import detached
from gpuwarden.config.model import Config
from gpuwarden.config.sources import in_pod
from gpuwarden.doctor.row import Row, fail, ok, warn
from gpuwarden_collectors.base import CollectorError, Facts, Observation, PassOutcome, SourceAbsent
from gpuwarden_collectors.dcgm.addresses import running_engine
from gpuwarden_collectors.dcgm.facts import DcgmFacts
from gpuwarden_collectors.driver_libraries import loaded
from gpuwarden_collectors.facts import NvmlFacts, NvmlProblem
from gpuwarden_collectors.host_files import read_text
from gpuwarden_collectors.kernel_log.sources import FollowedFile, KmsgDevice, open_source
from gpuwarden_collectors.mount_table import in_memory
from gpuwarden_collectors.nvml.library import LIBRARY as NVML
from gpuwarden_collectors.nvml.options import NvmlOptions
from gpuwarden_collectors.pci import PciCollector
from gpuwarden_collectors.pci_facts import PciDevice
from gpuwarden_collectors.worker.life import WorkerLimits
from gpuwarden_collectors.worker.worker import Worker

DCGM = "libdcgm.so"
RESPONSE_WITHIN = 30.0
"""Seconds for the single pass of a reader."""
_ROOM = 64 << 20  # bytes; a ledger takes a few MB
_MAPS = 1 << 20  # most bytes read of /proc/PID/maps
_VERSION = re.compile(r"\b\d{3}\.\d+(?:\.\d+)?\b")
_TO_DO: dict[NvmlProblem, str] = {
    NvmlProblem.DRIVER_NOT_LOADED: "load the driver: modprobe nvidia; see dmesg if it fails",
    NvmlProblem.LIBRARY_MISMATCH: "reload the driver or reboot: the library was upgraded while the old driver was loaded",
    NvmlProblem.NO_PERMISSION: "let the daemon open /dev/nvidia*: see DeviceAllow= and User= of its unit",
    NvmlProblem.OTHER: "see the error of nvidia-smi",
}


def driver(config: Config) -> Iterator[Row]:
    """Check whether the kernel module is loaded if the bus has NVIDIA devices."""
    version, functions = _loaded(config), len(_devices(config) or ())
    if version:
        yield ok("driver", f"version {version} is loaded")
    elif functions:
        state = f"not loaded, with {functions} NVIDIA functions on the bus"
        yield fail("driver", state, _TO_DO[NvmlProblem.DRIVER_NOT_LOADED])
    else:
        state = "not loaded, and no NVIDIA device on the bus"
        yield warn("driver", state, "if this host has no GPUs, set inventory.expected_gpus = 0")


def pci(config: Config) -> Iterator[Row]:
    """Check that all NVIDIA functions on the PCI bus respond. The bus lists GPUs without a driver too."""
    if not config.collectors.pci.enabled:
        yield ok("pci", "disabled")
        return
    devices, where = _devices(config), f"{config.paths.sysfs}/bus/pci"
    if devices is None:
        to_do = (
            "check paths.sysfs, and that the unit may read it: until then a GPU that falls off the bus is detected late"
        )
        yield warn("pci", f"{where} cannot be read", to_do)
        return
    mute = [device.slot for device in devices if device.responds is False]
    if mute:
        to_do = "reboot; if that does not help, have the hardware inspected: the node is unusable until these devices respond"
        yield fail("pci", f"no device responds at {', '.join(mute[:8])}", to_do)
    else:
        yield ok("pci", f"{len(devices)} NVIDIA functions at {where}, all respond")


def _loaded(config: Config) -> str:
    """Return the version of the loaded driver; "" if no driver is loaded."""
    try:
        text = read_text(config.paths.proc / "driver/nvidia/version")
    except OSError:
        return ""
    version = _VERSION.search(text)
    return version[0] if version is not None else "unknown"


def _devices(config: Config) -> tuple[PciDevice, ...] | None:
    try:
        return PciCollector(config.paths.sysfs).read().devices
    except (CollectorError, SourceAbsent):
        return None


async def nvml(config: Config) -> list[Row]:
    """Check NVML by one pass in a child process: a hang or crash of the library then does not affect this process."""
    options: NvmlOptions = config.collectors.nvml
    if not options.enabled:
        return [ok("nvml", "disabled")]
    version, functions = await detached("driver", lambda: (_loaded(config), len(_devices(config) or ())))
    if not version and functions:  # a call to NVML could load the driver, and the doctor changes nothing
        return [warn("nvml", "not read: the driver is not loaded", "load the driver, and run the doctor again")]
    seen, maps = await _one_pass("nvml", "gpuwarden_collectors.nvml.reader:NvmlReader", NvmlFacts, options)
    return list(nvml_rows(seen, expected=bool(functions), library=loaded(maps, NVML)))


async def _one_pass(name: str, reader: str, facts: type[Facts], options: object) -> tuple[Observation[Facts], str]:
    """Return the observation of one pass, and the memory mappings of its worker process."""
    limits = WorkerLimits(deadline=RESPONSE_WITHIN, init_deadline=RESPONSE_WITHIN)
    worker: Worker[Facts] = Worker(name, reader, facts, limits=limits, on_event=lambda _: None, options=options)
    try:
        seen = await worker.observe()
        pid = None if seen.worker is None else seen.worker.pid
        return seen, "" if pid is None else _maps(pid)
    finally:
        await worker.close()


def _maps(pid: int) -> str:
    try:
        return read_text(f"/proc/{pid}/maps", _MAPS)
    except OSError:
        return ""


def nvml_rows(seen: Observation[NvmlFacts], *, expected: bool, library: str = "") -> Iterator[Row]:
    """Yield the row about a pass of NVML. `expected`: the bus has NVIDIA functions. `library`: the loaded file."""
    facts = seen.facts
    if seen.outcome is PassOutcome.ABSENT and not expected:
        yield warn("nvml", "no library, and no NVIDIA device that would need it", "nothing, if this host has no GPUs")
    elif seen.outcome is PassOutcome.ABSENT:
        to_do = "install the driver's libnvidia-ml, or set collectors.nvml.library"
        if in_pod():
            to_do = "values of the chart: runtimeClassName, platform=gke or driverRoot"
        yield fail("nvml", seen.error or "no library", to_do)
    elif facts is None:
        yield fail("nvml", seen.error or "no response", "check whether nvidia-smi responds: the driver may hang")
    elif facts.problem is not None:
        yield fail("nvml", facts.problem_text or facts.problem.value, _TO_DO[facts.problem])
    else:
        refused = sorted({e.call for gpu in facts.gpus for e in gpu.errors if e.code == _NO_PERMISSION})
        if refused:
            state = f"{len(facts.gpus)} GPUs; no permission for {', '.join(refused[:4])}"
            yield warn("nvml", state, "run the daemon as root; otherwise these values are not read")
        else:
            version = facts.nvml_version or "of unknown version"
            yield ok("nvml", f"{len(facts.gpus)} GPUs, library {version}{library and f' from {library}'}")


_NO_PERMISSION = 4  # NVML_ERROR_NO_PERMISSION


def kernel_log(config: Config) -> Iterator[Row]:
    """Check that the kernel log can be opened the way the daemon opens it. Nothing is read from it."""
    if not config.collectors.kernel_log.enabled:
        yield ok("kernel log", "disabled")
        return
    try:
        source = open_source(str(config.paths.kmsg))
    except CollectorError as error:
        to_do = "run as root or with CAP_SYSLOG, and let the unit read /dev/kmsg"
        if in_pod():
            to_do = "values of the chart: kernelLog.enabled, securityContext.runAsUser=0"
        yield fail("kernel log", str(error), f"{to_do}; until then Xids are not read")
        return
    source.close()
    if isinstance(source, KmsgDevice | FollowedFile):
        yield ok("kernel log", f"{config.paths.kmsg} can be read")
    else:
        state = f"{config.paths.kmsg} cannot be opened; read with syslog(2) every {source.poll:g} s"
        yield ok("kernel log", state)


def folders(config: Config) -> Iterator[Row]:
    yield _folder("run directory", config.run.dir, "run.dir", lasting=False)
    yield _folder("state directory", config.state.dir, "state.dir", lasting=True)
    yield from after_a_boot(config, existing(config.state.dir / LEDGER))


def _folder(name: str, path: Path, key: str, *, lasting: bool) -> Row:
    try:
        status = path.stat()
    except OSError as error:
        if isinstance(error, FileNotFoundError) and os.access(existing(path), os.W_OK):
            return ok(name, f"{path} is created when the daemon starts")
        return fail(name, f"{path}: {error.strerror}", f"create it, or set {key}")
    if not stat.S_ISDIR(status.st_mode) or not os.access(path, os.W_OK | os.X_OK):
        to_do = f"correct its owner and mode, or set {key}"
        if in_pod():
            to_do = "make root of the host its owner; with SELinux see ausearch -m avc, and podSecurityContext.seLinuxOptions of the chart"
        return fail(name, f"{path} is not a folder that this user may write to", to_do)
    if status.st_mode & stat.S_IWOTH:
        return fail(name, f"every user may write to {path}", f"chmod o-w {path}: other users could forge a verdict")
    free = os.statvfs(path)
    if lasting and free.f_bavail * free.f_frsize < _ROOM:
        return warn(name, f"{path} has less than {_ROOM >> 20} MiB left", f"free space, or set {key}")
    return ok(name, f"{path} can be written")


def existing(path: Path) -> Path:
    return next((folder for folder in path.parents if folder.exists()), Path("/"))


async def dcgm(config: Config) -> list[Row]:
    """Check DCGM by one pass of its reader if a host engine runs. DCGM is optional: NVML has the essential readings."""
    options = config.collectors.dcgm
    if not options.enabled:
        return [ok("dcgm", "disabled")]
    addresses = (options.address,) if options.address else options.probe
    try:
        address = running_engine(addresses, config.paths.proc / "net")
    except CollectorError as error:
        return [fail("dcgm", str(error), "correct collectors.dcgm.address, or the mode of the socket's folder")]
    if address is None and options.address:
        to_do = "start nvidia-dcgm, or unset collectors.dcgm.address"
        return [fail("dcgm", f"no engine listens at {options.address}", to_do)]
    if address is None:
        return [ok("dcgm", "no host engine runs here: only NVML is read")]
    seen, maps = await _one_pass("dcgm", "gpuwarden_collectors.dcgm.reader:DcgmReader", DcgmFacts, options)
    return [dcgm_row(seen, str(address), loaded(maps, DCGM))]


def dcgm_row(seen: Observation[DcgmFacts], address: str, library: str = "") -> Row:
    """Return the row about one pass of DCGM. `library`: path of the loaded library."""
    facts = seen.facts
    if seen.outcome is PassOutcome.ABSENT:
        return warn("dcgm", f"an engine listens at {address}, but {seen.error}", "install DCGM's Python bindings")
    if facts is None:
        to_do = "see systemctl status nvidia-dcgm; until it responds only NVML is read"
        return fail("dcgm", f"an engine listens at {address}: {seen.error or 'no response'}", to_do)
    state = f"engine {facts.engine_version or 'of unknown version'} answers at {facts.address or address}"
    return ok("dcgm", f"{state}: {len(facts.gpus)} GPUs{library and f', library {library}'}")


def after_a_boot(config: Config, folder: Path) -> Iterator[Row]:
    """Yield a row if a reboot empties the state directory, none if it is on a disk. `folder`: its existing parent.

    A state directory in memory is usual on diskless nodes.
    """
    kind = in_memory(folder.resolve(), config.paths.proc / "self/mountinfo")
    if not kind:
        return
    state = (
        f"{config.state.dir} is on {kind}, which a boot empties: only an operator lifts earlier exclusions of gpuwarden"
    )
    if config.inventory.expected_gpus is not None:
        yield ok("state after a boot", state)
        return
    state = f"{state}, and a GPU that is gone after it is not reported"
    to_do = "set inventory.expected_gpus, or keep the state on a disk of this node (docs/use/systemd.md#state-on-another-disk)"
    yield warn("state after a boot", state, to_do)
