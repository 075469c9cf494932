"""The implementation of `gpuwarden bundle`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpuwarden.base.paths import run_dir
from gpuwarden.cli.parser import CommandError
from gpuwarden.cli.sources import sources
from gpuwarden.cli.text import clean
from gpuwarden.config.model import Config, ConfigError, load
from gpuwarden.features.bundle.making import Made, document, make
from gpuwarden.features.bundle.memory import FINDING_MOST
from gpuwarden.features.bundle.order import Order

_TERMINATED = 128 + signal.SIGTERM


def main(options: argparse.Namespace) -> int:
    order = order_of(options, os.environ)
    if os.geteuid() != 0:
        print(
            "gpuwarden bundle: not run as root: serial numbers of the system, the kernel log and NVIDIA's report may be missing",
            file=sys.stderr,
        )
    print("gpuwarden bundle: this takes up to 6 minutes", file=sys.stderr)
    made = asyncio.run(_until_terminated(order, options.output or Path.cwd()))
    print(document(made) if options.json else "\n".join(_shown(made)))
    return 0


def order_of(options: argparse.Namespace, environment: Mapping[str, str]) -> Order:
    """Return the order of the command line. A faulty configuration does not prevent an archive. Raises CommandError."""
    for finding in options.finding:
        if not 0 < len(finding) <= FINDING_MOST:
            raise CommandError(f"expected the id of a finding, found {len(finding)} characters")
    fault = ""
    try:
        config = load(sources(options, environment))
    except ConfigError as error:
        config = Config()
        fault = f"it has faults ({len(error.faults)}): gpuwarden config check lists them"
    folder = options.run_dir or (run_dir(environment) if fault else None)
    return Order(
        findings=tuple(options.finding),
        config=config,
        config_fault=fault,
        config_file=options.config,
        run_dir=folder or config.run.dir,
        state_dir=options.state_dir or config.state.dir,
        state_dir_named=options.state_dir is not None,
        anonymise=options.anonymise,
    )


async def _until_terminated(order: Order, output: Path) -> Made:
    """Make the archive. SIGTERM, like an interrupt, removes what was begun. Raises CommandError."""
    making = asyncio.create_task(make(order, output))
    terminated = False

    def terminate() -> None:
        nonlocal terminated
        terminated = True
        making.cancel()

    with contextlib.suppress(ValueError):  # this is not the main thread
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminate)
    try:
        return await making
    except asyncio.CancelledError:
        if not terminated:
            raise
        raise CommandError("ended by SIGTERM: no archive was made", _TERMINATED) from None


def _shown(made: Made) -> Iterator[str]:
    yield f"{made.file} ({made.size / (1 << 20):.1f} MiB)"
    yield f"sha256: {made.sha256}"
    none = f"not known what fails: {clean(made.unknown)}" if made.unknown else "no failure in force"
    yield f"about: {', '.join(map(clean, made.findings)) or none}"
    yield from (f"not found: {clean(finding)} is not in the ledger" for finding in made.not_found)
    if made.note:
        yield f"note: {clean(made.note)}"
    yield from (f"missing: {clean(name)}: {clean(why)}" for name, why in made.missing)
    yield "next: read index.html and rma.txt in it before you send it"
