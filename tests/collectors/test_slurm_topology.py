"""The leaf switch of a node by `scontrol show topology`."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwarden_collectors.slurm.client import SlurmClient
from gpuwarden_collectors.slurm.topology import leaf_switch, read_leaf_switch

TREE = """SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[03-11],m1
SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-2,03-11],m[1-2] Switches=leaf[1-2]
"""
"""As Slurm 22.05 prints it."""


@pytest.mark.parametrize(
    ("node", "switch"), [("n2", "leaf1"), ("n10", "leaf2"), ("m1", "leaf2"), ("m2", ""), ("n3", ""), ("", "")]
)
def test_the_switch_at_the_lowest_level_that_has_the_node(node: str, switch: str) -> None:
    assert leaf_switch(TREE, node) == switch


@pytest.mark.parametrize(
    "text",
    ["", "No topology information available", "BlockName=b1 BlockIndex=0 Nodes=n[2-3] BlockSize=18", "Level=0 Nodes=n1", "\0 = =\n="],
)  # fmt: skip
def test_what_names_no_switch_gives_none(text: str) -> None:
    assert leaf_switch(text, "n1") == ""


def test_a_node_of_a_block_has_the_name_of_the_block_as_25_11_shows_it() -> None:
    blocks = "BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2\nBlockName=b2 BlockIndex=1 Nodes=n3 BlockSize=2\n"
    assert [leaf_switch(blocks, name) for name in ("n1", "n3", "n4")] == ["b1", "b2", ""]


SEVERAL = """
case "$*" in
  "show topology tr") printf "SwitchName=leaf1 Level=0 LinkSpeed=0 Nodes=n[1-2]\\n" ;;
  "show topology bl") printf "BlockName=b1 BlockIndex=0 Nodes=n3 BlockSize=1\\n" ;;
  "show topology") ;;
  *) printf "PartitionName=%s Nodes=%s State=UP Topology=%s\\n" a "n[1-2]" tr b n3 bl c "n[1-4]" flat ;;
esac
"""
"""As 25.05.8 and 26.05.3 answer where topology.yaml has a flat default beside a tree and blocks."""


@pytest.mark.parametrize(("node", "switch"), [("n2", "leaf1"), ("n3", "b1"), ("n4", "")], ids=str)
async def test_of_several_topologies_that_of_the_partition_of_the_node_counts(
    tmp_path: Path, node: str, switch: str
) -> None:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f"#!/bin/sh\n{SEVERAL}")
    scontrol.chmod(0o755)
    client = SlurmClient(folder=tmp_path, node=node)
    assert await read_leaf_switch(client.routine) == switch
    await client.close()
