"""What `gpuwarden config` does."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpuwarden.cli.parser import CommandError
from gpuwarden.cli.sources import faulty, loaded, sources
from gpuwarden.cli.web_config import check_web_config
from gpuwarden.config.model import Config, ConfigError
from gpuwarden.config.render import as_toml
from gpuwarden.config.sources import Fault, with_line
from gpuwarden.doctor.as_daemon import become_user_of_unit, let_read
from gpuwarden.doctor.unit import identity
from gpuwarden_collectors.options import SEPARATOR


def missing_libraries(config: Config) -> Iterator[str]:
    """Yield a configured library that is missing. Not a fault, since the driver may be installed later."""
    library = config.collectors.nvml.library
    paths = [Path(path) for path in library.split(SEPARATOR) if path.startswith("/")]
    if paths and not any(path.exists() for path in paths):
        source = (config.origins or {}).get(("collectors", "nvml", "library"), "default")
        to_do = "write the path of libnvidia-ml.so.1, or delete the key: the loader then finds it"
        message = f"{', '.join(map(str, paths))} does not exist: {to_do}"
        yield str(with_line(Fault(source, "collectors.nvml.library", message), ("collectors", "nvml", "library")))


def check_as_daemon(options: argparse.Namespace, config: Config, unit: Mapping[str, str]) -> None:
    """Read the daemon's own files again as the user of its unit, who may not be able to read what root can.

    The process keeps that user. Raises CommandError. Does nothing for a named file, or if this is not root.
    """
    if options.config is not None or os.geteuid() != 0:
        return
    try:
        become_user_of_unit(unit)
    except (OSError, LookupError, ValueError):
        return  # the doctor reports a missing user
    _layers, faults = sources(options, os.environ).read()
    try:
        if faults:
            raise faulty(ConfigError(faults))
        check_web_config(config)
    except CommandError as error:
        raise CommandError(f"for the daemon's user, {unit.get('User')}, {error}\n  to do: {let_read()}") from error


def main(options: argparse.Namespace) -> int:
    try:
        config = loaded(sources(options, os.environ))
    except ConfigError as error:
        raise faulty(error) from error
    origins = config.origins or {}
    if options.action == "show":
        print(as_toml(config, origins), end="")
    else:
        for warning in (*check_web_config(config), *missing_libraries(config)):
            print(f"warning: {warning}")
        check_as_daemon(options, config, identity())
        origin_names = ", ".join(dict.fromkeys(origins.values()))
        print(f"the configuration is valid ({origin_names or 'all defaults: nothing is configured'})")
    return 0
