"""Checks of the system: versions, clocks, and the permissions of this user."""

from __future__ import annotations

import ctypes
import grp
import os
import platform
import pwd
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from gpuwarden import __version__
from gpuwarden.base.capabilities import lacking
from gpuwarden.config.model import Config
from gpuwarden.config.sources import in_pod
from gpuwarden.doctor.row import Row, fail, ok, warn
from gpuwarden.doctor.running import Running
from gpuwarden_collectors.host_files import read_text

# --- versions

_SYSTEMCTL = ("systemctl", "--version")


def versions(_: Config) -> Iterator[Row]:
    """Yield the row with the versions. Driver, NVML, DCGM and Slurm have separate rows."""
    texts = [
        f"gpuwarden {__version__}",
        f"Python {platform.python_version()}",
        f"Linux {platform.release()} ({platform.machine()})",
        _distribution(),
        _systemd(),
    ]
    yield ok("versions", ", ".join(filter(None, texts)))


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")[:60]
    except OSError:
        return ""


def _systemd() -> str:
    try:
        done = subprocess.run(  # noqa: S603 - no shell, and all arguments are constants
            _SYSTEMCTL, stdin=subprocess.DEVNULL, capture_output=True, timeout=5.0, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "no systemd"
    return done.stdout.decode("utf-8", "replace").partition("\n")[0].strip()[:60]


# --- clocks

ERROR_MOST = 1.0
"""Tolerated clock error in seconds, by the kernel's estimate (maxerror): Slurm's drain times have whole seconds."""
_UNSYNCHRONISED = 5  # TIME_ERROR of adjtimex(2)
_BORN = 1_750_000_000.0  # gpuwarden did not exist before this time


class _Timex(ctypes.Structure):
    """The first fields of struct timex of adjtimex(2), padded to at least its full size."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    )


def clock(config: Config) -> Iterator[Row]:
    timex = _Timex()
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))  # modes 0: nothing is set
    yield wall_clock(time.time(), None if state < 0 else state, timex.maxerror / 1e6)
    try:
        uptime = float(read_text(config.paths.proc / "uptime").split()[0])
    except (OSError, ValueError, IndexError):
        return
    ahead = time.clock_gettime(time.CLOCK_BOOTTIME) - uptime
    if abs(ahead) > ERROR_MOST:
        text = f"CLOCK_BOOTTIME is {ahead:+.0f} s beside {config.paths.proc}/uptime: another time namespace"
        yield fail("boot clock", text, "run the daemon in the host's time namespace: scripts judge it by uptime")


def wall_clock(now: float, state: int | None, error: float) -> Row:
    """Return the row about the wall clock. `state`: result of adjtimex(2), None if it failed; `error` in seconds."""
    if now < _BORN:
        to_do = "set it, and see timedatectl: certificates, Slurm and Prometheus depend on it"
        return fail("clock", time.strftime("it is %Y-%m-%d", time.gmtime(now)), to_do)
    if state is None:
        return ok("clock", "the kernel does not report whether it is synchronised")
    if state == _UNSYNCHRONISED:
        to_do = "start a time service (chrony, systemd-timesyncd): these clocks decide the order of exclusions"
        return warn("clock", "not synchronised, according to the kernel", to_do)
    if error > ERROR_MOST:
        return warn("clock", f"synchronised, but may be {error:.1f} s off", "see chronyc tracking, or timedatectl")
    return ok("clock", f"synchronised, at most {error * 1e3:.0f} ms off")


# --- permissions


def permissions(running: Running, config: Config) -> Iterator[Row]:
    uid = os.geteuid()
    who = f"uid {uid} ({_user(uid)})"
    if running.status and running.uid != uid:
        daemon = f"the daemon is uid {running.uid} ({_user(running.uid)})"
        to_do = f"to check as the daemon's user: sudo -u '#{running.uid}' gpuwarden doctor"
        yield warn(
            "permissions", f"this command is {who}, {daemon}: the rows below are about this command's user", to_do
        )
    shut = [str(node) for node in _devices(Path("/dev")) if not os.access(node, os.R_OK | os.W_OK)]
    if shut:
        to_do = "see User= and DeviceAllow= of the unit, and the mode of the devices (NVreg_DeviceFileMode)"
        if in_pod():
            to_do = "values of the chart: runtimeClassName, or platform=gke where there is no such class"
        yield fail("devices", f"{who} may not open {', '.join(shut[:4])}", to_do)
    yield _rights(who, config)
    yield from _control(uid, config)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return "without a name"


def _devices(folder: Path) -> Iterator[Path]:
    for pattern in ("nvidiactl", "nvidia[0-9]*", "nvidia-uvm"):
        yield from sorted(folder.glob(pattern))


def _rights(who: str, config: Config) -> Row:
    missing = lacking()
    purposes = [each.purpose for each in missing]
    if not missing:
        return ok("rights", f"{who} has all capabilities that gpuwarden uses")
    if config.mode != "enforce":
        return ok("rights", f"{who}, mode observe; it cannot {'; cannot '.join(purposes)}")
    to_do = "choose the profile for the tasks of this node: see docs/use/systemd.md"
    if in_pod():
        to_do = f"values of the chart: {', '.join(dict.fromkeys(each.value for each in missing))}"
    return warn("rights", f"{who} cannot {'; cannot '.join(purposes)}", to_do)


def _control(uid: int, config: Config) -> Iterator[Row]:
    group = config.control.group
    if not group:
        return
    try:
        gid = grp.getgrnam(group).gr_gid
    except KeyError:
        yield fail("control group", f"there is no group {group}", f"groupadd --system {group}, or unset control.group")
        return
    if uid != 0 and gid not in {os.getegid(), *os.getgroups()}:
        yield ok("control group", f"{group}; this user is not a member and may not use the control socket")
    else:
        yield ok("control group", f"{group}: its members may use the control socket")
