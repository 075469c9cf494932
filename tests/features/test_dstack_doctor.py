"""What `doctor` reports of dstack: who answers its server on this host, and where its own agent listens."""

from __future__ import annotations

from typing import Any

from gpuwarden.base.addresses import Address
from gpuwarden.config.model import Config
from gpuwarden.doctor.row import Grade
from gpuwarden.features.dstack.doctor import dstack
from gpuwarden.features.dstack.options import DstackOptions
from support.shims import shim


async def test_the_doctor_names_the_program_that_responds_to_dstack() -> None:
    async with shim() as agent, shim() as other:
        options = DstackOptions(enabled=True, shim=Address("127.0.0.1", agent.port))
        tables: dict[str, Any] = {"dstack": options}
        config = Config(**tables)
        rows = await dstack(config, Address("127.0.0.1", other.port))
        assert [(row.check, row.grade) for row in rows] == [("server", Grade.OK), ("agent", Grade.OK)]
        assert "responds as dstack-shim 0.22.5" in rows[0].found
    rows = await dstack(config, Address("127.0.0.1", other.port))
    assert {row.grade for row in rows} == {Grade.FAIL}
    assert "systemctl enable --now gpuwarden-dstack.socket" in rows[0].to_do
    assert await dstack(Config()) == []
