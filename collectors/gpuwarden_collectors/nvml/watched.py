"""The library as the reader calls it: the name of each function is written down before it is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuwarden_collectors.worker.in_flight import Page, call_label


class Watched:
    """All attributes of the bindings. Only the thread that reads may call through this: one call is in flight at a time.

    What was asked for once is an attribute of this object from then on, so that a call costs one function and 64 copied bytes more.
    """

    def __init__(self, nvml: Any, page: Page) -> None:
        self._nvml = nvml
        self._page = page

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._nvml, name)
        if name.startswith("nvml") and callable(value):
            value = _watched(value, self._page, call_label(name))
        setattr(self, name, value)
        return value


def _watched(function: Callable[..., Any], page: Page, label: bytes) -> Callable[..., Any]:
    note = page.call

    def call(*args: Any) -> Any:
        note(label)
        return function(*args)

    return call
