"""dstack: whether its server is answered on this host, by whom, and whether its agent could be stopped. Asks, changes nothing."""

from __future__ import annotations

import json

from gpuwarden.actuators.base import ActuatorError
from gpuwarden.actuators.dstack_shim.actuator import UNIT, dstack_shim_actuators
from gpuwarden.actuators.fleet_count import NoCounter
from gpuwarden.base.addresses import Address
from gpuwarden.config.dstack import SERVED, asked_at
from gpuwarden.config.model import Config
from gpuwarden.doctor.row import Row, fail, ok, warn
from gpuwarden.policy.model import Owner
from gpuwarden_collectors.base import host_clock
from gpuwarden_collectors.cloud.metadata import Metadata, MetadataError

AREA = "dstack"
ANSWERS_WITHIN = 3.0


async def dstack(config: Config, served: Address = SERVED) -> list[Row]:
    """`served`: where dstack's server asks."""
    rows: list[Row] = []
    if config.dstack.enabled:
        to_do = (
            "systemctl enable --now gpuwarden-dstack.socket: without an answer dstack takes this host for unreachable"
        )
        rows.append(await _answers("server", served, to_do))
        to_do = f"see systemctl status {UNIT}; docs/dstack.md says how it is moved there"
        rows.append(await _answers("agent", config.dstack.shim, to_do))
    return [*rows, await _stoppable(config)] if config.dstack.stop_shim_when_idle else rows


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


async def _stoppable(config: Config) -> Row:
    (actuator,) = dstack_shim_actuators(config, host_clock, NoCounter(config.node, allowed=True))
    try:
        hindrance, standing = await actuator.hindrance(), await actuator.look()
    except ActuatorError as error:
        return fail(
            AREA,
            "stop",
            str(error),
            "mend it, or leave stop_shim_when_idle out: until then nothing is stopped, and dstack goes on placing jobs here",
        )
    finally:
        await actuator.close()
    found = f"{UNIT} is {standing.state}"
    if standing.owner is Owner.FOREIGN:
        return warn(AREA, "stop", f"{found}, and not by gpuwarden", f"if that is not meant: systemctl start {UNIT}")
    if hindrance:
        to_do = f"if that lasts: systemctl set-property --runtime {UNIT} IPAddressDeny= IPAddressAllow="
        return warn(AREA, "stop", f"{found}; {hindrance}", to_do)
    if standing.trouble:
        return warn(
            AREA,
            "stop",
            standing.trouble,
            f"see systemctl status {UNIT}: it should listen at {asked_at(config.dstack)}",
        )
    return ok(AREA, "stop", f"{found}{f': {standing.busy}' if standing.busy else ''}")
