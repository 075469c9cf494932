"""Runs a site check for the daemon, outside its sandbox: systemd starts this process for each connection to its socket.

It runs only configured commands. The daemon sends only a name, so that not even a compromised daemon can run other
commands with the rights of this process. A check keeps its lock while it is stuck in the kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from gpuwarden.base.files import lock
from gpuwarden.base.paths import CONFIG_FILE
from gpuwarden.config.model import ConfigError, load
from gpuwarden.config.sources import Sources
from gpuwarden_collectors.plugin.options import SiteCheck
from gpuwarden_collectors.plugin.plugin import plugin_environment
from gpuwarden_collectors.plugin.run import Run, run
from gpuwarden_collectors.plugin.service import packed

NAME_MOST = 64
NAME_WITHIN = 5.0
"""Seconds to wait for the name."""
POLL_EVERY = 1.0
"""Seconds between polls whether a run that was stuck in the kernel has ended."""


def main() -> None:
    """Serve the connection on standard input. Locks are in the unit's RUNTIME_DIRECTORY."""
    plugins = load(Sources(file=CONFIG_FILE, required=False)).plugins
    serve(plugins, Path(os.environ["RUNTIME_DIRECTORY"]), socket.socket(fileno=os.dup(0)))


def serve(checks: Mapping[str, SiteCheck], locks: Path, connection: socket.socket) -> None:
    """Answer the single request of `connection`. `locks`: an existing folder. Returns once the run has ended."""
    asyncio.run(_serve(checks, locks, connection))


async def _serve(checks: Mapping[str, SiteCheck], locks: Path, connection: socket.socket) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=connection, limit=NAME_MOST)
    try:
        await _question(checks, locks, reader, writer)
    finally:
        writer.close()


async def _question(
    checks: Mapping[str, SiteCheck], locks: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    name = await _name(reader)
    check = checks.get(name)
    if check is None or not check.enabled:
        return await _answer(writer, Run(None, error=f"no site check {name[:NAME_MOST]!r} is configured"))
    with lock(locks / f"{name}.lock") as held:
        if held is None:
            return await _answer(writer, Run(None, error="was not started: an earlier run of it has not ended"))
        done = await _unless_given_up(reader, check)
        if done is None:
            return None
        await _answer(writer, done)
        while done.left is not None and not done.left.gone():  # noqa: ASYNC110 - nothing reports its end
            await asyncio.sleep(POLL_EVERY)
    return None


async def _name(reader: asyncio.StreamReader) -> str:
    with contextlib.suppress(TimeoutError, ValueError):
        async with asyncio.timeout(NAME_WITHIN):
            return (await reader.readline()).decode("utf-8", "replace").strip()
    return ""


async def _unless_given_up(reader: asyncio.StreamReader, check: SiteCheck) -> Run | None:
    """Run the check; None if the client no longer waits for it, in which case it is killed."""
    running = asyncio.create_task(run(check.command, plugin_environment(os.environ), check.timeout, whole=True))
    waiting = asyncio.create_task(reader.read(1))  # the client sends nothing more: this ends when it disconnects
    await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        waiting.cancel()
        return running.result()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    return None


async def _answer(writer: asyncio.StreamWriter, done: Run) -> None:
    with contextlib.suppress(OSError):
        writer.write(packed(done))
        await writer.drain()
        writer.close()
        await writer.wait_closed()


if __name__ == "__main__":
    try:
        main()
    except ConfigError as error:
        sys.exit(f"no site check can be run: {error}")
