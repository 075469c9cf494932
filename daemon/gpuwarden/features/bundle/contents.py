"""Makes the files of an archive from what was gathered."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from gpuwarden.features.bundle import boards, items, kernel, ledger
from gpuwarden.features.bundle.entry import Entry
from gpuwarden.features.bundle.gathering import Gathered, Got
from gpuwarden.features.bundle.series import Series
from gpuwarden.health.view import Rules
from gpuwarden.publish.times import rfc3339
from gpuwarden_collectors.dataclass import dataclass

Document = dict[str, Any]
_NOT_SHOWN = frozenset(
    """
    rising subsided counted job_begun job_used job_ended summed answered tried host_learned host_forgotten
    kernel_line xid sxid aer gpu_pinned log_gap oom_kill started intended signalling""".split()
)
"""Kinds of events that are neither an action nor a change of the node; they are only in events.jsonl."""
_SHOWN_MOST = 200
_BOX = "black-box"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Data of the pages, as plain values in which names can be replaced."""

    made_at: str
    """When the archive was made, RFC 3339."""
    host: dict[str, str]
    """Facts of `host.py`."""
    failures: list[Document]
    """What failed: id, title, since, to_do, evidence, over, slot."""
    unknown: str
    """Why it is not known what failed; empty if it is known."""
    boards: list[dict[str, str]]
    """Rows of `boards.py`."""
    lines: list[str]
    """Lines of the kernel log about GPUs."""
    tried: list[Document]
    """Events about actions, and about changes of the node."""
    anonymised: bool
    """Names were replaced."""
    simulated: bool = False
    """The daemon's GPUs are simulated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """An archive without its pages."""

    overview: Overview
    """Data of the pages."""
    series: Series
    """Data of the plots."""
    entries: tuple[Entry, ...]
    """The files."""

    def unknown(self, name: str) -> str:
        """Return why the content of that file is not known; empty if the file exists, even if it is empty."""
        missing = (entry.why for entry in self.entries if entry.name == name and not entry.is_there)
        return next(missing, "")


def contents_of(gathered: Gathered, *, node: str, rules: Rules, now: float, anonymise: bool) -> Contents:
    """Return the files, with names unchanged."""
    events = [] if gathered.slice.value is None else list(gathered.slice.value.events)
    series = Series() if gathered.box.value is None else gathered.box.value.series
    log = gathered.kernel_log.value or _text(gathered.outputs[items.DMESG])
    lines = kernel.about_gpus(log).splitlines()
    overview = Overview(
        made_at=rfc3339(now),
        host={"node": node, **(gathered.host.value or {})},
        failures=[_failure(failure) for failure in gathered.failures],
        unknown=gathered.unknown,
        boards=boards.documents(_boards(gathered, series)),
        lines=lines,
        tried=[event for event in events if event["kind"] not in _NOT_SHOWN][-_SHOWN_MOST:],
        anonymised=anonymise,
        simulated=bool((gathered.status.value or {}).get("simulated")),
    )
    meant = kernel.explained(lines, rules, series.driver)
    return Contents(overview=overview, series=series, entries=_entries(gathered, overview, events, meant))


def _entries(gathered: Gathered, overview: Overview, events: list[Document], meant: str) -> tuple[Entry, ...]:
    """Return the files in the order of the index page. `meant`: what the Xids and SXids mean."""
    cut = gathered.slice.value
    return (
        _made(
            "boards.json",
            "the boards in this machine",
            "black box, nvidia-smi -q, daemon, ledger",
            _indented(overview.boards),
        ),
        _json(
            "host.json",
            "this machine, its firmware, kernel and driver",
            "/sys/class/dmi/id, uname",
            gathered.host,
            items.HOST_MOST,
        ),
        _lines(
            "events.jsonl",
            f"the ledger, from {ledger.BEFORE / 3600:.0f} h before the failure on",
            gathered.slice,
            events,
            items.EVENTS_MOST,
            earlier=cut is not None and cut.earlier,
        ),
        _lines(
            "tests.jsonl",
            "active tests of the last 28 days",
            gathered.slice,
            [] if cut is None else cut.tests,
            items.TESTS_MOST,
        ),
        _json(
            "status.json", "the daemon's status at this moment", "control socket", gathered.status, items.STATUS_MOST
        ),
        _json(
            "inventory.json",
            "the GPUs expected in this machine",
            "control socket",
            gathered.inventory,
            items.INVENTORY_MOST,
        ),
        _kernel(overview.lines, gathered.kernel_log, gathered.outputs[items.DMESG]),
        _made(
            "xids.txt",
            "what the Xids and SXids in kernel.txt mean",
            "gpuwarden explain",
            meant.encode()[: items.XIDS_MOST],
        ),
        _configuration(gathered.configuration),
        *_traces(gathered),
        *gathered.outputs.values(),
    )


def _boards(gathered: Gathered, series: Series) -> list[boards.Board]:
    pins = () if gathered.slice.value is None else gathered.slice.value.state.pins.values()
    remembered = [{"pci_bus_id": pin.slot, "name": pin.name, "serial": pin.serial, "uuid": pin.uuid} for pin in pins]
    status = (gathered.status.value or {}).get("gpus", ())
    return boards.together(
        boards.of_box(series.gpus),
        boards.of_smi(_text(gathered.outputs[items.SMI])),
        boards.of_documents(status, "daemon"),
        boards.of_documents(gathered.inventory.value or (), "daemon"),
        boards.of_documents(remembered, "ledger"),
    )


def _failure(failure: ledger.Failure) -> Document:
    return {
        "id": str(failure.key),
        "title": failure.title,
        "since": rfc3339(failure.since),
        "to_do": failure.to_do,
        "evidence": failure.evidence,
        "over": failure.over,
        "slot": failure.key.subject.slot,
    }


def _text(entry: Entry) -> str:
    return entry.content.decode("utf-8", "replace")


def _indented(document: object) -> bytes:
    return (json.dumps(document, indent=2) + "\n").encode()


def _made(name: str, about: str, how: str, content: bytes) -> Entry:
    return Entry(name=name, about=about, how=how, content=content)


def _json(name: str, about: str, how: str, document: Got[Any], most: int) -> Entry:
    entry = Entry(name=name, about=about, how=how, seconds=document.seconds)
    if document.value is None:
        return entry.missing(document.why)
    content = _indented(document.value)
    if len(content) > most:  # a part of a JSON document cannot be parsed
        return entry.missing(f"it has {len(content)} bytes, more than {most}")
    return entry.holding(content)


def _lines(
    name: str, about: str, excerpt: Got[ledger.Slice], events: Iterable[Document], most: int, *, earlier: bool = False
) -> Entry:
    """Return events, one per line; of too many, the newest. `earlier`: some of the oldest were already left out."""
    entry = Entry(name=name, about=about, how="ledger, read only", seconds=excerpt.seconds)
    if excerpt.value is None:
        return entry.missing(excerpt.why)
    kept, room = [], most
    for line in (json.dumps(event).encode() + b"\n" for event in reversed(list(events))):
        if len(line) > room:
            earlier = True
            break
        room -= len(line)
        kept.append(line)
    return entry.holding(b"".join(reversed(kept)), "the oldest events are left out" if earlier else "")


def _kernel(lines: list[str], log: Got[str], dmesg: Entry) -> Entry:
    """Return the lines about GPUs. If there are too many, the oldest are left out."""
    about = "lines of the kernel log about GPUs and their bus"
    entry = Entry(name="kernel.txt", about=about, how="paths.kmsg" if log.value else dmesg.how)
    if not log.value and not dmesg.is_there:
        return entry.missing("; ".join(filter(None, (log.why, dmesg.why))))
    text = "".join(f"{line}\n" for line in lines).encode()
    if len(text) > items.KERNEL_MOST:
        return entry.holding(text[-items.KERNEL_MOST :].partition(b"\n")[2], "the oldest lines are left out")
    return entry.holding(text, "" if log.value else dmesg.why)


def _configuration(configuration: Got[str]) -> Entry:
    about, how = "the configuration in force, without secrets", "gpuwarden config show"
    entry = Entry(name="configuration.toml", about=about, how=how, seconds=configuration.seconds)
    if configuration.value is None:
        return entry.missing(configuration.why)
    return entry.holding(configuration.value.encode()[: items.CONFIGURATION_MOST])


def _traces(gathered: Gathered) -> Iterator[Entry]:
    about = "readings of the minutes around a failure: gpuwarden replay reads it"
    entry = Entry(name=_BOX, about=about, how="black box")
    if (held := gathered.box.value) is None:
        yield replace(entry, seconds=gathered.box.seconds).missing(gathered.box.why)
        return
    for file in held.files:
        damaged = next((text for text in held.series.unread if file.name in text), "")
        yield replace(entry, name=f"{_BOX}/{file.name}").holding(file.content, damaged)
    for name in held.left_out:
        left_out = replace(entry, name=f"{_BOX}/{name}")
        yield left_out.missing("no room is left for it: it is older than the others")
