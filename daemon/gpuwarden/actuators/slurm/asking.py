"""What Slurm's errors are in the words of actuators."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from gpuwarden.actuators.base import ActuatorError, ActuatorRefused, ActuatorUnavailable
from gpuwarden_collectors.slurm import errors

T = TypeVar("T")


async def asking(question: Awaitable[T]) -> T:
    """Raises ActuatorError and nothing else."""
    try:
        return await question
    except errors.Refused as error:
        raise ActuatorRefused(str(error)) from error
    except errors.Unreachable as error:
        raise ActuatorUnavailable(str(error)) from error
    except errors.SlurmError as error:
        raise ActuatorError(str(error)) from error
