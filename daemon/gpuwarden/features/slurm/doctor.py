"""The doctor's check of this feature."""

from __future__ import annotations

import os

from gpuwarden.config.model import Config
from gpuwarden.doctor.check import Check, in_loop
from gpuwarden.doctor.row import Row
from gpuwarden.features.slurm.examination import SlurmDoctor


async def slurm(config: Config) -> list[Row]:
    off_by = "" if config.slurm.enabled else (config.origins or {}).get(("slurm", "enabled"), "")
    doctor = SlurmDoctor(config.slurm, os.uname().nodename, config.run.dir, config.state.dir, off_by=off_by)
    return await doctor.rows()


CHECKS = {"slurm": Check(in_loop(slurm), 90.0, "slurm")}
