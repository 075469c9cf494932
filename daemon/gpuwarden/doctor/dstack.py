"""dstack: whether its server is answered on this host, and by whom. Asks, changes nothing."""

from __future__ import annotations

import json

from gpuwarden.base.addresses import Address
from gpuwarden.config.dstack import SERVED
from gpuwarden.config.model import Config
from gpuwarden.doctor.row import Row, fail, ok
from gpuwarden_collectors.cloud.metadata import Metadata, MetadataError

AREA = "dstack"
ANSWERS_WITHIN = 3.0


async def dstack(config: Config, served: Address = SERVED) -> list[Row]:
    """`served`: where dstack's server asks."""
    if not config.dstack.enabled:
        return []
    start = "systemctl enable --now gpuwarden-dstack.socket: without an answer dstack takes this host for unreachable"
    moved = "see systemctl status dstack-shim.service; docs/dstack.md says how it is moved there"
    return [await _answers("server", served, start), await _answers("agent", config.dstack.shim, moved)]


async def _answers(check: str, address: Address, to_do: str) -> Row:
    http = Metadata(f"http://{address}", ANSWERS_WITHIN)
    try:
        reply = await http.get("/api/healthcheck")
        said = json.loads(reply.body)
    except MetadataError as error:
        return fail(AREA, check, str(error), to_do)
    except (ValueError, RecursionError):
        said = None
    finally:
        await http.close()
    if not isinstance(said, dict) or said.get("service") != "dstack-shim":
        return fail(AREA, check, f"something else than dstack's agent answers at {address}", to_do)
    return ok(AREA, check, f"{address} answers as dstack-shim {str(said.get('version'))[:40]}")
