"""`gpuwarden explain`: the tables by which the daemon judges, in words."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from textwrap import fill

from gpuwarden.cli.parser import CommandError, Parser
from gpuwarden.cli.words import ADVICE, UNKNOWN_REASONS
from gpuwarden.durations import format_duration
from gpuwarden.health.condition import Condition
from gpuwarden.health.conditions import CONDITIONS
from gpuwarden.health.sxid_catalogue import SXIDS, sxid_row
from gpuwarden.health.xid_catalogue import XIDS, XidClass, xid_row
from gpuwarden.publish.status import ENDS_WHEN

HELP = """
Explains an Xid, an SXid, or what status gives as a reason: what it means, what to do, and why it is classed so. Without
WHAT it lists all there is to explain, Xids aside.

examples:
  gpuwarden explain
  gpuwarden explain xid 79
  gpuwarden explain sxid 20034
  gpuwarden explain row_remap_failed
  gpuwarden explain xid.79@gpu/0000:4e:00.0      the id of a finding will do
"""

_NUMBERED = re.compile(r"(s?xid)?[ .]?(\d{1,9})", re.ASCII)

_CLASSES = {
    XidClass.RECORD: "record: kept in the history, the GPU stays healthy",
    XidClass.WARNING: "warning: the node may go on taking work",
    XidClass.FAILURE: "failure: the node should take no more work",
}

_SCOPES = {"node": "the node", "gpu": "one GPU", "link": "one NVLink of a GPU", "switch": "one NVSwitch"}


def arguments(parser: Parser) -> None:
    parser.add_argument("what", metavar="WHAT", nargs="*", help="xid N, sxid N, or a code or id that status shows")


def main(options: argparse.Namespace) -> int:
    print("\n".join(explanation(" ".join(options.what))))
    return 0


def explanation(what: str) -> Iterable[str]:
    """Lines. Raises CommandError for what nobody knows."""
    code = what.strip().lower().partition("@")[0]
    if not code:
        return _contents()
    if numbered := _NUMBERED.fullmatch(code):
        number = int(numbered[2])
        return _sxid(number) if numbered[1] == "sxid" else _xid(number)
    code = code.partition(".")[0]
    if code in CONDITIONS:
        return _condition(CONDITIONS[code])
    if code in UNKNOWN_REASONS:
        return _facts(code, {"meaning": UNKNOWN_REASONS[code], "health": "unknown: neither healthy nor failed"})
    raise CommandError(f"there is nothing to explain about {what[:60]!r}; {_near(code)}")


def _near(code: str) -> str:
    known = [*CONDITIONS, *UNKNOWN_REASONS]
    near = [name for name in known if code in name] or get_close_matches(code, known, n=3)
    return f"did you mean {' or '.join(near)}?" if near else "'gpuwarden explain' lists what there is"


def _contents() -> Iterator[str]:
    yield from (f"{row.code:<24} {row.title}" for row in CONDITIONS.values())
    yield "\nreasons for which the health of a node is unknown:"
    yield from (f"{code:<24} {meaning}" for code, meaning in UNKNOWN_REASONS.items() if code not in CONDITIONS)
    yield f"\n'xid N' for {len(XIDS)} Xids, 'sxid N' for {len(SXIDS)} SXids"


def _xid(number: int) -> Iterator[str]:
    row = xid_row(number)
    facts = {
        "class": _CLASSES[row.klass],
        "to do": ADVICE[row.advice],
        "note": row.note,
        "vendor's action": row.action,
        "from": row.provenance,
    }
    return _facts(f"Xid {number}: {row.meaning}", facts)


def _sxid(number: int) -> Iterator[str]:
    row = sxid_row(number)
    fatal = "fatal: traffic over the NVSwitch stops until it is reset" if row.fatal else "not fatal: traffic goes on"
    facts = {"class": fatal, "note": row.note, "from": row.provenance}
    return _facts(f"SXid {number}: {row.meaning}", facts)


def _condition(row: Condition) -> Iterator[str]:
    raised = f"after it was seen for {format_duration(row.rise)}" if row.rise else "at once"
    gone = f", for {format_duration(row.fall)}" if row.fall else ""
    facts = {
        "about": _SCOPES[row.scope],
        "severity": f"{row.severity} at worst",
        "to do": ADVICE[row.advice],
        "why": row.why,
        "raised": raised,
        "ends when": f"{ENDS_WHEN[row.latch]}{gone}",
        "quiet during": ", ".join(row.depends_on),
        "from": row.source,
    }
    return _facts(f"{row.code}: {row.title}", facts)


def _facts(title: str, facts: dict[str, str]) -> Iterator[str]:
    yield title
    for name, text in facts.items():
        if text:
            yield fill(text, width=110, initial_indent=f"  {name + ':':<17}", subsequent_indent=" " * 19)
