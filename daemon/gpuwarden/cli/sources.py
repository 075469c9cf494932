"""The configuration that a command line asks for.

Under `--simulate` neither /etc/gpuwarden nor any GPUWARDEN_* variable is read, and nothing lies where a real daemon has
its things: no simulated fault can reach a scheduler, a prolog or a dashboard that looks after real GPUs. What is wanted
then is said on the command line, or in a file named there that is not one of the real daemon.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from gpuwarden.cli.parser import CommandError
from gpuwarden.config import Config, ConfigError, load
from gpuwarden.config_sources import Layer, Sources, nested
from gpuwarden.places import CONFIG_FILE, is_real, simulation_home

_OPTIONS = {"mode": "mode", "listen": "publish.listen", "state_dir": "state.dir", "run_dir": "run.dir"}
"""The options that set a key."""


def configuration(options: argparse.Namespace, environment: Mapping[str, str]) -> Config:
    """Raises CommandError with every fault."""
    try:
        if getattr(options, "simulate", None) is None:
            return load(sources(options, environment))
        return _simulated(options, simulation_home(environment))
    except ConfigError as error:
        raise faulty(error) from error


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


def _overrides(options: argparse.Namespace) -> Iterator[Layer]:
    for name, key in _OPTIONS.items():
        value = getattr(options, name, None)
        if value is not None:
            yield Layer(f"--{name.replace('_', '-')}", nested(key.split("."), str(value)))


def _simulated(options: argparse.Namespace, home: Path) -> Config:
    if options.config is not None:
        _refuse_real(options.config, "--config")
    folders = {"run": {"dir": str(home / "run")}, "state": {"dir": str(home / "state")}}
    config = load(
        Sources(
            file=options.config,
            required=True,
            defaults=(Layer("--simulate", folders),),
            overrides=tuple(_overrides(options)),
        )
    )
    _refuse_real(config.run.dir, "run.dir")
    _refuse_real(config.state.dir, "state.dir")
    return _with_simulated_gpus(config, options.simulate)


def _refuse_real(place: Path, what: str) -> None:
    if is_real(place):
        raise CommandError(f"{what}: {place} is for real GPUs, and --simulate keeps away from them: name another place")


def _with_simulated_gpus(config: Config, count: int) -> Config:
    """All that is read of the host lies in a folder of its own below the run directory."""
    folder = config.run.dir / "simulated"
    nvml = replace(config.collectors.nvml, simulate=count, simulate_dir=str(folder), library="")
    paths = replace(config.paths, sysfs=folder / "sysfs", kmsg=folder / "kmsg")
    return replace(config, paths=paths, collectors=replace(config.collectors, nvml=nvml))
