"""The name of a node that gets its name from the network, as a diskless node does: by DHCP, after the boot has begun."""

from __future__ import annotations

import json

import pytest

from support.machine_gpuwarden import HOME, install, machine_with_gpus

pytestmark = [pytest.mark.disposable, pytest.mark.xdist_group("systemd")]

LEASE = """
[Unit]
DefaultDependencies=no
After=network.target
Before=network-online.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'sleep 3; hostname gpu-node17'
[Install]
WantedBy=network-online.target
"""
"""What NetworkManager, or systemd-networkd, and its wait for an address are."""


@pytest.mark.slow
def test_a_node_has_the_name_that_the_network_gives_it() -> None:
    with machine_with_gpus() as (machine, gpus):
        install(machine, gpus, gpus.configuration().replace('node = "machine"\n', ""))
        machine.write("/etc/systemd/system/lease.service", LEASE)
        wanted = machine.path("/etc/systemd/system/network-online.target.wants")
        wanted.mkdir(parents=True)
        (wanted / "lease.service").symlink_to("../lease.service")
        with machine:
            machine.wait(lambda: machine.show("gpuwarden.service", "ActiveState") == "active", "the daemon")
            status = json.loads(machine.output(f"{HOME}/bin/gpuwarden", "status", "--json"))
            assert status["node"] == "gpu-node17"
