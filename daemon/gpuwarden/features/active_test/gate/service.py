"""Runs one test before a return for the daemon, outside its sandbox: systemd starts this for each connection to its
socket.

A request names only a level, so neither the daemon nor an intruder in it can run anything else with the rights of this
process. The test ends with the connection. Requests and answers: `gate/client.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from pathlib import Path

from gpuwarden.base import services
from gpuwarden.base.paths import CONFIG_FILE
from gpuwarden.base.services import Document
from gpuwarden.config.model import Config, ConfigError, load
from gpuwarden.config.sources import Sources
from gpuwarden.features.active_test.command_main import daemon_call
from gpuwarden.features.active_test.doctor import absent_libraries
from gpuwarden.features.active_test.tester.host import HostReadings, HostUnread
from gpuwarden.features.active_test.tester.host_order import order_of
from gpuwarden.features.active_test.tester.obstacles import by_settings
from gpuwarden.features.active_test.tester.report import document
from gpuwarden.features.active_test.tester.run import ActiveTest
from gpuwarden.features.active_test.tester.surroundings import environment
from gpuwarden_collectors.active_test.level import Level

REQUEST_MOST = 4096
UVM = Path("/dev/nvidia-uvm")
GONE = "the daemon no longer waits for it"
_SHOWN = 3


def main() -> None:
    """Serve the connection that systemd passes as standard input."""
    config = load(Sources(file=CONFIG_FILE, required=False))
    serve(config, socket.socket(fileno=os.dup(0)))


def serve(config: Config, connection: socket.socket, uvm: Path = UVM) -> None:
    """Answer the one request of `connection`."""

    async def answered(request: Document, reader: asyncio.StreamReader) -> Document | None:
        if request.get("verb") == "probe":
            return await probe(config, uvm)
        if request.get("verb") == "test" and request.get("level") in list(Level):
            return await _test(config, Level(request["level"]), reader)
        return None

    services.serve(connection, answered, most=REQUEST_MOST)


async def _test(config: Config, level: Level, reader: asyncio.StreamReader) -> Document:
    order = order_of(config, level.value, (), daemon_call(config), lambda _index, _phase: None, nobody_here=False)
    test = ActiveTest(order)

    async def connected() -> None:
        with contextlib.suppress(OSError):
            await reader.read(1)  # the client sends nothing more: returns when it closes
        test.end(GONE)

    waiting = asyncio.create_task(connected())
    try:
        return document(await test.run())
    finally:
        waiting.cancel()
        if order.asked.slurm is not None:
            await order.asked.slurm.close()


async def probe(config: Config, uvm: Path) -> Document:
    """Find out whether this host and its GPUs can be tested.

    `lacking`: what this host lacks for a test, temporarily or for good. `impossible`: why no GPU can be tested with its
    settings. Both are "" if a test may run. `untestable`: by slot, why a GPU cannot be tested while others can.
    """
    if why := await _lacking(uvm):
        return {"lacking": why, "impossible": "", "untestable": {}}
    readings = HostReadings(config.collectors.nvml)
    try:
        host = await readings.read()
    except HostUnread:
        return {
            "lacking": "",
            "impossible": "",
            "untestable": {},
        }  # a later reading may succeed; if not, the test reports the cause
    finally:
        await readings.close()
    refused = [(gpu, text) for gpu in host.nvml.gpus if (text := by_settings(gpu, host))]
    texts = {gpu.slot: f"GPU {gpu.index}: {text}" for gpu, text in refused}
    if len(refused) < len(host.nvml.gpus):
        return {"lacking": "", "impossible": "", "untestable": {slot: text for slot, text in texts.items() if slot}}
    return {"lacking": "", "impossible": "; ".join(list(texts.values())[:_SHOWN]), "untestable": {}}


async def _lacking(uvm: Path) -> str:
    absent, _ = await absent_libraries(environment(None))
    if absent:
        return f"{', '.join(absent)} cannot be loaded: install the driver's package with it (gpuwarden doctor)"
    return _no_uvm(uvm)


def _no_uvm(node: Path) -> str:
    """Return why there is no device of nvidia-uvm; "" if it exists. The unit that creates it has run before this."""
    if node.exists():
        return ""
    to_do = "install nvidia-modprobe, or modprobe nvidia-uvm && nvidia-modprobe -u -c 0 at each boot"
    return f"{node} does not exist, and gpuwarden-uvm.service did not make it: {to_do}"


if __name__ == "__main__":
    try:
        main()
    except ConfigError as error:
        sys.exit(f"no test can be run: {error}")
