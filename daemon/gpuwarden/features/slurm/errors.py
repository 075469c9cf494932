"""Translates Slurm's errors to those of actuators."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from gpuwarden.actuators.base import ActuatorError, ActuatorRefused, ActuatorUnavailable
from gpuwarden_collectors.slurm import errors

P = ParamSpec("P")
T = TypeVar("T")


def actuator_errors(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Decorate a function so that it raises ActuatorError in place of Slurm's errors."""

    @wraps(function)
    async def translated(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await function(*args, **kwargs)
        except errors.Refused as error:
            raise ActuatorRefused(str(error)) from error
        except errors.Unreachable as error:
            raise ActuatorUnavailable(str(error)) from error
        except errors.SlurmError as error:
            raise ActuatorError(str(error)) from error

    return translated
