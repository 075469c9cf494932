"""Silences consequences: the root cause is reported, findings that depend on it are not.

`depends_on` in the table of conditions is transitive. A consequence is silenced only by a finding that is at least as
severe, so that silence never makes a node appear better, and never by a finding of a shadow check. The silencing
finding is the root of the chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from gpuwarden.health.conditions import condition
from gpuwarden.health.memory import Track
from gpuwarden.health.model import Key, Severity


@lru_cache(maxsize=1024)
def causes(code: str) -> frozenset[str]:
    """Return every condition of which `code` can be a direct or indirect consequence."""
    upstream: set[str] = set()
    ahead = [code]
    while ahead:
        row = condition(ahead.pop())
        new = set(row.depends_on if row is not None else ()) - upstream
        upstream |= new
        ahead += new
    return frozenset(upstream - {code})


def root_causes(raised: Sequence[Track], shadows: Iterable[str]) -> Mapping[Key, Key]:
    """Return the root cause of each finding that is a consequence. `shadows`: codes of shadow checks, never causes."""
    counted = [track for track in raised if track.key.code not in frozenset(shadows)]
    codes = {track.key.code for track in counted}
    direct: dict[Key, Key] = {}
    for track in raised:
        above = causes(track.key.code) & codes
        root = next((c for c in counted if c.key.code in above and _brings_about(c, track)), None) if above else None
        if root is not None:
            direct[track.key] = root.key
    return {key: _end(root, direct) for key, root in direct.items()}


def _end(key: Key, direct: Mapping[Key, Key]) -> Key:
    for _ in direct:
        key = direct.get(key, key)
    return key


def as_severe(cause: Severity | None, severity: Severity) -> bool:
    """Return True if a cause of that severity is at least as severe as `severity`."""
    return cause is Severity.FAILURE or severity is not Severity.FAILURE


def _brings_about(cause: Track, track: Track) -> bool:
    """Return True if `cause` can cause `track`: it is as severe, and of the node, the same GPU or the same subject.

    A missing GPU without a slot causes nothing.
    """
    row = condition(cause.key.code)
    subject, other = cause.key.subject, track.key.subject
    node_wide = row is not None and row.scope == "node"
    severe = as_severe(cause.severity, track.severity)
    return severe and (node_wide or subject == other or (subject.slot != "" and subject.slot == other.slot))
