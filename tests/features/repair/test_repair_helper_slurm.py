"""Root's helper has a real Slurm reboot a node that gpuwarden drained: it takes the order and its reason, and the drain stays after the boot."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.repair_helper import RepairHost, helpers
from support.slurm import CONTROLLER, SLURM_PARTS, Slurm, running

pytestmark = [*SLURM_PARTS, pytest.mark.slow]
DRAINED = "gpuwarden: failure gpu=3 xid=79"
REASON = "gpuwarden: repair: xid 79 of GPU 3"
REQUEST = {"verb": "step", "id": "try-1", "step": "reboot", "reason": REASON}


@pytest.fixture
def rebooted(tmp_path: Path) -> Path:
    """Return the file that RebootProgram makes."""
    tmp_path.chmod(0o755)
    program = tmp_path / "reboot.sh"
    program.write_text(f"#!/bin/sh\n: > {tmp_path}/rebooted\n")
    program.chmod(0o755)
    return tmp_path / "rebooted"


@pytest.fixture
def slurm(tmp_path: Path, rebooted: Path) -> Iterator[Slurm]:
    folder = tmp_path / "slurm"
    folder.mkdir()
    with running(Slurm(folder, nodes=1, more=f"RebootProgram={rebooted.with_name('reboot.sh')}")) as slurm:
        yield slurm


@pytest.fixture
def host(tmp_path: Path, slurm: Slurm) -> Iterator[RepairHost]:
    (tmp_path / "host").mkdir()
    with helpers() as made:
        host = RepairHost(tmp_path / "host", made)
        (host.folder / "bin/scontrol").unlink()
        folder_of_slurm = Path(shutil.which("scontrol") or "").parent
        host.settings |= {"slurm_conf": str(slurm.conf), "slurm_folder": str(folder_of_slurm)}
        slurm.drain("n1", DRAINED)
        yield host


def test_a_node_that_we_drained_is_rebooted_with_our_reason_and_stays_drained(
    slurm: Slurm, host: RepairHost, rebooted: Path
) -> None:
    assert host.ask(REQUEST) == {"done": True, "text": "Slurm reboots n1 once its jobs have ended"}
    assert slurm.reason("n1").startswith(REASON), "the reason of the drain is replaced"
    slurm.wait(rebooted.exists, "slurmd to run RebootProgram")
    slurm.stop("n1")
    # To Slurm a boot in the second of its order is none (src/slurmctld/node_mgr.c, waiting_for_node_boot).
    time.sleep(2.0)
    slurm.start("n1", booted=True)
    slurm.wait(lambda: slurm.state("n1") == {"IDLE", "DRAIN"}, "the node to be back, for a test before its return")
    assert slurm.reason("n1").startswith(REASON)
    # Not by a node that is unknown: 24.05 passes over it and reports success (src/slurmctld/proc_req.c, _slurm_rpc_reboot_nodes).
    host.settings |= {"slurm_conf": str(slurm.folder / "missing.conf")}
    host.set("now", "2000000")
    answer = host.ask({**REQUEST, "id": "try-2"})
    assert (answer["refused"], "scontrol reboot of n1" in answer["why"]) == (True, True)


def test_an_order_that_a_controller_which_hangs_takes_counts_as_given(
    slurm: Slurm, host: RepairHost, rebooted: Path
) -> None:
    """Slurm carries it out once it continues. A refusal would be no try, and the node would return untested."""
    slurm.pause(CONTROLLER)
    answer = host.ask(REQUEST)
    assert (answer.get("done"), "Slurm may reboot n1" in answer["text"]) == (True, True)
    slurm.resume(CONTROLLER)
    slurm.wait(rebooted.exists, "slurmd to run RebootProgram")
