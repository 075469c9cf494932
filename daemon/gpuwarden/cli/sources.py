"""The configuration that a command line selects.

Under `--simulate` neither /etc/gpuwarden nor any GPUWARDEN_* variable is read, and no path is one of a real daemon:
simulated faults cannot reach a scheduler, a prolog or a dashboard of real GPUs. Settings then come from the command
line, or from a file named there that does not belong to the real daemon.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from gpuwarden.base.paths import CONFIG_FILE, RUN_DIR, UnsafeFolder, check_private, is_real, simulation_home
from gpuwarden.cli.parser import CommandError
from gpuwarden.config.model import Config, ConfigError, load
from gpuwarden.config.sources import Layer, Sources, nested
from gpuwarden.publish.metrics.chosen import ALL

_OPTIONS = (
    ("mode", "--mode", "mode"),
    ("listen", "--listen", "publish.listen"),
    ("web_config", "--web.config.file", "publish.web_config"),
    ("log_format", "--log-format", "log.format"),
    ("state_dir", "--state-dir", "state.dir"),
    ("run_dir", "--run-dir", "run.dir"),
)
"""The options that set a key: attribute, option, key."""


def configuration(
    options: argparse.Namespace, environment: Mapping[str, str], secure: Callable[[Path], None] = check_private
) -> Config:
    """Load the configuration. Raises CommandError with all faults. `secure` is called with a simulation's folder."""
    try:
        if options.simulate is None:
            return loaded(sources(options, environment))
        home = simulation_home(environment)
        config = _simulated(options, home)
        if home in config.run.dir.parents or home in config.state.dir.parents:
            secure(home)
    except ConfigError as error:
        raise faulty(error) from error
    except UnsafeFolder as error:
        raise CommandError(str(error)) from error
    return config


def loaded(origin: Sources) -> Config:
    """Load the configuration and check its names of series. Raises ConfigError."""
    return load(origin, series=ALL)


def faulty(error: ConfigError) -> CommandError:
    count = f"{len(error.faults)} faults" if len(error.faults) > 1 else "a fault"
    return CommandError("\n  ".join([f"the configuration has {count}:", *map(str, error.faults)]))


def sources(options: argparse.Namespace, environment: Mapping[str, str]) -> Sources:
    return Sources(
        file=options.config or CONFIG_FILE,
        required=options.config is not None,
        environment=environment,
        overrides=tuple(_overrides(options)),
    )


def filed_run_dir(options: argparse.Namespace) -> Path:
    """The run directory by the configuration files only, ignoring command line and environment."""
    layers, _faults = Sources(file=options.config or CONFIG_FILE).read()
    tables = [layer.tree.get("run") for layer in layers]
    named = [table["dir"] for table in tables if isinstance(table, dict) and isinstance(table.get("dir"), str)]
    return Path(named[-1]) if named else RUN_DIR


def _overrides(options: argparse.Namespace) -> Iterator[Layer]:
    for name, option, key in _OPTIONS:
        value = getattr(options, name, None)
        if value is not None:
            yield Layer(option, nested(key.split("."), str(value)))


def _simulated(options: argparse.Namespace, home: Path) -> Config:
    if options.config is not None:
        _refuse_real(options.config, "--config")
    folders = {"run": {"dir": str(home / "run")}, "state": {"dir": str(home / "state")}}
    config = loaded(
        Sources(
            file=options.config,
            required=True,
            defaults=(Layer("--simulate", folders),),
            overrides=tuple(_overrides(options)),
        )
    )
    _refuse_real(config.run.dir, "run.dir")
    _refuse_real(config.state.dir, "state.dir")
    nvml = replace(config.collectors.nvml, simulate=options.simulate)
    return replace(config, collectors=replace(config.collectors, nvml=nvml))


def _refuse_real(path: Path, setting: str) -> None:
    if is_real(path):
        raise CommandError(f"{setting}: {path} is for real GPUs, which --simulate never touches: name another path")
