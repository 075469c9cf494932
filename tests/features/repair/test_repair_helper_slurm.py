"""Root's helper has a real Slurm reboot a node that gpuwarden drained: it takes the order and its reason, and the drain stays after the boot."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.repair_helper import RepairHost, helpers
from support.slurm import SLURM, Slurm, running

pytestmark = [*SLURM, pytest.mark.slow]
DRAINED = "gpuwarden: failure gpu=3 xid=79"
REASON = "gpuwarden: repair: xid 79 of GPU 3"


def test_a_node_that_we_drained_is_rebooted_with_our_reason_and_stays_drained(tmp_path: Path) -> None:
    folder, rebooted = tmp_path / "slurm", tmp_path / "rebooted"
    folder.mkdir()
    program = tmp_path / "reboot.sh"
    program.write_text(f"#!/bin/sh\n: > {rebooted}\n")
    program.chmod(0o755)
    tmp_path.chmod(0o755)
    (tmp_path / "host").mkdir()
    with running(Slurm(folder, nodes=1, more=f"RebootProgram={program}")) as slurm, helpers() as made:
        host = RepairHost(tmp_path / "host", made)
        (host.folder / "bin/scontrol").unlink()
        folder_of_slurm = Path(shutil.which("scontrol") or "").parent
        host.settings |= {"slurm_conf": str(slurm.conf), "slurm_folder": str(folder_of_slurm)}
        slurm.drain("n1", DRAINED)
        request = {"verb": "step", "id": "try-1", "step": "reboot", "reason": REASON}
        assert host.ask(request) == {"done": True, "text": "Slurm reboots n1 once its jobs have ended"}
        assert slurm.reason("n1").startswith(REASON), "the reason of the drain is replaced"
        slurm.wait(rebooted.exists, "slurmd to run RebootProgram")
        slurm.stop("n1")
        slurm.start("n1", booted=True)
        slurm.wait(lambda: slurm.state("n1") == {"IDLE", "DRAIN"}, "the node to be back, for a test before its return")
        assert slurm.reason("n1").startswith(REASON)
        # Not by a node that is unknown: 24.05 passes over it and reports success (src/slurmctld/proc_req.c, _slurm_rpc_reboot_nodes).
        host.settings |= {"slurm_conf": str(folder / "missing.conf")}
        host.set("now", "2000000")
        answer = host.ask({**request, "id": "try-2"})
        assert (answer["refused"], "scontrol reboot of n1" in answer["why"]) == (True, True)
