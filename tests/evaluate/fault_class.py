"""What a fault is to the evaluation: how it strikes, what must be reported of it, and within what time.

`grace` is stated time: what the same signs may mean without a fault (a driver reload, a reset, a training link, a peak of
heat) and which therefore passes before anything is reported. A verdict is in time within `grace` and two passes of the first
record that shows the fault; where a kernel line shows it, within one second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from evaluate.clockwork import Process
from evaluate.node import Node

Strike = Callable[[Node, int], Process]

LINE, ANY, ERROR = "line", "any", "error"
TWO_PASSES, ONE_SECOND = 10.0, 1.0
EVERY_MODEL = ("B200", "H100", "H100, driver 535", "A100")
NEW_DRIVER = ("B200", "H100")
FABRIC = ("B200", "H100", "H100, driver 535")
"""Models whose fabric has a state, and whose driver knows the recovery action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultClass:
    """`expects`: findings, any of which is the right one, by code and detail as in `xid.79`; `xid.*` is any Xid. `about`: their
    subject's kind.

    `shown`: what shows it first: a kernel line, a pass of the collector of that name, or a pass of either NVML or the
    bus, an error of the daemon itself; the first of these that comes `after` seconds or more from the strike on. `also`: findings that are true
    besides, with `@*` on any GPU. `at_once`: operators rely on it, so that every one must be detected. `awaited`: the judge
    has no such condition yet. `lasts`: seconds for which the story goes on after the grace; `ends`: within how many seconds of the
    repair nothing is reported any more, None for what is to be remembered.
    """

    name: str
    strike: Strike
    expects: tuple[str, ...]
    severity: str = "failure"
    about: str = "gpu"
    shown: str = "nvml"
    after: float = 0.0
    grace: float = 0.0
    lasts: float = 60.0
    ends: float | None = 3900.0
    also: tuple[str, ...] = ()
    models: tuple[str, ...] = EVERY_MODEL
    at_once: bool = True
    awaited: bool = False

    @property
    def within(self) -> float:
        """Seconds from where it is shown to the verdict, at most."""
        return self.grace + (ONE_SECOND if self.shown == LINE else TWO_PASSES)

    @property
    def detected_within(self) -> float:
        """Return the seconds from the strike within which it must be detected."""
        return self.after + self.grace + self.lasts


def named(patterns: tuple[str, ...], finding: str) -> bool:
    """Return True if `finding` (code and detail, without subject) is one of `patterns`."""
    return any(finding == p or (p.endswith("*") and finding.startswith(p[:-1])) for p in patterns)
