"""Results become the table that is published, and the list of what must not be."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from evaluate.bounds import proportion, rate
from evaluate.classes import CLASSES
from evaluate.fault_class import FaultClass
from evaluate.fleet import WITHIN, FleetResult
from evaluate.jury import Reported, failures
from evaluate.measure import FaultResult, HealthyResult
from stories.every import STORIES
from stories.left_out import LEFT_OUT
from stories.story import StoryResult, problems

EPISODE = 600.0
"""Seconds: what is reported again of the same kind, on the same node, within so long is one false alarm, not several."""
SHOWN_MOST = 40
WARNINGS_MOST = 5.0  # false ones in 1,000 node-days


@dataclass(frozen=True, slots=True)
class Results:
    seed: int
    faults: Sequence[FaultResult]
    healthy: Sequence[HealthyResult]
    fleet: FleetResult | None = None
    stories: Sequence[StoryResult] = ()


_HEAD = """# How well it judges

For those who decide how far to trust a verdict: what is reported of machines whose faults are in public records, how often
simulated faults are detected, and what is reported of healthy nodes.

```
make evaluate           # a small run, also part of the tests
make evaluate-full      # 1,000 node-days, each fault 20 times; writes this page
```

No real node takes part. The daemon's judge gets what collectors would have read from a machine of a public record (readings,
kernel lines, times; `tests/stories`), during simulated faults, and on simulated healthy days. Shapes and rates of the simulated
ones follow what fleets have published, where the tables in `tests/evaluate` say so. The tables show how often each fault struck,
and the number of healthy days: a page from a shorter run has less of both. The requirements:

