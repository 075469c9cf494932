"""Reads the daemon's published files for server processes: the verdict, and the marker of an exclusion.

Both are in the run directory and are replaced atomically, so that no lock is needed (`publish/files/verdict.py`,
`actuators/marker_file.py`). They are read again for each request. A missing, too large or invalid file is reported.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path

from gpuwarden.base.files import read_regular
from gpuwarden.base.paths import marker_path

FORMAT = "1"
"""Supported format of the verdict file."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_VERDICT_MOST = 64 << 10  # bytes; for 16 GPUs it takes less than 2 KiB
_MARKER_MOST = 16 << 10
_TEXT_MOST = 1_000  # characters of a text that is passed on
_STATES = ("healthy", "warning", "failure", "unknown")
_MODES = ("observe", "enforce")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The last verdict of this boot. `stale`: why it is not reliable, else "". `excluded_by`: actuators and reasons.

    `stamp` and `fresh_for` are whole seconds of CLOCK_BOOTTIME, as in the Slurm scripts.
    """

    mode: str
    state: str
    reason: str = ""
    excluded_by: tuple[str, ...] = ()
    breaker: bool = False
    simulated: bool = False
    stamp: int | None = None
    fresh_for: int | None = None
    stale: str = ""

    def at(self, now: float) -> Verdict:
        why = self._stale(now)
        return replace(self, stale=why) if why else self

    def _stale(self, now: float) -> str:
        if self.stamp is None or self.fresh_for is None:
            return "the verdict of gpuwarden has no time"
        if self.stamp == 0:
            return "gpuwarden has only just started"
        age = int(now) - self.stamp
        if age < -1:
            return "the verdict of gpuwarden is from the future"
        return f"the verdict of gpuwarden is more than {self.fresh_for} s old" if age > self.fresh_for else ""


@dataclass(frozen=True, slots=True)
class Marker:
    """The exclusion of this node. `cause`: failure, termination, person or unknown. `check`: code of the finding."""

    cause: str
    reason: str
    check: str = ""


@dataclass(frozen=True, slots=True)
class Published:
    """The daemon's published state. `missing`: why there is no verdict. `doubt`: why the marker could not be read."""

    verdict: Verdict | None = None
    marker: Marker | None = None
    missing: str = ""
    doubt: str = ""


class Reader:
    """Reads one run directory. `name`: the actuator whose marker is read. `boot_id`: of this boot, "" if unknown."""

    def __init__(self, run_dir: Path, name: str, *, boot_id: str) -> None:
        self._verdict = run_dir / "verdict"
        self._marker = marker_path(run_dir, name)
        self._name = name
        self._boot_id = boot_id

    def read(self, now: float | None = None) -> Published:
        """Return verdict and marker. `now`: time of CLOCK_BOOTTIME. Raises nothing."""
        at = time.clock_gettime(time.CLOCK_BOOTTIME) if now is None else now
        marker, doubt = self._read_marker()
        try:
            verdict = parse_verdict(_read(self._verdict, _VERDICT_MOST), boot_id=self._boot_id).at(at)
        except OSError as error:
            return Published(None, marker, f"there is no verdict of gpuwarden: {error.strerror or error}", doubt)
        except ValueError as error:
            return Published(None, marker, str(error), doubt)
        return Published(verdict, marker, "", doubt)

    def _read_marker(self) -> tuple[Marker | None, str]:
        try:
            return parse_marker(_read(self._marker, _MARKER_MOST), name=self._name, boot_id=self._boot_id), ""
        except (FileNotFoundError, NotADirectoryError):
            return None, ""
        except OSError as error:
            return None, f"cannot read {self._marker}: {error.strerror or error}"
        except ValueError as error:
            return None, f"{self._marker}: {error}"


def this_boot(path: Path = BOOT_ID) -> str:
    """Return the boot id of the running kernel; "" if it cannot be read."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def parse_verdict(data: bytes, *, boot_id: str) -> Verdict:
    """Parse a verdict file. Raises ValueError if it is invalid or of another boot."""
    lines = (line.partition("=") for line in data.decode("utf-8", "replace").splitlines())
    fields = {key: value for key, separator, value in lines if separator}
    mode, state = fields.get("mode", ""), fields.get("state", "")
    if fields.get("format") != FORMAT or state not in _STATES or mode not in _MODES:
        raise ValueError("the verdict of gpuwarden cannot be parsed")
    if boot_id and fields.get("boot_id") != boot_id:
        raise ValueError("the verdict of gpuwarden is of another boot")
    return Verdict(
        mode=mode,
        state=state,
        reason=_text(fields.get("reason")),
        breaker=fields.get("breaker") == "1",
        excluded_by=tuple(fields.get("excluded_by", "").split()),
        simulated=fields.get("simulated", "0") != "0",
        stamp=_seconds(fields.get("stamp")),
        fresh_for=_seconds(fields.get("fresh_for")),
    )


def parse_marker(data: bytes, *, name: str, boot_id: str) -> Marker | None:
    """Parse a marker; None (void) if it is of another boot. Raises ValueError if it is not this actuator's marker."""
    with contextlib.suppress(ValueError, RecursionError):
        match json.loads(data):
            case {"owner": "gpuwarden", "actuator": str(of), "reason": str(reason), **rest} if of == name:
                if boot_id and rest.get("boot_id", boot_id) != boot_id:
                    return None
                return Marker(_text(rest.get("cause")) or "unknown", _text(reason), _text(rest.get("check")))
    raise ValueError("this is not a marker of gpuwarden")


def _seconds(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= 11 else None


def _text(value: object) -> str:
    return " ".join(value[:_TEXT_MOST].split()) if isinstance(value, str) else ""


def _read(path: Path, most: int) -> bytes:
    """Read a file without blocking. Raises OSError, and ValueError if it has more than `most` bytes."""
    data = read_regular(path, most + 1, follow=False)
    if len(data) > most:
        raise ValueError(f"{path} has more than {most} bytes")
    return data
