"""The NVLinks of one GPU: reads states in each pass, counters every minute, and the remote end of each link once.

Counters are read from active links only: a link that is down may answer "not supported", which would be remembered
after it comes up again. A counter that no active link supports is not read again. A link whose state is not supported
is asked again every minute: until links are trained, drivers list none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from gpuwarden_collectors.facts import LinkFacts, slot_of
from gpuwarden_collectors.nvml.calls import Calls, decode_field
from gpuwarden_collectors.nvml.due import Due, period
from gpuwarden_collectors.nvml.readings import LINK_COUNTERS, LINK_FIELDS, LINK_SUMS, Cadence

_MAX_LINKS = 36  # NVML_NVLINK_MAX_LINKS; today's GPUs have at most 18
_LINK_FACTS = frozenset(attribute.name for attribute in fields(LinkFacts))


class Links:
    """The NVLinks of one GPU. `interval` and `phase` are as in `Questions`."""

    def __init__(self, calls: Calls, interval: float, phase: float) -> None:
        self._calls = calls
        self._active: dict[int, bool | None] = dict.fromkeys(range(_MAX_LINKS))
        self._values: dict[int, dict[str, int | None]] = {}
        self._remotes: dict[int, str] = {}
        self._fields = dict(LINK_FIELDS)
        self._due = Due(period(Cadence.MINUTE, interval), (phase + 0.5) % 1.0)
        self._facts: tuple[LinkFacts, ...] = ()
        self.sums: dict[str, int | None] = {}  # attributes of GpuReadings that are sums over the links

    @property
    def read_at(self) -> float | None:
        """Return when the counters were read."""
        return self._due.read_at

    def read(self, now: float, *, again: bool = False) -> tuple[LinkFacts, ...]:
        """Returns the links of this GPU. Raises Unanswered.

        With `again` their counters are read even before they are due.
        """
        before, due = self._active, again or self._due(now)
        self._read_states(range(_MAX_LINKS) if due else before)
        if due:
            self._read_counters()
            self.sums = {total: self._sum(name) for total, name in LINK_SUMS.items()}
            self._due.read(now)
        elif self._active == before:
            return self._facts
        self._facts = tuple(
            LinkFacts(
                link=link,
                active=active,
                remote=self._remotes.get(link),
                **{name: value for name, value in self._values.get(link, {}).items() if name in _LINK_FACTS},
            )
            for link, active in self._active.items()
        )
        return self._facts

    def _sum(self, name: str) -> int | None:
        values = [value for link in self._values.values() if (value := link.get(name)) is not None]
        return sum(values) if values else None

    def _read_states(self, links: Iterable[int]) -> None:
        calls, nvml = self._calls, self._calls.nvml
        states: dict[int, bool | None] = {}
        for link in links:
            try:
                # Only this one answer is down, as for DCGM: the field of the same name also has 2, asleep (nvml.h).
                states[link] = nvml.nvmlDeviceGetNvLinkState(calls.handle, link) != nvml.NVML_FEATURE_DISABLED
            except nvml.NVMLError as error:
                if not calls.failed("nvmlDeviceGetNvLinkState", error.value):
                    states[link] = None
        self._active = states

    def _read_counters(self) -> None:
        active = [link for link, is_active in self._active.items() if is_active]
        for link in active:
            self._values.setdefault(link, {})
            if link not in self._remotes and (remote := self._remote(link)):
                self._remotes[link] = remote
        if active:
            self._read_fields(active)
            for name in LINK_COUNTERS:
                self._read_counter(name, active)

    def _remote(self, link: int) -> str | None:
        """Returns the slot of the remote end, which never changes.

        A virtual machine sees the host's addresses, or none.
        """
        info = self._calls.ask("nvmlDeviceGetNvLinkRemotePciInfo", link)
        if info is None:
            return None
        address = info.busId.decode("ascii", "replace") if isinstance(info.busId, bytes) else str(info.busId)
        try:
            return slot_of(address)
        except ValueError:
            return None

    def _read_fields(self, active: list[int]) -> None:
        wanted = [(name, link) for link in active for name in self._fields]
        if not wanted:
            return
        supported: set[str] = set()
        answers = self._calls.field_values([(self._fields[name], link) for name, link in wanted])
        if not answers:
            return
        for (name, link), (code, kind, raw) in zip(wanted, answers, strict=True):
            if code == 0:
                self._values[link][name] = decode_field(kind, raw)
            if code == 0 or not self._calls.failed(f"field {self._fields[name]} of NVLink {link}", code):
                supported.add(name)
        self._fields = {name: number for name, number in self._fields.items() if name in supported}

    def _read_counter(self, name: str, active: list[int]) -> None:
        if name in self._fields:  # the field value gives it
            return
        answers: dict[int, Any] = {
            link: self._calls.ask("nvmlDeviceGetNvLinkErrorCounter", link, LINK_COUNTERS[name]) for link in active
        }
        for link, value in answers.items():
            self._values[link][name] = value
