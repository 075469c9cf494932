"""Checks the configured web-config file before anything starts, so that a fault is reported at once."""

from __future__ import annotations

from gpuwarden.cli.parser import CommandError
from gpuwarden.config.model import Config
from gpuwarden.publish.web.config import read
from gpuwarden.publish.web.rules import WebConfigError


def check_web_config(config: Config) -> tuple[str, ...]:
    """Return the file's warnings. Raises CommandError with all faults."""
    path = config.publish.web_config
    if path is None:
        return ()
    try:
        return read(path).warnings
    except WebConfigError as error:
        count = f"{len(error.faults)} faults" if len(error.faults) > 1 else "a fault"
        faults = "\n  ".join([f"the web configuration (publish.web_config) has {count}:", *map(str, error.faults)])
        raise CommandError(faults) from error
