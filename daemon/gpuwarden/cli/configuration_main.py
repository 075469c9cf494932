"""What `gpuwarden config` does."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from gpuwarden.cli.sources import faulty, loaded, sources
from gpuwarden.cli.web_config import check_web_config
from gpuwarden.config.model import Config, ConfigError
from gpuwarden.config.render import as_toml
from gpuwarden.config.sources import Fault, with_line
from gpuwarden_collectors.options import SEPARATOR


def missing_libraries(config: Config) -> Iterator[str]:
    """A library that is named and not there. No fault, since a driver may be installed later than gpuwarden starts."""
    library = config.collectors.nvml.library
    paths = [Path(path) for path in library.split(SEPARATOR) if path.startswith("/")]
    if paths and not any(path.exists() for path in paths):
        source = (config.origins or {}).get(("collectors", "nvml", "library"), "default")
        to_do = "write the path of libnvidia-ml.so.1, or delete the key: the loader then finds it"
        message = f"{', '.join(map(str, paths))} does not exist: {to_do}"
        yield str(with_line(Fault(source, "collectors.nvml.library", message), ("collectors", "nvml", "library")))


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
        given = ", ".join(dict.fromkeys(origins.values()))
        print(f"the configuration is valid ({given or 'all defaults: nothing is configured'})")
    return 0
