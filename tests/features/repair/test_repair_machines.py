"""A booted machine of a Slurm whose controller is another one: it fails, is drained, and goes down and comes back by gpuwarden's order."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.machine import debian_tree
from support.machine_cluster import NETWORK, bridge
from support.machine_gpuwarden import HOME, require_same_python
from support.machine_slurm import BAD, PACKAGES, Controller, GpuNode, SlurmPlan, installed

pytestmark = [pytest.mark.disposable, pytest.mark.slow, pytest.mark.xdist_group("machine")]

NAME = "gpu1"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[Controller, GpuNode]]:
    require_same_python()
    for parent in (tmp_path, tmp_path.parent):
        parent.chmod(0o755)
    plan = SlurmPlan((debian_tree(*PACKAGES),), (NAME,), NETWORK, secrets.token_bytes(128))
    base = installed(tmp_path, plan.trees[-1], at_once=1, bundles=True)
    with (
        bridge() as network,
        Controller(plan, tmp_path, network) as controller,
        GpuNode(plan, tmp_path / NAME, network, NAME, base) as node,
    ):
        node.wait(lambda: node.status().get("status") == "healthy", "the node to be healthy")
        node.wait(lambda: controller.state(NAME) == {"IDLE"}, "the node to be idle")
        yield controller, node


def test_a_node_that_needs_a_reboot_is_rebooted_once_after_its_job_and_the_bundle_and_stays_out_until_it_reads_well(
    cluster: tuple[Controller, GpuNode],
) -> None:
    controller, node = cluster
    job = controller.submit(NAME, 5)
    node.wait(lambda: controller.job(job).get("JobState") == "RUNNING", "the job to run")
    node.says(control_boot=node.gpus.fake.control.read_text())
    node.gpus.fake.reading(BAD, "recovery_action", 2)
    node.wait(lambda: "DRAIN" in controller.state(NAME), "the drain")
    node.wait(lambda: "order reboot" in "\n".join(node.record), "the order")
    assert controller.job(job)["JobState"] == "COMPLETED"
    node.wait(lambda: node.boots == 2 and node.status().get("status") == "healthy", "the node to be back")
    shown = node.status()
    assert shown["bundle"]["made"], shown["bundle"]
    assert [(attempt["step"], attempt["outcome"]) for attempt in shown["repair"]["tries"]] == [("reboot", "rebooted")]
    assert controller.state(NAME) == {"IDLE", "DRAIN"}
    done = [line.split()[1:] for line in node.record]
    told = node.journal("", "--identifier=gpuwarden-repair", "--output=export")
    lines = [dict(line.partition("=")[::2] for line in entry.splitlines()) for entry in told.strip().split("\n\n")]
    (line,) = (message for message in lines if message.get("MESSAGE", "").startswith("reboots this node: gpuwarden"))
    assert line["PRIORITY"] == "2"
    assert line["_BOOT_ID"] == done[0][2].replace("-", "")
    assert int(line["__REALTIME_TIMESTAMP"]) / 1e6 < float(node.record[1].split()[0]), "before the order"
    assert [words[:2] for words in done] == [["jobs=0", "boot"], ["jobs=0", "order"], ["jobs=0", "boot"]]
    assert done[0][2] != done[2][2], "each boot has an id of its own"
    status = (f"{HOME}/bin/gpuwarden", "status")
    node.wait(lambda: "no Xid must come for 120 s" in node.output(*status), "the look before the return")
