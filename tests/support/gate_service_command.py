"""The service of the return gate as a process of its own, with the constants of `active_test_command.py` changed: the configuration is the argument.

ACTIVE_TEST_UVM    in the place of /dev/nvidia-uvm
GATE_ANSWERS       "never": a test is done and handed in, and its answer never comes
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Any

from gpuwarden.config.model import load
from gpuwarden.config.sources import Sources
from gpuwarden.features.active_test.gate import service as gate_service
from gpuwarden.features.active_test.tester import run
from support.active_test_command import change


async def _never(writer: asyncio.StreamWriter, answer: dict[str, Any]) -> None:
    if "verdict" in answer:
        Path(os.environ["STUB_FOLDER"], "handed-in").touch()
        await asyncio.sleep(600)
    await _answer(writer, answer)


_answer = gate_service._answer

if __name__ == "__main__":
    change()
    changed: Any = gate_service
    patched: Any = run
    changed.environment = patched.environment
    if os.environ.get("GATE_ANSWERS") == "never":
        changed._answer = _never
    uvm = Path(os.environ.get("ACTIVE_TEST_UVM", "/dev/null"))
    gate_service.serve(load(Sources(file=Path(sys.argv[1]))), socket.socket(fileno=os.dup(0)), uvm)
