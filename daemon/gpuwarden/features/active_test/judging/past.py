"""The stored record of a test on one GPU: conditions, speeds, errors. Its fields are the keys of the event TESTED."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Annotated

from gpuwarden.features.active_test.judging.outcome import ActiveVerdict, Outcome
from gpuwarden.features.active_test.judging.thresholds import CLOCKS_SET, HOT, PAST_LEAST, WARM
from gpuwarden.health.event_data import OTHER_KEYS, cut, no_key, otherwise
from gpuwarden.health.model import Evidence, Severity
from gpuwarden.health.statistics import median
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

if TYPE_CHECKING:  # loaded once there is a test
    from gpuwarden_collectors.active_test.facts import GpuTest

TEXT_MOST, NAME_MOST, FIGURES_MOST = 400, 64, 1024
"""Most characters stored of a text, of a name, of all figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastTest:
    """One test on one GPU, about 1 KiB."""

    at: Stamp = field(metadata=no_key())
    """When the daemon took its result."""
    uuid: Annotated[str, cut(NAME_MOST)]
    """UUID of the GPU."""
    started: float
    """Unix time of its start, by which a result that is submitted twice is stored once."""
    level: Level = field(metadata=otherwise(Level.GATE))
    """Level of the test."""
    verdict: ActiveVerdict = field(metadata=otherwise(ActiveVerdict.NO_VERDICT))
    """Verdict on the GPU."""
    seconds: float
    """How long it took."""
    age: float = 0.0
    """Seconds of boot time from its start until its result was taken, after the whole run. 0 from an older version."""
    name: Annotated[str, cut(NAME_MOST)]
    """Product name of the GPU."""
    driver: Annotated[str, cut(NAME_MOST)]
    """Version of the driver."""
    kernels_version: int
    """Version of the test's kernels."""
    power_limit: int | None = None
    """Enforced power limit, mW."""
    clocks_set: bool = False
    """A clock was fixed by a setting (reason bit 0x2)."""
    band: int = -1
    """Band of the temperature before the test: 0 cold, 1 warm, 2 hot, -1 not known."""
    figures: Annotated[str, cut(FIGURES_MOST)] = ""
    """Speeds and cycles as `name=value`, separated by spaces; none of a test that was not alone on the GPU."""
    deep: Annotated[str, cut(TEXT_MOST)] = ""
    """Names of figures far below own past and siblings, separated by spaces."""
    failed: Annotated[str, cut(TEXT_MOST)] = ""
    """Names of findings that are failures (`test_failed.memory`), separated by spaces."""
    warned: Annotated[str, cut(TEXT_MOST)] = ""
    """Names of findings that are warnings, separated by spaces."""
    text: Annotated[str, cut(TEXT_MOST)] = ""
    """What was found, a line for each finding in the order of `findings`; or why there is no verdict."""
    memory_share: float = 0.0
    """Share of the GPU's memory that was tested to the end."""
    xids: int = 0
    """Xids of the test's own process that were set aside."""
    acknowledged: Annotated[str, cut(TEXT_MOST)] = ""
    """Names of its findings that an operator acknowledged."""
    unjudged: Annotated[str, cut(TEXT_MOST)] = ""
    """Names of findings that it cannot judge, so that it ends none of them."""
    others: Evidence = field(default_factory=dict, metadata=OTHER_KEYS)
    """Keys that another version wrote."""

    @property
    def findings(self) -> list[str]:
        """Return the names of all findings of the test, including those that an operator acknowledged."""
        return f"{self.failed} {self.warned}".split()

    def text_of(self, name: str) -> str:
        """Return the text of one finding; the whole text if an older version wrote it or not all texts fit."""
        lines = dict(zip(self.findings, self.text.split("\n"), strict=False))
        return lines.get(name, "") if len(lines) == len(self.findings) else self.shown

    @property
    def shown(self) -> str:
        """Return the text of the result in one line."""
        return self.text.replace("\n", "; ")

    def found(self, name: str) -> bool:
        """True if the test made this finding and no operator acknowledged it."""
        return name in self.findings and name not in self.acknowledged.split()

    def values(self) -> Mapping[str, float]:
        """Return the figures by name. Values that are not positive numbers are left out."""
        matches = (_FIGURE.fullmatch(word) for word in self.figures.split())
        return {match[1]: value for match in matches if match and 0 < (value := float(match[2])) < math.inf}