- for each machine of a public record exactly what turned out to be true is reported, and nothing else;
- every fault in bold is detected, every time, within two passes of becoming visible (a kernel line: one second) and its stated grace;
- no failure is ever reported of a healthy node, or of a part that the fault did not strike;
- fewer than 5 false warnings in 1,000 healthy node-days;
- a restart of the daemon at any point of any story does not change its end.
"""


def document(results: Results) -> str:
    return "\n".join((_HEAD, *report(results))) + "\n"


def report(results: Results) -> Iterator[str]:
    """Yield the lines of the report in Markdown."""
    yield from _stories(results.stories)
    yield f"## Simulated nodes\n\nSeed {results.seed}. Times in seconds, with a pass of NVML each 5 s.\n"
    yield from _faults(results.faults)
    yield from _healthy(results.healthy)
    yield from _fleet(results.fleet)
    yield from _speed(results)
    yield from _violations(results)


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _faults(results: Sequence[FaultResult]) -> Iterator[str]:
    yield "### Faults\n"
    yield _row(
        "fault",
        "detected",
        "recall, 95 % at least",
        "stated grace",
        "verdict after, median",
        "most",
        "wrong besides",
        "over a restart",
    )
    yield _row(*["---"] * 8)
    for fault in CLASSES:
        mine = [result for result in results if result.fault == fault.name]
        if not mine:
            continue
        if fault.awaited and not any(result.delay is not None for result in mine):
            yield _row(fault.name, "not judged yet", "", "", "", "", "", "")
            continue
        delays = [result.delay for result in mine if result.delay is not None]
        low, _ = proportion(len(delays), len(mine))
        times = (f"{median(delays):.1f}", f"{max(delays):.1f}") if delays else ("", "")
        wrong = sum(bool(result.wrong) for result in mine)
        forgot = sum(bool(result.forgot) for result in mine)
        yield _row(
            f"**{fault.name}**" if fault.at_once else fault.name, f"{len(delays)} of {len(mine)}", f"{low:.0%}",
            f"{fault.grace:g}", *times, wrong or "none", f"{forgot} differ" if forgot else "the same",
        )  # fmt: skip
    yield "\nIn bold: faults for which nodes are taken out at once.\n"


def episodes(reported: Sequence[Reported]) -> list[Reported]:
    """The first of each kind within EPISODE of the one before."""
    kept: list[Reported] = []
    last: dict[tuple[str, str], float] = {}
    for report in reported:
        kind = (report.finding.partition("@")[0], report.severity)
        if kind not in last or not 0 <= report.seconds - last[kind] <= EPISODE:
            kept.append(report)
        last[kind] = report.seconds
    return kept


def _healthy(results: Sequence[HealthyResult]) -> Iterator[str]:
    days = sum(result.days for result in results)
    if not days:
        return
    wrong = [episode for result in results for episode in episodes(result.wrong)]
    false = failures(wrong)
    yield f"### Healthy nodes: {days:g} node-days of 8 GPUs\n"
    yield _row("", "episodes", "per 1,000 node-days", "95 % bounds")
    yield _row(*["---"] * 4)
    for name, count in (("false failures", len(false)), ("false warnings", len(wrong) - len(false))):
        low, high = rate(count, days / 1000)
        yield _row(name, count, f"{1000 * count / days:.1f}", f"{low:.1f} to {high:.1f}")
    yield _row("true warnings (library upgraded under the driver)", sum(r.true_warnings for r in results), "", "")
    detected = [
        _again(result, episode)
        for result in results
        for episode in episodes(result.wrong)
        if episode.severity == "warning"
    ]
    if detected:
        yield "\nFalse warnings:\n"
        yield "\n".join(f"- {episode}" for episode in detected[:SHOWN_MOST])
    counts = {name: sum(r.ordinary.get(name, 0) for r in results) for r in results for name in r.ordinary}
    happened = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in sorted(counts.items()))
    yield f"\nOrdinary events, no faults: {happened}.\n"


def _stories(results: Sequence[StoryResult]) -> Iterator[str]:
    if not results:
        return
    rows = list(zip(STORIES, results, strict=True))
    healthy = [result for story, result in rows if not story.expects]
    accused = sum(bool(result.reported or result.restarted) for result in healthy)
    faulty = [(story, result) for story, result in rows if story.expects]
    recognised = sum(set(story.expects) <= set(result.reported) for story, result in faulty)
    yield "## Machines of public records\n"
    yield (
        f"{len(healthy)} have nothing to report: {accused} of them are accused. {len(faulty)} have something to report: it is "
        f"reported of {recognised}. Each story runs twice, with a restart of the daemon at its end.\n"
    )
    yield _row("id", "source", "story", "reported", "node at the end")
    yield _row(*["---"] * 5)
    for story, result in rows:
        yield _row(story.id, story.source, story.name, ", ".join(result.reported) or "nothing", result.ended)
    if LEFT_OUT:
        yield f"\nNot among them, since the records do not say what decides ({len(LEFT_OUT)}):\n"
        yield _row("id", "why")
        yield _row(*["---"] * 2)
        yield from (_row(name, why) for name, why in LEFT_OUT.items())
    yield ""


def _fleet(fleet: FleetResult | None) -> Iterator[str]:
    if fleet is None:
        return
    yield f"### A bad driver: Xid 119 on every GPU of {fleet.nodes} nodes within {WITHIN / 60:.0f} minutes\n"
    yield (
        f"Detected on {fleet.detected} nodes. {fleet.left} of them were excluded at the end and at most {fleet.most} at once; "
        f"the breaker allows {fleet.allowed} with its defaults.\n"
    )


def _speed(results: Results) -> Iterator[str]:
    yield "### Speed and memory\n"
    passes, spent = sum(r.passes for r in results.healthy), sum(r.spent for r in results.healthy)
    if spent:
        judged = sum(r.judged for r in results.healthy)
        yield (
            f"- healthy nodes: {passes} passes at {passes / spent:.0f} a second and core; {judged} steps were "
            "judged, and those in which nothing could have happened were skipped (`tests/evaluate/quiet.py`)"
        )
    longest = max(results.healthy, key=lambda result: result.days, default=None)
    if longest is not None and longest.days > 2:
        early, late = longest.memory
        yield f"- memory after day 2 and day {longest.days:g} of one node: {early:.1f} and {late:.1f} MiB"
    if results.faults:
        slowest = max(results.faults, key=lambda r: r.slowest_step)
        yield f"- slowest step in any fault: {1000 * slowest.slowest_step:.0f} ms ({slowest.fault})"
    yield ""


def _violations(results: Results) -> Iterator[str]:
    violated = list(violations(results))
    yield "### Violated requirements\n"
    yield "\n".join(f"- {violation}" for violation in violated) if violated else "None."


def violations(results: Results) -> Iterator[str]:
    """Yield each violation with the command that repeats it."""
    rows = {fault.name: fault for fault in CLASSES}
    for result in results.faults:
        for problem in _problems(rows[result.fault], result):
            command = f'--fault "{result.fault}" --times 1 --seed {result.seed}'
            yield f"{result.fault} ({result.model}): {problem}; `{command}`"
    for story, detected in zip(STORIES, results.stories, strict=bool(results.stories)):
        yield from (f"{story.id}, {story.name}: {problem}" for problem in problems(story, detected))
    days, warnings = sum(result.days for result in results.healthy), 0
    for node in results.healthy:
        wrong = episodes(node.wrong)
        warnings += len(wrong) - len(failures(wrong))
        yield from (_again(node, reported) for reported in failures(wrong))
    fleet = results.fleet
    if fleet is not None and (fleet.detected < fleet.nodes or fleet.left > fleet.allowed):
        yield f"a bad driver: detected on {fleet.detected} of {fleet.nodes} nodes, {fleet.left} excluded, {fleet.allowed} allowed"
    if warnings > max(1, math.ceil(WARNINGS_MOST * days / 1000) - 1):  # one in a few days says nothing of the rate
        yield f"{warnings} false warnings in {days:g} node-days, less than {WARNINGS_MOST:g} in 1,000 allowed"


def _again(node: HealthyResult, reported: Reported) -> str:
    return f"healthy {node.model}: {reported}; `--times 0 --nodes 1 --healthy {node.days:g} --seed {node.seed}`"


def _problems(fault: FaultClass, result: FaultResult) -> Iterator[str]:
    if fault.awaited and result.delay is None:
        return
    if result.delay is None:
        yield "not detected"
    elif result.delay > fault.within:
        yield f"detected after {result.delay:.1f} s, {fault.within:g} allowed"
    if result.ended is None:
        yield f"not healthy within {fault.ends:g} s of the repair"
    for reported in result.wrong:
        yield f"reported besides: {reported}"
    if result.forgot:
        yield result.forgot
