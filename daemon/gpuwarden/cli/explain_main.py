"""What `gpuwarden explain` does."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from textwrap import fill

from gpuwarden.actuators.reasons import REASONS
from gpuwarden.base.durations import format_duration
from gpuwarden.cli import explain_codes as codes
from gpuwarden.cli.parser import CommandError
from gpuwarden.cli.sources import faulty, sources
from gpuwarden.config.model import ConfigError, load
from gpuwarden.features import parts
from gpuwarden.health.condition import Condition
from gpuwarden.health.conditions import CONDITIONS, condition
from gpuwarden.health.dcgm.catalogue import DCGM_CODES, dcgm_named
from gpuwarden.health.runbooks import RUNBOOKS, UNKNOWN_RUNBOOK, address
from gpuwarden.health.to_do import of_condition
from gpuwarden.health.unknown_reasons import UNKNOWN_REASONS
from gpuwarden.health.view import Rules
from gpuwarden.health.xid.catalogue import XIDS
from gpuwarden.health.xid.sxid_catalogue import SXIDS
from gpuwarden.publish.returning import comes_back_when
from gpuwarden.publish.status import ENDS_WHEN

_OF_EXCLUSION = REASONS | {
    code: facts for feature in parts("reasons").values() for code, facts in feature.REASONS.items()
}
"""Explanations of words about exclusions and returns, those of features included: facts by code."""
_NUMBERED = re.compile(r"(s?xid)?[ .]?(\d{1,9})", re.ASCII)


_DCGM = re.compile(r"dcgm (?P<code>.+)")


_SCOPES = {
    "node": "the node",
    "gpu": "one GPU",
    "link": "one NVLink of a GPU",
    "switch": "one NVSwitch",
    "port": "one network port",
    "adapter": "one network adapter",
    "mount": "one mount",
    "service": "one service",
    "plugin": "one site check",
    "job": "one job",
}


def main(options: argparse.Namespace) -> int:
    rules, runbooks, note = _site(options)
    print("\n".join(explanation(" ".join(options.what), rules, options.driver)).replace(RUNBOOKS, runbooks))
    if note:
        print(f"\n{note}")
    return 0


def _site(options: argparse.Namespace) -> tuple[Rules, str, str]:
    """The site's rules, its runbooks' address, and a note. Only a configuration given by --config must be readable."""
    try:
        config = load(sources(options, os.environ))
    except ConfigError as error:
        if options.config is not None:
            raise faulty(error) from error
        return (
            Rules(),
            RUNBOOKS,
            "This host's configuration cannot be used and is ignored; see 'gpuwarden config check'.",
        )
    return Rules(checks=config.checks, xids=config.xids, sxids=config.sxids), config.publish.runbooks, ""


def explanation(text: str, rules: Rules | None = None, driver: str = "") -> Iterable[str]:
    """Yield the explanation's lines. Raises CommandError for an unknown code."""
    rules = rules or Rules()
    if codes.LINE.search(text):
        return _facts(*codes.line(text, rules, driver))
    code = text.strip().lower().partition("@")[0]
    if not code:
        return _contents()
    if numbered := _NUMBERED.fullmatch(code):
        number = int(numbered[2])
        return _facts(*(codes.sxid if numbered[1] == "sxid" else codes.xid)(number, rules))
    if named := _DCGM.fullmatch(code):
        return _dcgm(named["code"], rules)
    return _of_status(text, code.partition(".")[0], rules)


def _of_status(text: str, code: str, rules: Rules) -> Iterator[str]:
    dcgm_code = None if code in CONDITIONS or not code.startswith("dcgm_") else dcgm_named(code)
    if dcgm_code is not None and dcgm_code.condition != code:
        return _dcgm(code, rules)
    if (row := condition(code)) is not None:
        return _condition(row, rules)
    if code in UNKNOWN_REASONS:
        reason = UNKNOWN_REASONS[code]
        runbook = f"{RUNBOOKS}/{UNKNOWN_RUNBOOK}"
        facts = {
            "meaning": reason.meaning,
            "health": "unknown: neither healthy nor failed",
            "to do": reason.to_do,
            "runbook": runbook,
        }
        return _facts(code, facts)
    if code in _OF_EXCLUSION:
        return _facts(code, _OF_EXCLUSION[code])
    raise CommandError(f"no explanation for {text[:60]!r}; {_suggestion(code)}")


def _dcgm(name: str, rules: Rules) -> Iterator[str]:
    """Explain a DCGM code and its condition."""
    code = codes.dcgm(name)
    yield from _facts(*codes.dcgm_facts(code))
    if (row := condition(code.condition)) is not None:
        yield ""
        yield from _condition(row, rules)


def _suggestion(code: str) -> str:
    names = [*CONDITIONS, *UNKNOWN_REASONS, *_OF_EXCLUSION]
    similar = [name for name in names if code in name] or get_close_matches(code, names, n=3)
    return f"did you mean {' or '.join(similar)}?" if similar else "'gpuwarden explain' lists all"


def _contents() -> Iterator[str]:
    yield from (f"{row.code:<24} {row.title}" for row in CONDITIONS.values())
    yield "\nreasons for which the health of a node is unknown:"
    yield from (f"{code:<24} {reason.meaning}" for code, reason in UNKNOWN_REASONS.items() if code not in CONDITIONS)
    yield "\nother texts of status about exclusions:"
    yield from (f"{code:<24} {facts['meaning']}" for code, facts in _OF_EXCLUSION.items())
    yield f"\n'xid N' for {len(XIDS)} Xids, 'sxid N' for {len(SXIDS)} SXids, 'dcgm N' for {len(DCGM_CODES)} codes of DCGM"


def _condition(row: Condition, rules: Rules) -> Iterator[str]:
    raised = f"after it was observed for {format_duration(row.rise)}" if row.rise else "at once"
    gone = f", for {format_duration(row.fall)}" if row.fall else ""
    facts = {
        "about": _SCOPES[row.scope],
        "severity": f"{row.severity} at worst" + ", in shadow: only reported" * row.shadow,
        **codes.site_checks(rules, row.code),
        "to do": of_condition(row.code, row.advice),
        "advice": row.advice,
        "why": row.why,
        "raised": raised,
        "ends when": row.ends or f"{ENDS_WHEN[row.latch]}{gone}",
        "node back when": comes_back_when(row.severity, row.advice, shadow=row.shadow),
        "quiet during": ", ".join(row.depends_on),
        "from": row.source,
        "runbook": address(row.code),
    }
    return _facts(f"{row.code}: {row.title}", facts)


def _facts(title: str, facts: dict[str, str]) -> Iterator[str]:
    yield title
    for name, text in facts.items():
        if text:
            yield fill(
                text,
                width=110,
                initial_indent=f"  {name + ':':<17}",
                subsequent_indent=" " * 19,
                break_long_words=False,
                break_on_hyphens=False,
            )
