"""Main memory: available memory, error counts of the memory controllers, and the number of OOM kills."""

from __future__ import annotations

import re
from pathlib import Path

from gpuwarden_collectors.base import CollectorError, SourceAbsent
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.host_facts import MemoryController, MemoryFacts
from gpuwarden_collectors.host_files import number, read_text, text_or_empty
from gpuwarden_collectors.options import PolledOptions
from gpuwarden_collectors.spec import CollectorSpec

_LINE = re.compile(r"^(\w+):?\s+(\d{1,19})(?: kB)?$", re.MULTILINE)  # both `MemTotal:  1 kB` and `oom_kill 0`
_CONTROLLER = re.compile(r"mc\d{1,4}")
_TABLE = 65536  # bytes; meminfo has 1.5 KiB, vmstat 4 KiB and growing


@dataclass(frozen=True, slots=True)
class MemoryOptions(PolledOptions):
    """Memory of the host and its errors."""


class MemoryCollector:
    """Reads `<proc>/meminfo`, `<proc>/vmstat` and `<sysfs>/devices/system/edac/mc`."""

    def __init__(self, proc: Path, sysfs: Path) -> None:
        self._meminfo = proc / "meminfo"
        self._vmstat = proc / "vmstat"
        self._edac = sysfs / "devices/system/edac/mc"

    def read(self) -> MemoryFacts:
        """Reads memory and EDAC. Raises SourceAbsent without meminfo, CollectorError if it has no total.

        A host without EDAC (memory without ECC, or no EDAC driver loaded) has no controllers.
        """
        info = self._info()
        total = info.get("MemTotal")
        if not total:
            raise CollectorError(f"cannot read memory: {self._meminfo} has no MemTotal; is it a meminfo of Linux?")
        return MemoryFacts(
            total_bytes=total << 10,
            available_bytes=_bytes(info.get("MemAvailable")),
            swap_total_bytes=_bytes(info.get("SwapTotal")),
            swap_free_bytes=_bytes(info.get("SwapFree")),
            huge_pages_total=info.get("HugePages_Total"),
            huge_page_bytes=_bytes(info.get("Hugepagesize")),
            oom_kills=self._oom_kills(),
            controllers=self._controllers(),
        )

    def _info(self) -> dict[str, int]:
        try:
            return _table(self._meminfo)
        except FileNotFoundError as error:
            raise SourceAbsent(f"no memory information: {self._meminfo} does not exist") from error
        except OSError as error:
            raise CollectorError(f"cannot read {self._meminfo}: {error.strerror}; let gpuwarden read /proc") from error

    def _oom_kills(self) -> int | None:
        try:
            return _table(self._vmstat).get("oom_kill")
        except OSError:
            return None

    def _controllers(self) -> tuple[MemoryController, ...]:
        try:
            names = sorted(entry.name for entry in self._edac.iterdir() if _CONTROLLER.fullmatch(entry.name))
        except OSError:
            return ()
        return tuple(
            MemoryController(
                name=name,
                corrected=number(text_or_empty(self._edac / name / "ce_count")),
                uncorrected=number(text_or_empty(self._edac / name / "ue_count")),
            )
            for name in names
        )


def _table(path: Path) -> dict[str, int]:
    return {name: int(value) for name, value in _LINE.findall(read_text(path, _TABLE))}


def _bytes(kib: int | None) -> int | None:
    return None if kib is None else kib << 10


SPEC = CollectorSpec(
    facts=MemoryFacts,
    options=MemoryOptions,
    reader=lambda host, _: MemoryCollector(host.proc, host.sysfs),
    source="`/proc/meminfo` and the error counters of the memory controllers (EDAC)",
)
