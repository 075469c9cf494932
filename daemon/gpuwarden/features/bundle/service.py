"""Makes one archive for the daemon, as root and outside its sandbox: systemd starts this for each connection to its
socket.

A request names findings and nothing else: neither the daemon nor an intruder in it can choose where the archive is,
what it holds and what is run for it. Requests and answers: `client.py`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

from gpuwarden.base import services
from gpuwarden.base.files import lock
from gpuwarden.base.paths import CONFIG_FILE, UnsafeFolder, bundles, make_private
from gpuwarden.base.services import Document
from gpuwarden.cli.parser import CommandError
from gpuwarden.config.model import Config, ConfigError, load
from gpuwarden.config.sources import Sources
from gpuwarden.features.bundle.client import FINDINGS_MOST, REQUEST_MOST
from gpuwarden.features.bundle.making import make
from gpuwarden.features.bundle.memory import FINDING_MOST
from gpuwarden.features.bundle.options import BundleOptions
from gpuwarden.features.bundle.order import Order

_ARCHIVES = "gpuwarden-bundle-*.tar.*"
_LOCK = ".lock"


def main() -> None:
    """Serve the connection that systemd passes as standard input."""
    fault = ""
    try:
        config = load(Sources(file=CONFIG_FILE, required=False))
    except ConfigError as error:
        config, fault = Config(), f"it has faults ({len(error.faults)}): gpuwarden config check lists them"
    serve(config, socket.socket(fileno=os.dup(0)), fault)


def serve(config: Config, connection: socket.socket, fault: str = "") -> None:
    """Answer the one request of `connection`. `fault`: why the configuration cannot be read."""

    async def answered(request: Document, _: asyncio.StreamReader) -> Document:
        findings = _findings(request)
        return {"error": "this is not a request"} if findings is None else await _answer(config, findings, fault)

    services.serve(connection, answered, most=REQUEST_MOST)


def _findings(request: Document) -> tuple[str, ...] | None:
    """Return the findings of a request; None for anything that is none."""
    match request:
        case {"findings": list(findings), **others} if not others and all(map(_is_finding, findings)):
            return tuple(findings) if 0 < len(findings) <= FINDINGS_MOST else None
    return None


def _is_finding(text: object) -> bool:
    return isinstance(text, str) and 0 < len(text) <= FINDING_MOST and text.isprintable() and "@" in text


async def _answer(config: Config, findings: tuple[str, ...], fault: str) -> Document:
    folder = bundles(config.state.dir)
    order = Order(
        findings=findings, config=config, config_fault=fault, run_dir=config.run.dir, state_dir=config.state.dir
    )
    try:
        make_private(folder)
        with lock(folder / _LOCK) as held:
            if held is None:
                return {"error": "another archive is being made", "busy": True}
            made = await make(order, folder)
            remove_old(folder, config.of(BundleOptions).keep)
    except (CommandError, UnsafeFolder) as error:
        return {"error": str(error)}
    except OSError as error:
        return {"error": f"cannot use {folder}: {error.strerror}"}
    return {
        "file": str(made.file),
        "missing": [name for name, _ in made.missing],
        "not_found": list(made.not_found),
        "sha256": made.sha256,
    }


def remove_old(folder: Path, keep: int) -> None:
    """Remove all archives but the newest `keep`."""
    archives = sorted(folder.glob(_ARCHIVES), key=lambda file: (file.stat().st_mtime, file.name), reverse=True)
    for file in archives[keep:]:
        file.unlink(missing_ok=True)


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(f"no archive can be made: {error}")
