"""A host to which slurm.conf gives another name while the daemon runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpuwarden.features.slurm.node_actuator import SlurmActuator
from gpuwarden.policy.model import Result
from gpuwarden_collectors.base import host_clock
from gpuwarden_collectors.slurm.client import SlurmClient
from gpuwarden_collectors.slurm.options import SlurmOptions
from support.slurm import SLURM_PARTS, Slurm
from support.slurm_reconciler import FAILURE, a_reconciler, exclude

pytestmark = SLURM_PARTS


def assign(slurm: Slurm, *hosts: str) -> None:
    """The first node is the first of these hosts, and so on, from now on."""
    slurm.configure()
    text = slurm.conf.read_text()
    for name, host in zip(slurm.names, hosts, strict=True):
        before, line, after = text.partition(f"NodeName={name} ")
        text = before + line + after.replace("NodeHostname=localhost", f"NodeHostname={host}", 1)
    slurm.conf.write_text(text)
    slurm.restart()


@contextmanager
def assigned(slurm: Slurm, *hosts: str) -> Iterator[None]:
    try:
        assign(slurm, *hosts)
        yield
    finally:
        slurm.configure()
        slurm.restart()


def an_actuator(slurm: Slurm, host: str) -> SlurmActuator:
    """Return an actuator that finds the name of its node."""
    client = SlurmClient(conf=slurm.conf, timeout=60.0, hostname=host)
    return SlurmActuator(SlurmOptions(enabled=True, conf=slurm.conf), client, clock=host_clock)


async def test_a_host_that_slurm_calls_by_another_name_by_now_is_drained_by_that(slurm: Slurm) -> None:
    """Its old name is that of another machine, which is well."""
    with assigned(slurm, "host-a", "host-b", "host-c"):
        actuator = an_actuator(slurm, "host-a")
        await actuator.read()
        assert await actuator.commands.node_name() == "n1"
        assign(slurm, "host-b", "host-a", "host-c")
        outcome, _ = await a_reconciler(actuator).attempt(exclude())
        assert (outcome.result, slurm.reason("n2")) == (Result.DONE, FAILURE)
        assert slurm.state("n1") == {"IDLE"}


async def test_a_machine_whose_name_went_to_its_spare_drains_the_spare_no_more(slurm: Slurm) -> None:
    with assigned(slurm, "host-a", "host-b", "host-c"):
        actuator = an_actuator(slurm, "host-a")
        await actuator.read()
        assign(slurm, "spare", "host-b", "host-c")
        outcome, _ = await a_reconciler(actuator).attempt(exclude())
        assert outcome.result is Result.REFUSED
        assert "set slurm.node to its NodeName" in outcome.text
        assert slurm.state("n1") == {"IDLE"}
