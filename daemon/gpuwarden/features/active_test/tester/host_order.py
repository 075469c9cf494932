"""Makes the order of a run from this host's configuration, schedulers and daemon."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from gpuwarden.config.model import Config
from gpuwarden.features.active_test.options import ActiveTestOptions
from gpuwarden.features.active_test.tester import pods
from gpuwarden.features.active_test.tester.lease import Call, DaemonUnreached
from gpuwarden.features.active_test.tester.occupancy import Asked
from gpuwarden.features.active_test.tester.run import Order
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.base import host_clock
from gpuwarden_collectors.slurm.client import SlurmClient
from gpuwarden_collectors.slurm.options import conf_path


class NoSuchOrder(Exception):  # noqa: N818 - of who gave it
    """The command line does not fit this host. The message says why and what to do."""


def order_of(
    config: Config,
    level: str,
    gpus: Sequence[str],
    call: Call,
    progress: Callable[[int, str], None],
    *,
    nobody_here: bool,
) -> Order:
    """Return the order of a run. Raises NoSuchOrder. The caller closes its Slurm client, if it has one."""
    asked = Asked(
        slurm=_slurm(config),
        excluded_by=lambda: excluded_by(call),
        alone_by_order=nobody_here,
        proc=config.paths.proc,
        kubelet=pods.KUBELET,
        now=time.time,
    )
    if nobody_here and asked.has_scheduler:
        raise NoSuchOrder(
            "--i-know-nobody-is-here is for hosts without a scheduler, and this one has one: "
            "exclude or drain the node instead"
        )
    return Order(
        node=config.node,
        level=Level(level),
        gpus=tuple(gpus),
        nvml=config.collectors.nvml,
        run_dir=config.run.dir,
        configured_run_dir=config.run.dir,
        state_dir=config.state.dir,
        asked=asked,
        call=call,
        clock=host_clock,
        progress=progress,
        parallel=config.of(ActiveTestOptions).parallel,
    )


def excluded_by(call: Call) -> tuple[str, ...]:
    """Return the schedulers in which this node is excluded, each with the reason, according to the daemon.

    They include exclusions by an operator. Empty without a daemon.
    """
    try:
        status: Any = call("status")
        exclusions = [
            (row["actuator"], row["excluded"]) for row in status["actions"]["schedulers"] if row.get("excluded")
        ]
    except (DaemonUnreached, KeyError, TypeError, AttributeError):  # none, or one of another version
        return ()
    return tuple(f"{actuator} ({why})" for actuator, why in exclusions)


def _slurm(config: Config) -> SlurmClient | None:
    """Return a client of Slurm, even if the daemon does not act in Slurm, since Slurm may run jobs here; None if there
    is no slurm.conf either.
    """
    options = config.slurm
    if not options.enabled and not conf_path(options, os.environ).exists():
        return None
    return SlurmClient(conf=options.conf, folder=options.folder, timeout=options.timeout, node=options.node)
