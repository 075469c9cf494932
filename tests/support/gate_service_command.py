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

from gpuwarden.base.services import Document
from gpuwarden.config.model import Config, load
from gpuwarden.config.sources import Sources
from gpuwarden.features.active_test.gate import service as gate_service
from gpuwarden.features.active_test.tester import run
from gpuwarden_collectors.active_test.level import Level
from support.active_test_command import change


async def _never(config: Config, level: Level, reader: asyncio.StreamReader) -> Document:
    answer = await _test(config, level, reader)
    Path(os.environ["STUB_FOLDER"], "handed-in").touch()
    await asyncio.sleep(600)
    return answer


_test = gate_service._test

if __name__ == "__main__":
    change()
    changed: Any = gate_service
    patched: Any = run
    changed.environment = patched.environment
    if os.environ.get("GATE_ANSWERS") == "never":
        changed._test = _never
    uvm = Path(os.environ.get("ACTIVE_TEST_UVM", "/dev/null"))
    gate_service.serve(load(Sources(file=Path(sys.argv[1]))), socket.socket(fileno=os.dup(0)), uvm)
