"""A real Slurm that runs our scripts on each of its nodes."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from support.commands import COMMAND
from support.slurm import Slurm
from support.slurm_hooks import SCRIPTS, boot, uptime

FAILED: Mapping[str, object] = {
    "format": 1, "boot_id": boot(), "stamp": 0, "fresh_for": 9999, "mode": "enforce", "simulated": 0, "state": "failure",
    "node_state": "failure", "schedulable": 0, "excluded": 1, "excluded_by": "slurm:failure",
    "breaker": 0, "reason": "driver_unresponsive",
}  # fmt: skip


class Rig:
    """Each node of the Slurm has a run directory of its own: a wrapper finds it by the name that slurmd gives."""

    def __init__(self, slurm: Slurm) -> None:
        self.slurm = slurm
        self.folder = slurm.folder

    def prepare(self) -> str:
        """Make the folders and scripts, and return the lines of slurm.conf for them."""
        for name in self.slurm.names:
            (self.folder / f"run-{name}").mkdir(exist_ok=True)
            self.notes(name).mkdir(parents=True, exist_ok=True)
            (self.folder / f"state-{name}").mkdir(exist_ok=True)
        command = self.folder / "gpuwarden"
        command.write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
        command.chmod(0o755)
        for script in ("healthcheck", "prolog", "epilog"):
            self._wrap(script)
        return (
            f"HealthCheckProgram={self.folder}/healthcheck\nHealthCheckInterval=2\nHealthCheckNodeState=ANY\n"
            f"Prolog={self.folder}/prolog\nEpilog={self.folder}/epilog\nPrologFlags=Alloc\n"
        )

    def notes(self, node: str) -> Path:
        """Return the folder of this node in which prolog and epilog leave notes."""
        return self.folder / f"run-{node}-slurm/jobs"

    def _wrap(self, script: str) -> None:
        """Wrap the script: it waits for as long as the test holds the gate, the epilog for that of its job, and its output is noted."""
        copy = self.folder / f"gpuwarden-slurm-{script}"
        shutil.copy(SCRIPTS / copy.name, copy)
        wrapper = self.folder / script
        wrapper.write_text(
            "#!/bin/sh\n"
            f"GPUWARDEN_RUN_DIR={self.folder}/run-$SLURMD_NODENAME GPUWARDEN_STATE_DIR={self.folder}/state-$SLURMD_NODENAME\n"
            f"GPUWARDEN_COMMAND={self.folder}/gpuwarden\n"
            "export GPUWARDEN_RUN_DIR GPUWARDEN_STATE_DIR GPUWARDEN_COMMAND\n"
            f"[ ! -r {self.folder}/variables ] || . {self.folder}/variables\n"
            f"while [ {script} = prolog ] && [ -e {self.folder}/gate ]; do echo >{self.folder}/waiting; /bin/sleep 0.05; done\n"
            f"while [ {script} = epilog ] && [ -e {self.folder}/gate.$SLURM_JOB_ID ]; do /bin/sleep 0.05; done\n"
            f"{copy} >>{self.folder}/{script}-$SLURMD_NODENAME 2>&1\n"
        )
        wrapper.chmod(0o755)

    def verdict(self, node: str, **keys: object) -> None:
        lines = {**FAILED, "stamp": uptime(), **keys}
        path = self.folder / f"run-{node}/verdict"
        new = path.with_name("verdict.new")
        new.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        new.replace(path)

    def variables(self, **values: str) -> None:
        """Add variables to the environment of the scripts, as a wrapper of a site would set it."""
        lines = "".join(f"export {name}='{value}'\n" for name, value in values.items())
        (self.folder / "variables").write_text(lines)

    def output(self, script: str, node: str) -> str:
        path = self.folder / f"{script}-{node}"
        return path.read_text() if path.exists() else ""
