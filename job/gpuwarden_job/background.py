"""Runs one save at a time in the background. Its exception is kept until `take_error`."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, job: Callable[[], object]) -> None:
        """Starts `job`, which raises only Exceptions. Call it only while no job runs and no error is pending."""

        def run() -> None:
            try:
                job()
            except Exception as error:  # noqa: BLE001 - kept for `take_error`
                self._error = error

        # A daemon thread: a save to hung storage must not keep the process from exiting.
        self._thread = threading.Thread(target=run, name="gpuwarden-save", daemon=True)
        self._thread.start()

    def wait(self, within: float | None = None) -> None:
        if self._thread is not None:
            self._thread.join(within)

    def take_error(self) -> Exception | None:
        error, self._error = self._error, None
        return error
