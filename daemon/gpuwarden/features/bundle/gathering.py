"""Gathers the content of an archive. What may hang has a deadline; missing parts are listed with the reason."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from gpuwarden.base.threads import detached
from gpuwarden.cli.client import Daemon
from gpuwarden.cli.parser import CommandError
from gpuwarden.features.bundle import boards, box, host, items, kernel, ledger, secrets
from gpuwarden.features.bundle.entry import Completeness, Entry
from gpuwarden.features.bundle.items import PROGRAMS, Program
from gpuwarden.features.bundle.order import Order
from gpuwarden.features.bundle.programs import program
from gpuwarden.features.bundle.series import Series, series_of
from gpuwarden_collectors.dataclass import dataclass

Value = TypeVar("Value")
ANONYMOUS = "left out with --anonymise: it holds any text of the host"
_DAEMON_WITHIN, _READ_WITHIN, _BOX_WITHIN = 6.0, 20.0, 60.0
"""Seconds for an answer of the daemon, for a file or the ledger, and for the traces of the black box."""
_KMSG = Path("/dev/kmsg")
_WHY_MOST = 400
_NAMED_MOST = 8
"""Most findings that one message names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Got(Generic[Value]):
    """A value that was read, or the reason why it was not."""

    value: Value | None = None
    """None if it was not read."""
    why: str = ""
    """Why it was not read."""
    seconds: float = 0.0
    """How long the reading took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """The black box."""

    files: list[box.BoxFile]
    """Its traces, the oldest first."""
    left_out: list[str]
    """Names of traces for which there was no room."""
    series: Series
    """The readings in these traces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """Everything that was read for an archive."""

    status: Got[dict[str, Any]]
    """The status document of the daemon."""
    inventory: Got[list[dict[str, Any]]]
    """The GPUs that the daemon expects."""
    slice: Got[ledger.Slice]
    """The excerpt of the ledger."""
    failures: list[ledger.Failure]
    """The findings that the archive is about."""
    not_found: tuple[str, ...]
    """Requested findings that the ledger does not have."""
    unknown: str
    """Why it is not known what failed; empty if it is known."""
    host: Got[dict[str, str]]
    """Facts of the machine."""
    box: Got[Box]
    """The black box."""
    kernel_log: Got[str]
    """The kernel log in a file that the configuration names; empty if that is /dev/kmsg."""
    configuration: Got[str]
    """The configuration without secrets."""
    outputs: Mapping[str, Entry]
    """Output of programs, by name."""


async def gathered(order: Order, work: Path) -> Gathered:
    """Gather everything. Raises CommandError if none of the requested findings is found."""
    daemon, paths = Daemon(order.run_dir, order.run_dir), order.config.paths
    status = await got("status", lambda: _status(daemon, order.findings), _DAEMON_WITHIN)
    order = _located(order, status)
    inventory, cut = await asyncio.gather(
        got("inventory", lambda: _inventory(daemon), _DAEMON_WITHIN),
        got("ledger", lambda: ledger.slice_of(order.state_dir, order.findings, time.time()), _READ_WITHIN),
    )
    failures, not_found = _failures(order, status, cut)
    programs = asyncio.gather(*(_of_program(program, order, work) for program in PROGRAMS))
    facts, traces, log, settings = await asyncio.gather(
        got("host", lambda: host.facts(paths.sysfs, paths.proc, order.config.node), _READ_WITHIN),
        got("black box", lambda: _box(order.state_dir, work), _BOX_WITHIN),
        got("kernel log", lambda: "" if paths.kmsg == _KMSG else kernel.of_file(paths.kmsg), _READ_WITHIN),
        got("configuration", lambda: _configuration(order), _READ_WITHIN),
    )
    return Gathered(
        status=status,
        inventory=inventory,
        slice=cut,
        failures=failures,
        not_found=not_found,
        unknown="" if failures else _unknown(order, status, cut),
        host=facts,
        box=traces,
        kernel_log=log,
        configuration=settings,
        outputs={entry.name: entry for entry in await programs},
    )


