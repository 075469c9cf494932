"""Checks dstack: whether its server gets responses on this host, and from which process. Reads only."""

from __future__ import annotations

from gpuwarden.base.addresses import Address
from gpuwarden.base.json_text import parsed_object
from gpuwarden.config.model import Config
from gpuwarden.doctor.check import Check, in_loop
from gpuwarden.doctor.row import Row, fail, ok
from gpuwarden.features.dstack.options import SERVED, DstackOptions
from gpuwarden_collectors.cloud.metadata import Metadata, MetadataError

RESPONSE_WITHIN = 3.0


async def dstack(config: Config, served: Address = SERVED) -> list[Row]:
    """Return the rows about both agents. `served`: the address that dstack's server calls."""
    options = config.of(DstackOptions)
    if not options.enabled:
        return []
    start = "systemctl enable --now gpuwarden-dstack.socket: without a response dstack treats this host as unreachable"
    moved = (
        "see systemctl status dstack-shim.service; docs/use/dstack.md shows how to move dstack's agent to this address"
    )
    return [await _responds("server", served, start), await _responds("agent", options.shim, moved)]


async def _responds(check: str, address: Address, to_do: str) -> Row:
    http = Metadata(f"http://{address}", RESPONSE_WITHIN)
    try:
        reply = await http.get("/api/healthcheck")
        response = parsed_object(reply.body)
    except MetadataError as error:
        return fail(check, str(error), to_do)
    finally:
        await http.close()
    if response is None or response.get("service") != "dstack-shim":
        return fail(check, f"a program other than dstack's agent responds at {address}", to_do)
    return ok(check, f"{address} responds as dstack-shim {str(response.get('version'))[:40]}")


CHECKS = {"dstack": Check(in_loop(dstack), area="dstack")}
