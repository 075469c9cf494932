"""A wrapper of the NVML bindings that records the name of each function before it calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuwarden_collectors.worker.in_flight import Page, call_label


class Watched:
    """Has all attributes of the bindings. Only the reading thread may use it: one call is in progress at a time.

    Attributes are cached, so a call costs one additional function call and a copy of 64 bytes.
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
