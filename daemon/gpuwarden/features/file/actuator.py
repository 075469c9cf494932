"""The actuator of `[file]`: its marker file outlives a boot, as a drain does, and is in a folder of the site's."""

from __future__ import annotations

from gpuwarden.actuators.base import Counter
from gpuwarden.actuators.marker import MarkerActuator
from gpuwarden.config.model import Config
from gpuwarden.features.file.options import FileOptions
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.host import boot_id


def actuator(config: Config, clock: Clock, counter: Counter) -> MarkerActuator | None:
    path = config.of(FileOptions).path
    if path is None:
        return None
    boot = boot_id(config.paths.proc)
    return MarkerActuator("file", path, node=config.node, boot_id=boot, counter=counter, clock=clock, over_boots=True)
