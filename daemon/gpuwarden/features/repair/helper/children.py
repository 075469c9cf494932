"""Runs readings that may hang, each in a forked child that ends with it, and is left behind if it cannot be killed."""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_GRACE = 3.0
_ANSWER_MOST = 4 << 20


class NoReading(Exception):  # noqa: N818 - a state of the host
    """The child returned nothing. The message says why."""


def read_in_child(subject: str, function: Callable[[], Any], within: float) -> Any:
    """Return what `function` returns, which JSON can hold. Raises NoReading after `within` seconds, and if it fails.

    The child has none of the helper's files open: no lock, no connection. This process must have only one thread.
    """
    answer = os.memfd_create("answer")
    child = os.fork()
    if child == 0:
        _answer(function, answer)
    try:
        _wait(child, subject, within)
        document = json.loads(os.pread(answer, _ANSWER_MOST, 0) or b"{}")
    except ValueError:
        document = {}
    finally:
        os.close(answer)
    if "answer" not in document:
        raise NoReading(
            f"{subject} cannot be read: {document.get('error', 'the process that reads ended without an answer')}"
        )
    return document["answer"]


def _answer(function: Callable[[], Any], answer: int) -> None:
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.dup2(answer, 3)
        os.closerange(4, 1 << 16)
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)  # the connection
        try:
            document: dict[str, Any] = {"answer": function()}
        except Exception as error:  # noqa: BLE001 - it goes to the parent
            document = {"error": f"{error or type(error).__name__}"[:300]}
        os.pwrite(3, json.dumps(document).encode(), 0)
    finally:
        os._exit(0)


def _wait(child: int, subject: str, within: float) -> None:
    file = os.pidfd_open(child)
    try:
        if select.select([file], [], [], within)[0]:
            os.waitpid(child, 0)
            return
        with suppress(OSError):
            os.killpg(child, signal.SIGKILL)
        if select.select([file], [], [], _GRACE)[0]:
            os.waitpid(child, 0)
            raise NoReading(f"{subject} cannot be read within {within:g} s")
        raise NoReading(
            f"{subject} cannot be read: process {child} hangs in the driver and was left, only a reboot ends it"
        )
    finally:
        os.close(file)
