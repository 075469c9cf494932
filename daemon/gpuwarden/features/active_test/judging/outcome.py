"""The outcome of one run of an active test: a verdict for each GPU, and the findings."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from gpuwarden.health.model import Severity
from gpuwarden_collectors.dataclass import dataclass

TEST_FAILED, TEST_HUNG, SM_SLOW, BANDWIDTH_LOW = "test_failed", "test_hung", "gpu_sm_slow", "gpu_bandwidth_low"
"""The codes of the conditions that a test raises."""


class ActiveVerdict(StrEnum):
    """The verdicts, in the order of the exit codes of `gpuwarden test`. A GPU on which nothing was found is not proven healthy."""

    NOTHING_FOUND = "nothing_found"
    WARNING = "warning"
    FAILURE = "failure"
    NO_VERDICT = "no_verdict"

    @property
    def exit_code(self) -> int:
        return list(ActiveVerdict).index(self)


WORST_FIRST = (ActiveVerdict.FAILURE, ActiveVerdict.NO_VERDICT, ActiveVerdict.WARNING, ActiveVerdict.NOTHING_FOUND)


def worst(verdicts: Iterable[ActiveVerdict]) -> ActiveVerdict:
    """Return the worst verdict of several GPUs; NO_VERDICT if there are none."""
    return min(verdicts, key=WORST_FIRST.index, default=ActiveVerdict.NO_VERDICT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """One thing that a test found."""

    code: str
    """`test_failed`, `test_hung`, `gpu_sm_slow` or `gpu_bandwidth_low`."""
    detail: str
    """What it concerns. `test_failed`: memory, compute, transfer, errors, xid or rate; `gpu_bandwidth_low`: memory,
    pcie or peers; empty for `test_hung` and `gpu_sm_slow`."""
    severity: Severity
    """Warning or failure."""
    text: str
    """Description with figures, for people."""

    @property
    def name(self) -> str:
        """Name of the finding, as in `test_failed.memory`."""
        return f"{self.code}.{self.detail}" if self.detail else self.code


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of an active test on one GPU: the verdict, and the findings that it raises."""

    verdict: ActiveVerdict
    """A failure decides it even if the test otherwise gives no verdict."""
    findings: tuple[Defect, ...] = ()
    """Failures first."""
    text: str = ""
    """Why there is no verdict, or what was not judged."""
    figures_good: bool = False
    """Nothing else used the GPU during the test: its speeds become part of the GPU's past."""
    deep: tuple[str, ...] = ()
    """Figures so far below own past and siblings that finding them again an hour later is a failure."""
    unjudged: tuple[str, ...] = ()
    """Names of findings that the test cannot judge, so that it ends none of them."""
