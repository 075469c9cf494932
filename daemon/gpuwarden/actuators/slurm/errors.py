"""Slurm's errors as actuator errors."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from gpuwarden.actuators.base import ActuatorError, ActuatorRefused, ActuatorUnavailable
from gpuwarden_collectors.slurm import errors

T = TypeVar("T")


async def as_actuator_errors(call: Awaitable[T]) -> T:
    """Raises ActuatorError and nothing else."""
    try:
        return await call
    except errors.Refused as error:
        raise ActuatorRefused(str(error)) from error
    except errors.Unreachable as error:
        raise ActuatorUnavailable(str(error)) from error
    except errors.SlurmError as error:
        raise ActuatorError(str(error)) from error
