"""`gpuwarden test --submit`: has Slurm test this node while it is idle."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Callable
from typing import Any

from gpuwarden.cli.parser import TRY_AGAIN, UNAVAILABLE, UNKNOWN, CommandError
from gpuwarden.cli.text import clean
from gpuwarden.config.model import Config
from gpuwarden.features.active_test.idle.submit import Submission
from gpuwarden.features.active_test.idle.submit import submit as submitted
from gpuwarden.features.active_test.idle.wanted import CannotSubmit, NotNow
from gpuwarden.features.active_test.options import ActiveTestOptions
from gpuwarden.features.active_test.tester.lease import DaemonUnreached
from gpuwarden.features.active_test.tester.lock import LockError
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.slurm.client import SlurmClient
from gpuwarden_collectors.slurm.errors import Refused, SlurmError


def submit(options: argparse.Namespace, config: Config, call: Callable[..., Any]) -> int:
    """Submit a test. Returns 0 if a job was submitted, UNKNOWN if none is wanted now. Raises CommandError."""
    if options.gpu or options.i_know_nobody_is_here or options.of_idle_job:
        raise CommandError("--submit tests all GPUs of a node that Slurm finds idle: leave out the other options")
    level = Level(options.level or config.of(ActiveTestOptions).level)
    job, why = asyncio.run(_submitted(options, config, call, level))
    if options.json:
        print(json.dumps({"job": job, "level": level.value, "text": why}))
    else:
        print(clean(f"not submitted: {why}" if job is None else f"job {job} tests this node at level {level.value}"))
    return UNKNOWN if job is None else 0


async def _submitted(
    options: argparse.Namespace, config: Config, call: Callable[..., Any], level: Level
) -> tuple[int | None, str]:
    """Return the number of the job, or None and the reason."""
    slurm = config.slurm
    client = SlurmClient(conf=slurm.conf, folder=slurm.folder, timeout=slurm.timeout, node=slurm.node)
    order = Submission(
        config=config,
        file=None if options.config is None else options.config.absolute(),
        level=level,
        commands=client.routine,
        call=call,
        euid=os.geteuid(),
        now=time.time(),
    )
    try:
        return await submitted(order), ""
    except NotNow as error:
        return None, str(error)
    except (CannotSubmit, LockError, Refused) as error:
        raise CommandError(f"cannot submit a test: {error}") from error
    except DaemonUnreached as error:
        raise CommandError(f"cannot submit a test, whose results would not be kept: {error}", UNAVAILABLE) from error
    except SlurmError as error:
        raise CommandError(str(error), TRY_AGAIN) from error
    finally:
        await client.close()
