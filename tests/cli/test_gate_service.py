"""The service of the return gate: its answer on the connection."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.config.model import Config
from gpuwarden.features.active_test.gate import service as gate_service

SOON = 60.0
TAKEN = 4_096
"""Bytes that the kernel is to take at once, about."""
LONG = 40_000
"""Characters. What is left of it is below the 64 KiB for which asyncio makes nobody wait."""


def test_an_answer_that_is_longer_than_the_kernel_takes_at_once_is_sent_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def probe(config: Config, uvm: Path) -> Mapping[str, Any]:
        return {"impossible": "x" * LONG}

    monkeypatch.setattr(gate_service, "probe", probe)
    here, there = socket.socketpair()
    here.settimeout(SOON)
    there.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, TAKEN)
    with here:
        serving = threading.Thread(target=gate_service.serve, args=(Config(), there))
        serving.start()
        here.sendall(b'{"verb": "probe"}\n')
        serving.join(1.0)  # nobody reads meanwhile
        if not serving.is_alive():
            there.close()  # as the end of the process would
        answer = b""
        while part := here.recv(1 << 12):
            answer += part
        serving.join(SOON)
    assert len(json.loads(answer)["impossible"]) == LONG
