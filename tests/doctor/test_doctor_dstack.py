"""What `doctor` reports of dstack: who answers its server on this host, and where its own agent listens."""

from __future__ import annotations

from gpuwarden.base.addresses import Address
from gpuwarden.config.dstack import DstackOptions
from gpuwarden.config.model import Config
from gpuwarden.doctor.dstack import dstack
from gpuwarden.doctor.row import Grade
from support.shims import shim


async def test_the_doctor_names_the_program_that_responds_to_dstack() -> None:
    async with shim() as agent, shim() as other:
        config = Config(dstack=DstackOptions(enabled=True, shim=Address("127.0.0.1", agent.port)))
        rows = await dstack(config, Address("127.0.0.1", other.port))
        assert [(row.check, row.grade) for row in rows] == [("server", Grade.OK), ("agent", Grade.OK)]
        assert "responds as dstack-shim 0.22.5" in rows[0].found
    rows = await dstack(config, Address("127.0.0.1", other.port))
    assert {row.grade for row in rows} == {Grade.FAIL}
    assert "systemctl enable --now gpuwarden-dstack.socket" in rows[0].to_do
    assert await dstack(Config()) == []
