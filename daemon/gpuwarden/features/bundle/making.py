"""Makes one archive: gathers, replaces names, makes the pages, and writes it whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from gpuwarden import __version__
from gpuwarden.cli.parser import CANNOT_CREATE, CommandError
from gpuwarden.features.bundle import index_page, items, rma
from gpuwarden.features.bundle.anonymous import renamed
from gpuwarden.features.bundle.archive import manifest, published, work_folder, written
from gpuwarden.features.bundle.contents import Contents, contents_of
from gpuwarden.features.bundle.entry import Completeness, Entry
from gpuwarden.features.bundle.gathering import gathered
from gpuwarden.features.bundle.order import Order
from gpuwarden.health.view import Rules
from gpuwarden_collectors.dataclass import dataclass

_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_")
_NAME_MOST = 64
_TRIES = 100
"""Names to try if other archives of the same second have one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A finished archive."""

    file: Path
    size: int
    """Bytes."""
    sha256: str
    """Its hash."""
    findings: tuple[str, ...]
    """Ids of the findings that it is about."""
    not_found: tuple[str, ...]
    """Requested findings that the ledger does not have."""
    unknown: str
    """Why it is not known what failed; empty if it is known."""
    missing: tuple[tuple[str, str], ...]
    """Names of files that are missing or incomplete, each with the reason."""
    note: str
    """A further note; empty if there is none."""


async def make(order: Order, output: Path) -> Made:
    """Make an archive. `output`: its name, or a folder. Raises CommandError, and then leaves no file."""
    try:
        return await _make(order, output)
    except FileExistsError as error:
        raise CommandError(
            f"{error.filename2 or error.filename or output} exists already: name another file, or remove it",
            CANNOT_CREATE,
        ) from error
    except OSError as error:
        to_do = (
            "free some space there, or name another folder with --output"
            if error.errno in (errno.ENOSPC, errno.EDQUOT)
            else "name another folder with --output"
        )
        raise CommandError(f"cannot write the archive to {output}: {error.strerror}; {to_do}", CANNOT_CREATE) from error


async def _make(order: Order, output: Path) -> Made:
    folder, is_folder = _place(output)
    now = time.time()
    top = f"gpuwarden-bundle-{_node(order)}-{datetime.fromtimestamp(now, UTC):%Y%m%dT%H%M%SZ}"
    with work_folder(folder) as work:
        collected = await gathered(order, work)
        contents = contents_of(
            collected, node=order.config.node, rules=_rules(order), now=now, anonymise=order.anonymise
        )
        if order.anonymise:
            contents = renamed(contents, _hosts(order))
        entries = list(_with_pages(contents))
        about: dict[str, object] = {
            "made_at": contents.overview.made_at,
            "by": f"gpuwarden {__version__}",
            "node": contents.overview.host["node"],
            "findings": [failure["id"] for failure in contents.overview.failures],
            "anonymised": order.anonymise,
        }
        entries.append(Entry(name="manifest.json", about="", how="", content=manifest(entries, about)))
        packed, end, note = await written(entries, top, work)
        size = packed.stat().st_size
        names = (
            [folder / f"{top}{more}{end}" for more in ("", *(f"-{n}" for n in range(2, _TRIES)))]
            if is_folder
            else [output]
        )
        file, digest = _published(packed, names)
    return Made(
        file=file,
        size=size,
        sha256=digest,
        findings=tuple(str(failure.key) for failure in collected.failures),
        not_found=collected.not_found,
        unknown=collected.unknown,
        missing=tuple((entry.name, entry.why) for entry in entries if entry.state is not Completeness.COMPLETE),
        note=note,
    )


def _place(output: Path) -> tuple[Path, bool]:
    """Return the folder of the archive, and whether only a folder was named. Raises FileExistsError."""
    if output.is_dir():
        return output, True
    if os.path.lexists(output):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(output))
    return output.parent, False


def _published(packed: Path, names: list[Path]) -> tuple[Path, str]:
    """Give the archive the first of the names that is free."""
    for name in names[:-1]:
        try:
            return name, published(packed, name)
        except FileExistsError:
            continue
    return names[-1], published(packed, names[-1])


def _with_pages(contents: Contents) -> Iterator[Entry]:
    yield Entry(
        name="index.html",
        about="this page: begin here",
        how="made of the other files",
        content=index_page.page(contents)[: items.PAGES_MOST],
    )
    yield Entry(
        name="rma.txt", about="a text for the vendor's form", how="made of the other files", content=rma.text(contents)
    )
    yield from contents.entries


def _rules(order: Order) -> Rules:
    return Rules(checks=order.config.checks, xids=order.config.xids, sxids=order.config.sxids)


def _hosts(order: Order) -> Iterator[str]:
    """Yield all names of this host, with its domain and without."""
    for name in {order.config.node, os.uname().nodename, *_machine_names()}:
        yield name
        yield name.partition(".")[0]


def _machine_names() -> Iterator[str]:
    for file in ("/etc/machine-id", "/etc/hostname"):
        try:
            yield Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            continue


def _node(order: Order) -> str:
    if order.anonymise:
        return "host"
    return "".join(char if char in _SAFE else "_" for char in order.config.node)[:_NAME_MOST].lstrip(".") or "node"


def document(made: Made) -> str:
    """Return the result as JSON, for programs."""
    return json.dumps(
        {
            "file": str(made.file),
            "bytes": made.size,
            "sha256": made.sha256,
            "findings": list(made.findings),
            "not_found": list(made.not_found),
            "missing": [{"name": name, "why": why} for name, why in made.missing],
            "note": made.note,
        }
    )
