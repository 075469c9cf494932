"""Replaces names in an archive: equal names are replaced alike in all of its files."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from gpuwarden.base.json_text import parsed
from gpuwarden.features.bundle.contents import Contents
from gpuwarden.features.bundle.entry import Completeness, Entry
from gpuwarden.features.bundle.gathering import ANONYMOUS
from gpuwarden.features.bundle.items import PROGRAMS
from gpuwarden.features.bundle.names import Names, people
from gpuwarden.trace.reader import LINE_MAX

_LEFT_OUT = frozenset({program.name for program in PROGRAMS if not program.anonymous} | {"configuration.toml"})
_TRACE = ".trace.gz"
_UNPACKED_MOST = 256 << 20
"""Most bytes of an unpacked trace."""


def renamed(contents: Contents, hosts: Iterable[str]) -> Contents:
    """Return the archive with other names. Files that may hold any text of the host are left out."""
    documents = [document for entry in contents.entries for document in _documents(entry)]
    names = Names(hosts, [name for document in documents for name in people(document)])
    overview = contents.overview
    return replace(
        contents,
        overview=replace(
            overview,
            host={**names(overview.host), "node": "host", "hostname": "host"},
            failures=[{**names(failure), "slot": failure["slot"]} for failure in overview.failures],
            unknown=names.text(overview.unknown),
            boards=names(overview.boards),
            lines=[names.text(line) for line in overview.lines],
            tried=names(overview.tried),
        ),
        entries=tuple(_renamed(entry, names) for entry in contents.entries),
    )


def _documents(entry: Entry) -> list[Any]:
    if entry.name.endswith(".json") and entry.content:
        return [parsed(entry.content)]
    if entry.name.endswith(".jsonl"):
        return [parsed(line) for line in entry.content.splitlines()]
    return []


def _renamed(entry: Entry, names: Names) -> Entry:
    why = names.text(entry.why)
    how = names.text(entry.how)
    if entry.name in _LEFT_OUT:
        return replace(entry, content=b"", state=Completeness.LEFT_OUT, why=ANONYMOUS, how=how)
    if entry.name.endswith(_TRACE):
        return replace(_trace(entry, names), name=names.text(entry.name), how=how)
    if entry.name.endswith(".jsonl"):
        lines = (json.dumps(names(parsed(line))).encode() for line in entry.content.splitlines())
        content = b"".join(line + b"\n" for line in lines)
    elif entry.name.endswith(".json") and entry.content:
        content = _json(entry.content, names)
    else:
        content = names.text(entry.content.decode("utf-8", "replace")).encode()
    return replace(entry, content=content, why=why, how=how)


def _json(content: bytes, names: Names) -> bytes:
    document = parsed(content)
    if document is None:  # output of a program that is not JSON
        return names.text(content.decode("utf-8", "replace")).encode()
    return (json.dumps(names(document), indent=2) + "\n").encode()


def _trace(entry: Entry, names: Names) -> Entry:
    """Return a trace with other names, up to where it is damaged or exceeds any real size."""
    packed = io.BytesIO()
    why, size = entry.why, 0
    with gzip.GzipFile(fileobj=io.BytesIO(entry.content)) as source, gzip.GzipFile(fileobj=packed, mode="wb") as target:
        try:
            while line := source.readline(LINE_MAX + 1):
                document = parsed(line)
                size += len(line)
                if document is None or size > _UNPACKED_MOST:
                    why = why or "the rest cannot be read"
                    break
                target.write(json.dumps(names(document), separators=(",", ":")).encode() + b"\n")
        except (OSError, EOFError, zlib.error):
            why = why or "the rest cannot be read"
    return replace(
        entry, content=packed.getvalue(), state=Completeness.CUT if why else entry.state, why=names.text(why)
    )
