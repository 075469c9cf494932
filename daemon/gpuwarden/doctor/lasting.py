"""Checks that the daemon's state survives a reboot. It does not if / or /var is in memory, as on diskless nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpuwarden.config.model import Config
from gpuwarden.doctor.row import Row, ok, warn
from gpuwarden_collectors.mount_table import in_memory


def after_a_boot(config: Config, folder: Path) -> Iterator[Row]:
    """Yield a row if a reboot empties the state directory, none if it is on a disk. `folder`: its existing parent."""
    kind = in_memory(folder.resolve(), config.paths.proc / "self/mountinfo")
    if not kind:
        return
    state = (
        f"{config.state.dir} is on {kind}, which a boot empties: only an operator lifts earlier exclusions of gpuwarden"
    )
    if config.inventory.expected_gpus is not None:
        yield ok("state after a boot", state)
        return
    state = f"{state}, and a GPU that is gone after it is not reported"
    to_do = "set inventory.expected_gpus, or keep the state on a disk of this node (docs/use/systemd.md#state-on-another-disk)"
    yield warn("state after a boot", state, to_do)
