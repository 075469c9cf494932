"""Checks whether the allowed steps can be taken here: the helper's unit, its answer, and what forbids a step now."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpuwarden.base.services import NoAnswer
from gpuwarden.cli.text import clean
from gpuwarden.config.model import Config
from gpuwarden.doctor.check import Check
from gpuwarden.doctor.row import Row, fail, ok, warn
from gpuwarden.doctor.running import Running
from gpuwarden.features.repair.client import Probed, probe
from gpuwarden.features.repair.model import StepKind
from gpuwarden.features.repair.options import RepairOptions

UNITS = ("gpuwarden-repair.socket", "gpuwarden-repair@.service")
FOLDERS = tuple(
    map(
        Path, ("/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system")
    )
)
PROBED_WITHIN = 75.0
"""Seconds. The helper itself waits a minute for a hung driver."""
_ENABLE = "systemctl enable --now gpuwarden-repair.socket"


async def repair(daemon: Running, config: Config, folders: Sequence[Path] = FOLDERS) -> list[Row]:
    """Return the rows about repairs; none if no step is allowed."""
    options = config.of(RepairOptions)
    if not options.steps:
        return []
    try:
        host = await probe(options.socket, within=PROBED_WITHIN)
    except NoAnswer as error:
        return [no_answer(options, str(error), folders)]
    local = time.localtime()
    quiet = options.quiet(local.tm_hour * 60 + local.tm_min)
    return [
        ok("repair helper", f"answers at {options.socket}"),
        *(step_row(word, host) for word in options.steps),
        *now(daemon.status.get("repair") or {}, config.mode, quiet=quiet),
    ]


def no_answer(options: RepairOptions, why: str, folders: Sequence[Path]) -> Row:
    """Return the row about a helper that does not answer."""
    if options.socket.is_socket():
        return fail(
            "repair helper", f"{why}: nothing is repaired", "see journalctl -u 'gpuwarden-repair@*', and the row rights"
        )
    absent = [unit for unit in UNITS if not any((folder / unit).is_file() for folder in folders)]
    if absent:
        to_do = f"install the units (docs/use/systemd.md), then {_ENABLE}"
        return fail("repair helper", f"{' and '.join(absent)} not installed: nothing is repaired", to_do)
    return fail("repair helper", f"{options.socket} does not exist: nothing is repaired", _ENABLE)


def step_row(word: str, host: Probed) -> Row:
    """Return the row about a word of `repair.steps`."""
    alone, together = host.unable.get(StepKind.RESET_GPU, ""), host.unable.get(StepKind.RESET_ALL, "")
    if word == StepKind.RESET_GPU and bool(alone) != bool(together):
        restriction = f"one GPU alone cannot be: {alone}" if alone else f"all GPUs together cannot be: {together}"
        return ok(word, f"can be taken; {restriction}")
    if why := host.unable.get(word, ""):
        return warn(word, f"cannot be taken: {why}", f"correct that, or remove {word} from repair.steps")
    return ok(word, "can be taken")


def now(shown: dict[str, Any], mode: str, *, quiet: bool) -> Iterator[Row]:
    """Yield the row about what forbids a step now. `shown`: the daemon's status of repairs."""
    finding, step, text = (clean(shown.get(key) or "") for key in ("finding", "step", "text"))
    general = [
        *(["mode is observe"] if mode != "enforce" else []),
        *(["quiet hours (repair.quiet_hours)"] if quiet else []),
    ]
    match shown.get("state"):
        case "running":
            yield ok("repair now", f"{step} runs, for {finding}")
        case "waiting":
            yield warn(
                "repair now",
                f"{f'{step} for ' if step else ''}{finding} waits: {text}",
                f"gpuwarden repair {finding} --dry-run names each precondition",
            )
        case "person":
            yield warn(
                "repair now",
                f"{finding} needs an operator: {text}",
                "see its runbook; gpuwarden restore brings the node back",
            )
        case "clear":
            forbids = f"; a step would be forbidden now: {' and '.join(general)}" if general else ""
            yield ok("repair now", f"nothing is to be repaired{forbids}")


CHECKS = {"repair": Check(repair, PROBED_WITHIN + 5.0, "repair")}
