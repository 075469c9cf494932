"""Detects an NVLink with recurring errors while its siblings have none.

Among the `LinkCount`s of all NVLinks of GPUs with the same name, a link is suspected if

- *now*: its share of the marks of the last day is too large for chance, and its marks are in three different hours; or
- *ever*: its counter was at least 50 when first read, and twenty times what all other links have counted by now, and
  the link has two marks since;

and the other links of its GPU have at most twice its marks. If they grow together, no single link is the cause.

**Chance**: if all links had errors at one rate, each of the T marks of the day would belong to this link with
probability 1/N (Poisson counts, given their sum). The probability of k or more marks is a binomial tail. It is computed
in whole numbers and must be below 1 in 10^10. If no other link has marks, a link needs 5 of 144 links, 6 of 72, 8 of
18, 12 of 8, 34 of 2. A link can be marked 72 times a day, and each mark is one trial, so there are fewer than 72 false
alarms in 10^10 per link and day: one in four months on 8,000 nodes of 144 links. This holds while marks have
independent causes, which cells, hours and the comparison with the same GPU ensure.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import comb
from typing import NamedTuple

from gpuwarden.health.detection import Detection
from gpuwarden.health.model import Evidence, Key, Sighting, link
from gpuwarden.health.nvlink.link_counters import CELL, COUNTED, DAY, LinkCount, cell_at
from gpuwarden.health.state import State
from gpuwarden.health.view import Sight
from gpuwarden_collectors.facts import GpuFacts, LinkFacts

ODDS = 10**10
HOURS = 3
CELLS_OF_AN_HOUR = round(3600 / CELL)
EVER, EVER_TIMES, AGAIN = 50, 20, 2
MOST_MARKS = 4096
"""Marks of all links in a day above which no link is suspected: the whole fabric has errors, and sums get large."""


def by_chance_below(marks: int, of_all: int, links: int) -> bool:
    """Return True if the probability of `marks` or more of `of_all` on one of `links` is below 1 in `ODDS`. Exact."""
    if links < 2 or marks * links <= of_all or of_all > MOST_MARKS:
        return False
    others = links - 1
    every: int = links**of_all
    fewer: int = sum(comb(of_all, k) * others ** (of_all - k) for k in range(marks))
    return (every - fewer) * ODDS < every


class _Member(NamedTuple):
    facts: GpuFacts
    link: LinkFacts
    known: LinkCount
    marks: tuple[int, ...]
    """Marked cells of the last day."""


def nvlink_link_errors(state: State, sight: Sight) -> Detection:
    cell = cell_at(sight.now)
    groups: dict[str, list[_Member]] = {}
    for facts in sight.answering:
        counts = state.links.get(facts.slot, {})
        for each in facts.links if counts else ():
            if (count := counts.get(each.link)) is not None:
                marks = tuple([mark for mark in count.marks if cell - DAY < mark <= cell])
                groups.setdefault(facts.name, []).append(_Member(facts, each, count, marks))
    sightings = [sighting for group in groups.values() for sighting in _suspects(group)]
    return Detection(
        tuple(sightings), frozenset(link(m.facts.slot, m.link.link) for group in groups.values() for m in group)
    )


def _suspects(group: list[_Member]) -> Iterator[Sighting]:
    of_all = sum([len(member.marks) for member in group])
    ever = sum([member.known.value for member in group])
    for member in group:
        if len(member.marks) < AGAIN or not _apart(member, group):
            continue
        others = ever - member.known.value
        now = len({mark // CELLS_OF_AN_HOUR for mark in member.marks}) >= HOURS
        if (now and by_chance_below(len(member.marks), of_all, len(group))) or member.known.base >= max(
            EVER, EVER_TIMES * others
        ):
            yield _sighting(member, of_all, others, len(group))


def _apart(member: _Member, group: list[_Member]) -> bool:
    """Return True if the other links of the GPU have not grown with this one."""
    beside = sum([len(other.marks) for other in group if other.facts is member.facts and other is not member])
    return beside <= 2 * len(member.marks)


def _sighting(member: _Member, of_all: int, others: int, links: int) -> Sighting:
    evidence: Evidence = {
        "link": member.link.link,
        "ten_minutes_with_errors": len(member.marks),
        "hours": 24,
        "of_all_other_links": of_all - len(member.marks),
        "links": links,
        "counted": member.known.value,
        "counted_by_all_others": others,
    }
    if member.link.remote:
        evidence = {**evidence, "other_end": member.link.remote}
    return Sighting(Key(COUNTED, link(member.facts.slot, member.link.link)), evidence)