_FIGURE = re.compile(r"([a-z0-9_]{1,32})=(\d{1,16}(?:\.\d{1,16})?(?:e\+\d{1,4})?)", re.ASCII)


def measured(test: GpuTest) -> dict[str, float]:
    """Return the speeds of one test and the cycles of its kernels, by name."""
    by_name = {kernel.kernel: kernel for kernel in test.kernels}
    figures: dict[str, float] = {}
    if (int8 := by_name.get("int8")) is not None:
        figures["int8"] = int8.rate
    if test.memory is not None:
        figures |= {"verify": test.memory.verify, "write": test.memory.write}
    if test.pcie is not None:
        figures |= {"to_device": test.pcie.to_device, "to_host": test.pcie.to_host}
    if read := [peer.speed for peer in test.peers if not peer.error]:
        figures["peers"] = median(read)
    figures |= {f"cycles_{name}": kernel.cycles for name, kernel in by_name.items()}
    return {name: value for name, value in figures.items() if 0 < value < math.inf}


def band(temperature: int | None) -> int:
    return -1 if temperature is None else (temperature >= WARM) + (temperature >= HOT)


def kept(test: GpuTest, outcome: Outcome, at: Stamp, xids: Sequence[int] = ()) -> PastTest:
    """Return the record of one test on one GPU and of its judgement, as the event TESTED stores it."""
    figures = measured(test) if outcome.figures_good else {}
    memory = test.memory
    by_severity = {
        severity: " ".join(dict.fromkeys(finding.name for finding in outcome.findings if finding.severity is severity))
        for severity in Severity
    }
    return PastTest(
        at=at,
        uuid=test.uuid[:NAME_MOST],
        started=test.started.wall,
        level=test.level,
        verdict=outcome.verdict,
        seconds=round(test.seconds, 1),
        age=round(max(0.0, at.boottime - test.started.boottime), 1),
        name=test.name[:NAME_MOST],
        driver=test.driver[:NAME_MOST],
        kernels_version=test.kernels_version,
        power_limit=test.power_limit,
        clocks_set=bool(test.reasons & CLOCKS_SET),
        band=band(test.temperature),
        figures=" ".join(
            f"{name}={value:.5g}" for name, value in figures.items() if _FIGURE.fullmatch(f"{name}={value:.5g}")
        ),
        deep=" ".join(outcome.deep),
        failed=by_severity[Severity.FAILURE],
        warned=by_severity[Severity.WARNING],
        text=_text(outcome, f"{by_severity[Severity.FAILURE]} {by_severity[Severity.WARNING]}".split()),
        memory_share=round(min(1.0, memory.tested / memory.total), 4)
        if memory and memory.total > 0 and memory.marches
        else 0.0,
        xids=len(xids),
        unjudged=" ".join(outcome.unjudged),
    )


def _text(outcome: Outcome, names: Sequence[str]) -> str:
    """Return the texts of the findings `names`, one a line, each with an equal share of the room; without findings, the
    outcome's own text.
    """
    lines = ["; ".join(finding.text for finding in outcome.findings if finding.name == name) for name in names]
    return "\n".join(line[: TEXT_MOST // len(lines) - 1] for line in lines) if lines else outcome.text[:TEXT_MOST]


def lately(past: Iterable[PastTest], now: float, within: float) -> list[PastTest]:
    """Return the results of the last `within` seconds of wall time. Those dated in the future are left out."""
    return [test for test in past if 0 <= now - test.at.wall <= within]


def own_median(past: Iterable[PastTest], figure: str, alike: Callable[[PastTest], bool]) -> float | None:
    """Return the median of a figure over the results that are `alike`; None if fewer than `PAST_LEAST` have it."""
    values = [value for test in past if alike(test) and (value := test.values().get(figure)) is not None]
    return median(values) if len(values) >= PAST_LEAST else None
