"""The keys of `[test]`: which active tests gpuwarden runs by itself, and how many of them at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gpuwarden.base import quiet_hours
from gpuwarden.features import Excludes
from gpuwarden_collectors.active_test.level import Level, higher, rounds
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.options import Misfit, bounded
from gpuwarden_collectors.slurm.nodes import is_partition_name

if TYPE_CHECKING:
    from gpuwarden.config.model import Config


@dataclass(frozen=True, slots=True)
class ActiveTestOptions:
    """Active tests that gpuwarden starts by itself ([active-tests.md](../use/active-tests.md)): before a node returns to scheduling, and while it is idle."""

    enabled: bool = False
    """Start tests automatically: before a return, if `return_gate` is set, and of idle nodes, if `partition` is set. `gpuwarden test` by hand works
    without any key.
    """
    level: Literal["gate", "quick", "standard"] = "quick"
    """Level of these tests: how much is tested, and for how long."""
    return_gate: bool = False
    """Lift an exclusion for a failure of a GPU, link or switch only after a test of `level` on every GPU has found nothing. After a
    repair ([repair.md](../use/repair.md)) such a test is demanded without this key, with Slurm at level `quick` at least.
    """
    gate_timeout: float = bounded(
        900.0,
        60.0,
        7_200.0,
        "a standard test that repeats a wrong result takes some minutes; a test that hangs takes until its deadline",
    )
    """Time limit of a test before a return. A test that exceeds it is ended without a verdict. The least is what workers that hang may take until
    they are killed: 4 minutes for level gate, 5 for quick, 11 for standard, and more with a lower `parallel`.
    """
    gate_socket: Path = Path("/run/gpuwarden-test.sock")
    """The socket of the service that runs the tests of `return_gate` ([systemd.md](../use/systemd.md))."""
    parallel: int = bounded(8, 1, 8, "each GPU adds up to 700 W")
    """How many GPUs of this node are tested at once, by `gpuwarden test` too. Their tests start 0.5 s apart."""
    at_once: int = bounded(4, 1, 1_000, "each node adds several kW")
    """How many nodes of the fleet gpuwarden tests at once: tests before a return and tests of idle nodes together. Works only if `[slurm]` is enabled."""
    every: float = bounded(86_400.0, 3_600.0, 28 * 86_400.0, "a result is compared with those of the last 28 days")
    """A node, or in Slurm's epilog a GPU, is due for a test when its newest result of that level or a higher one is older than this."""
    quiet_hours: tuple[str, ...] = ()
    """Hours, in the host's local time, in which no test of an idle node starts, such as `22:00-06:00`. Tests before a return ignore them."""
    partition: str = ""
    """The Slurm partition for tests of idle nodes; jobs of every other partition must preempt its jobs. Empty: idle nodes are not tested."""
    account: str = ""
    """The Slurm account of the test jobs. Empty: the default account of `slurm_user`."""
    qos: str = ""
    """The Slurm QOS of the test jobs. Empty: the default."""
    slurm_user: str = "gpuwarden"
    """The user that the test jobs run as: `root` or `gpuwarden`, since the daemon takes results from no other user. It must exist on every node."""

    def quiet(self, minute: int) -> bool:
        """Return True if `minute` of the local day is within `quiet_hours`."""
        return quiet_hours.quiet(self.quiet_hours, minute)


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)
GPUS_MOST = 16
"""GPUs of one host, for the time that a test may take."""


def misfits(config: Config) -> Iterator[Misfit]:
    """Yield values that have the right type but are wrong, by their keys."""
    test, slurm = config.of(ActiveTestOptions), config.slurm.enabled
    yield from _unusable(test)
    if test.return_gate and not test.enabled:
        beside = "expected test.enabled = true beside return_gate = true: else nothing is tested"
        yield ("test.enabled", "test.return_gate"), beside
    if test.return_gate and "kubernetes" in config.excluding(Excludes.BY_REGISTER):
        manifest = (
            "a pod has no right to start one; run a Job that tolerates gpuwarden's taint (docs/use/active-tests.md)"
        )
        yield ("test.return_gate", "kubernetes.enabled"), f"expected false where [kubernetes] is enabled: {manifest}"
    elif test.return_gate and not config.excludes:
        message = "expected an actuator beside it ([slurm] or another): else nothing is excluded here"
        yield ("test.return_gate",), message
    if test.return_gate:
        yield from _too_short(config)
    if test.enabled and not test.return_gate and not test.partition:
        yield ("test.enabled",), "expected return_gate = true or a partition beside it: else nothing is tested"
    if test.partition and not slurm:
        yield ("test.partition",), "expected [slurm] enabled beside it: idle nodes are tested by jobs of Slurm"


def level_before_return(config: Config, *, repaired: bool = False) -> Level:
    """Return the level of a test before a return, `repaired`: of one after a repair, which is quick at least. Without a Slurm that keeps
    work away and names jobs not all memory may be taken: it is gate then.
    """
    if not config.slurm.enabled:
        return Level.GATE
    level = Level(config.of(ActiveTestOptions).level)
    return higher(level, Level.QUICK) if repaired else level


def _too_short(config: Config) -> Iterator[Misfit]:
    """Yield a gate's time limit that would end the test before a worker that hangs is killed: only then is the hang
    found.
    """
    test = config.of(ActiveTestOptions)
    level = level_before_return(config, repaired=config.repairs)
    least = rounds(level, GPUS_MOST, test.parallel)
    if test.gate_timeout < least:
        yield (
            ("test.gate_timeout",),
            (
                f'expected at least "{least:.0f}s": so long a test of level {level} of {GPUS_MOST} GPUs, {test.parallel} at once, may take'
                " until the last worker that hangs was killed; ended earlier, a GPU that hangs is not found"
            ),
        )


def _unusable(test: ActiveTestOptions) -> Iterator[Misfit]:
    """Yield the keys whose value is unusable by itself."""
    if test.partition and not is_partition_name(test.partition):
        yield ("test.partition",), f"expected the name of a partition, found {test.partition[:60]!r}"
    for key, value in (("account", test.account), ("qos", test.qos), ("slurm_user", test.slurm_user)):
        if (value or key == "slurm_user") and not _NAME.fullmatch(value):
            yield (f"test.{key}",), f"expected a name of letters, digits, '_', '.' and '-', found {value[:60]!r}"
    for fault in quiet_hours.faults(test.quiet_hours):
        yield ("test.quiet_hours",), fault


TABLES = {"test": ActiveTestOptions}
