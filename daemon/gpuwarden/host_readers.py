"""The collectors of the host beside its GPUs, each as a source that the daemon runs."""

from __future__ import annotations

from pathlib import Path

from gpuwarden.config_collectors import HostOptions
from gpuwarden.schedule import Source
from gpuwarden_collectors.base import Clock


def host_sources(options: HostOptions, *, proc: Path, sysfs: Path, clock: Clock) -> list[Source]:
    return []