async def got(name: str, work: Callable[[], Value], within: float) -> Got[Value]:
    """Return the result of `work` in a thread of its own, which is left behind if it takes longer. Raises nothing."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(within):
            value = await detached(f"bundle: {name}", work)
    except TimeoutError:
        return Got(why=f"no answer within {within:g} s; it is left running", seconds=time.monotonic() - began)
    except Exception as error:  # noqa: BLE001 - whatever a damaged ledger, trace or answer leads to: the archive is made without it
        text = " ".join((str(error) or type(error).__name__).split())
        return Got(why=text[:_WHY_MOST], seconds=time.monotonic() - began)
    return Got(value=value, seconds=time.monotonic() - began)


def _located(order: Order, status: Got[dict[str, Any]]) -> Order:
    """Return the order with the state directory of the daemon that answered, which an option of its unit may name."""
    folder = (status.value or {}).get("state_dir")
    return order if order.state_dir_named or not isinstance(folder, str) else replace(order, state_dir=Path(folder))


def _status(daemon: Daemon, findings: tuple[str, ...]) -> dict[str, Any]:
    """Return the status document. Raises ValueError if it cannot be read, as from a daemon of another version."""
    status: dict[str, Any] = daemon.call("status")
    try:
        ledger.of_status(status, findings)
        list(boards.of_documents(status.get("gpus", ()), "daemon"))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"its status cannot be read by this version ({error!r})"[:_WHY_MOST]) from error
    return status


def _inventory(daemon: Daemon) -> list[dict[str, Any]]:
    """Return the GPUs expected in this machine. Raises ValueError as `_status`."""
    inventory: list[dict[str, Any]] = daemon.call("inventory")
    try:
        list(boards.of_documents(inventory, "daemon"))
    except (AttributeError, TypeError) as error:
        raise ValueError(f"its inventory cannot be read by this version ({error!r})"[:_WHY_MOST]) from error
    return inventory


def _failures(
    order: Order, status: Got[dict[str, Any]], cut: Got[ledger.Slice]
) -> tuple[list[ledger.Failure], tuple[str, ...]]:
    """Return the requested findings, else all failures in force, by the daemon or else by the ledger.

    Also returns the requested ones that are not in the ledger. Raises CommandError if none of them is.
    """
    shown = (
        {}
        if status.value is None
        else {str(track.key): track for track in ledger.of_status(status.value, order.findings)}
    )
    kept = {} if cut.value is None else {str(track.key): track for track in cut.value.failures}
    failures = shown if status.value is not None and not order.findings else {**kept, **shown}
    if cut.value is None:
        return list(failures.values()), ()
    not_found = tuple(finding for finding in order.findings if finding not in failures)
    if not_found and not failures:
        named = " or ".join(repr(finding[:200]) for finding in not_found[:_NAMED_MOST])
        standing = sorted(str(track.key) for track in cut.value.state.tracks.values() if track.raised)
        force = ", ".join(standing[:_NAMED_MOST]) or "none"
        raise CommandError(f"no finding {named} is in the ledger. In force: {force}. gpuwarden events --json lists all")
    return list(failures.values()), not_found


def _unknown(order: Order, status: Got[dict[str, Any]], cut: Got[ledger.Slice]) -> str:
    """Return why it is not known what fails, if no finding was found; empty if none is in force."""
    if cut.value is not None:
        return ""
    if status.value is None:
        return f"neither the daemon nor the ledger could be read: {status.why}; {cut.why}"
    if order.findings:
        return f"the daemon no longer has what was requested, and the ledger could not be read: {cut.why}"
    return ""


async def _of_program(row: Program, order: Order, work: Path) -> Entry:
    """Run one program and return its output, or why there is none."""
    file = work / row.name.removesuffix(".gz")
    command = row.command(order, file)
    entry = Entry(name=row.name, about=row.about, how=" ".join(command).replace(str(file), file.name))
    if order.anonymise and not (row.anonymous or row.read):
        return replace(entry, state=Completeness.LEFT_OUT, why=ANONYMOUS)
    unit = "".join(char if char.isalnum() else "-" for char in row.name)
    done = await program(command, name=unit, deadline=row.deadline, most=row.most, fine=row.fine)
    content, why = done.output, done.why
    if row.writes and not done.absent:
        content, lacks = _written(file, row.most)
        why = "; ".join(filter(None, (why, lacks)))
    entry = replace(entry, seconds=done.seconds)
    return entry.holding(content, why) if content else entry.missing(why or f"it wrote nothing{done.stderr}")


def _written(file: Path, most: int) -> tuple[bytes, str]:
    """Return what a program wrote to its file, or to that with `.gz` appended, and why it is incomplete."""
    packed = file.with_name(f"{file.name}.gz")
    is_packed = packed.exists()
    try:
        with (packed if is_packed else file).open("rb") as opened:
            content = opened.read(most + 1)
    except OSError as error:
        return b"", f"it wrote no file: {error.strerror}"
    if content and not is_packed:
        content = gzip.compress(content)  # its name in the archive ends with .gz
    return content[:most], f"only the first {most} bytes are kept" if len(content) > most else ""


def _box(state_dir: Path, work: Path) -> Box:
    files, left_out = box.traces(state_dir, items.BOX_MOST)
    return Box(files=files, left_out=left_out, series=series_of(files, work))


def _configuration(order: Order) -> str:
    if order.config_fault:
        raise ValueError(order.config_fault)
    return secrets.shown(order.config)
