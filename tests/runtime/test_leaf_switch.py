"""The label of the leaf switch, as a real Slurm's topology names it, with one request."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuwarden.runtime.leaf_switch import LeafSwitch
from gpuwarden_collectors.slurm.client import SlurmClient
from support.daemons import FakeHost
from support.scrape import Scrape
from support.slurm import CONTROLLER, SLURM, Slurm, require_slurm, running

pytestmark = SLURM

TREE = "SwitchName=leaf1 Nodes=n[1-2]\nSwitchName=leaf2 Nodes=n3\nSwitchName=spine Switches=leaf[1-2]\n"


@pytest.fixture(scope="module")
def with_topology() -> Iterator[Slurm]:
    require_slurm()
    with tempfile.TemporaryDirectory(prefix="gw-slurm-", ignore_cleanup_errors=True) as folder:
        slurm = Slurm(Path(folder), more="TopologyPlugin=topology/tree")
        slurm.conf.with_name("topology.conf").write_text(TREE)
        with running(slurm):
            yield slurm


def switch(daemon_page: bytes) -> str:
    (labels,) = Scrape(daemon_page).labels("gpuwarden_machine_info")
    return labels.get("switch", "")


@pytest.mark.slow
def test_the_daemon_has_the_switch_of_slurm_s_topology(with_topology: Slurm, tmp_path: Path) -> None:
    host = FakeHost(tmp_path, 1)
    host.configure(f'[slurm]\nenabled = true\nnode = "n3"\nconf = "{with_topology.conf}"\n')
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        daemon.wait(lambda: switch(daemon.get("/metrics")[1]) == "leaf2", "the switch to be known")


@pytest.mark.slow
async def test_it_is_read_once_and_soon_again_only_after_no_answer(with_topology: Slurm) -> None:
    client = SlurmClient(conf=with_topology.conf, timeout=3.0, node="n1")
    leaf = LeafSwitch("", client, soon=0.1)
    with_topology.pause(CONTROLLER)
    leaf.run()
    async with asyncio.timeout(150):
        while client.calls < 2:
            await asyncio.sleep(0.05)
        assert leaf.known == ""
        with_topology.resume(CONTROLLER)
        while not leaf.known:
            await asyncio.sleep(0.05)
    calls = client.calls
    await asyncio.sleep(0.5)
    assert (leaf.known, client.calls) == ("leaf1", calls)
    await leaf.stop()
    await client.close()


async def test_a_slurm_without_a_topology_names_none(slurm: Slurm) -> None:
    client = SlurmClient(conf=slurm.conf, timeout=60.0, node="n1")
    leaf = LeafSwitch("", client)
    leaf.run()
    async with asyncio.timeout(150):
        while client.calls < 1 or client.in_flight:
            await asyncio.sleep(0.05)
    await leaf.stop()
    assert leaf.known == ""
    await client.close()
