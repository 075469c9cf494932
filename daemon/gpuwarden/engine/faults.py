"""Errors of features. A feature that raises stops neither the monitoring of the node nor the other features.

An error is logged once for each call and place, counted each time, and stays current until the same call of that
feature succeeds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from gpuwarden.base.log import get_logger
from gpuwarden_collectors.facts import Stamp

LOGGED_MOST = 64
"""Most distinct errors that are logged, each with its traceback; further ones are only counted."""
TEXT_MOST = 160  # characters of one error
SHOWN_MOST = 4

log = get_logger()
Answer = TypeVar("Answer")


class Faults:
    """The errors of all features in this process."""

    def __init__(self, features: Iterable[str] = ()) -> None:
        self.counts = dict.fromkeys(features, 0)
        """By feature, the number of calls that raised."""
        self._standing: dict[tuple[str, str], str] = {}
        self._logged: set[tuple[object, ...]] = set()

    def raised(self, feature: str, call: str, error: Exception) -> None:
        """Record that a call of a feature raised. Called while the exception is handled."""
        self.counts[feature] = self.counts.get(feature, 0) + 1
        self._standing.setdefault((feature, call), f"{type(error).__name__}: {error}"[:TEXT_MOST])
        signature = (feature, call, type(error), _place(error))
        if signature not in self._logged and len(self._logged) < LOGGED_MOST:
            self._logged.add(signature)
            log.error("feature failed: the others continue", feature=feature, call=call, exc_info=error)

    def went_well(self, feature: str, call: str) -> None:
        """Record that a call succeeded, which clears its error."""
        if self._standing:
            self._standing.pop((feature, call), None)

    def standing(self, feature: str) -> dict[str, str]:
        """Return the current errors of a feature, by call."""
        return {call: text for (of, call), text in self._standing.items() if of == feature}

    def stands(self, calls: Collection[str]) -> bool:
        """Return True if one of these calls has a current error in any feature."""
        return any(call in calls for _, call in self._standing)

    def error(self, _: Stamp) -> str:
        """Return all current errors as text for people; "" if there are none."""
        texts = [f"{feature}: {call} failed: {text}" for (feature, call), text in self._standing.items()]
        more = [f"{len(texts) - SHOWN_MOST} more"] if len(texts) > SHOWN_MOST else []
        return "; ".join(texts[:SHOWN_MOST] + more)


class Guard:
    """Calls one feature. Its exceptions are recorded in `faults` and not passed on."""

    def __init__(self, faults: Faults, feature: str) -> None:
        self._faults = faults
        self.feature = feature

    def call(self, name: str, otherwise: Answer, function: Callable[..., Answer], *arguments: object) -> Answer:
        """Return what the function returns, or `otherwise` if it raises."""
        try:
            answer = function(*arguments)
        except Exception as error:  # noqa: BLE001 - a feature may raise anything
            self._faults.raised(self.feature, name, error)
            return otherwise
        self._faults.went_well(self.feature, name)
        return answer

    def raised(self, name: str, error: Exception) -> None:
        """Record the error of a call that was not made through `call`."""
        self._faults.raised(self.feature, name, error)

    def went_well(self, name: str) -> None:
        """Record the success of a call that was not made through `call`."""
        self._faults.went_well(self.feature, name)

    def standing(self) -> dict[str, str]:
        """Return the current errors of the feature, by call."""
        return self._faults.standing(self.feature)


def _place(error: Exception) -> tuple[str, int]:
    """Return the file and line that raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return ("", 0) if trace is None else (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
