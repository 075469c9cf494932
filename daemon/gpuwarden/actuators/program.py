"""A program of the site as an actuator, `[exec.exclude]`: it reports the node's state, excludes it and restores it.

It gets one JSON object on its standard input, and the main fields in its environment for scripts without a parser:

    {"format":1,"verb":"exclude","node":"n1","cause":"failure","reason":"gpuwarden: failure gpu=3 xid=79","check":"xid",
     "since":"…","boot_id":"…","owner":"gpuwarden","actuator":"exec"}        GPUWARDEN_VERB, _NODE, _REASON

For the verb `look` it prints `{"excluded":false}`, or `{"excluded":true,"reason":"…","since":1772366400}` with the
reason that gpuwarden passed, or with that of another party's exclusion, which is not touched. Exit code 0: done. 64,
77, 78, 126 and 127: refused until an operator changes something. Others: retried.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpuwarden.actuators.base import ActuatorRefused, ActuatorUnavailable, Counter
from gpuwarden.actuators.marker_file import marker_text
from gpuwarden.actuators.subprocesses import Runs, complaint
from gpuwarden.base.json_text import parsed_object
from gpuwarden.config.exec import Program
from gpuwarden.policy import reasons
from gpuwarden.policy.model import Act, FleetCount, Intent, NodeState, Owner
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.host import boot_id
from gpuwarden_collectors.plugin.plugin import plugin_environment

if TYPE_CHECKING:  # uses its table `[exec]`
    from gpuwarden.config.model import Config

REFUSED = frozenset({64, 77, 78, 126, 127})
"""EX_USAGE, EX_NOPERM and EX_CONFIG of sysexits.h; the shell's codes if a program cannot be run or found."""
LARGEST = 16 << 10
"""Bytes of its output."""
_SHOWN = 300  # characters of an output that cannot be used


class ExecActuator:
    """Excludes the node with a program. `inherited`: the environment; the program gets what a site check gets."""

    name = "exec"
    sheds_load = False

    def __init__(
        self,
        program: Program,
        *,
        node: str,
        boot_id: str,
        counter: Counter,
        clock: Clock,
        inherited: Mapping[str, str] = os.environ,
    ) -> None:
        self._program = program
        self._node = node
        self._boot_id = boot_id
        self._counter = counter
        self._clock = clock
        self._environment = plugin_environment(inherited)
        self._runs = Runs(LARGEST)

    async def read(self) -> NodeState:
        output = await self._call("look", {"format": 1, "node": self._node, "actuator": self.name})
        return self._node_state(_object(output))

    async def fleet_count(self) -> FleetCount:
        return await self._counter.fleet_count()

    async def apply(self, intent: Intent, state: NodeState) -> None:  # noqa: ARG002 - the program reads the state itself
        text = marker_text(intent, node=self._node, boot_id=self._boot_id, since=self._clock().wall)
        await self._call("exclude" if intent.act is Act.EXCLUDE else "restore", json.loads(text))

    async def close(self) -> None:
        """No-op: cancelling the waiting task kills a running program."""

    def _node_state(self, output: Mapping[str, Any]) -> NodeState:
        at, pool = self._clock(), self._counter.pool
        if output.get("excluded") is False:
            return NodeState(at=at, state="in", pool=pool)
        reason, since = output.get("reason", ""), output.get("since", 0)
        if output.get("excluded") is not True or not isinstance(reason, str) or not _is_time(since):
            raise ActuatorUnavailable(
                f"{self._program.command[0]} answers look with {str(dict(output))[:_SHOWN]}: {_SHAPE}"
            )
        own = reasons.parse(reason)
        if own is None:
            return NodeState(
                at=at,
                owner=Owner.FOREIGN,
                reason=reasons.line(reason),
                since=float(since),
                schedulable=False,
                state="out",
                pool=pool,
            )
        return NodeState(
            at=at,
            owner=Owner.OURS,
            why=own.why,
            reason=reasons.line(own.text),
            suffix=reasons.line(own.suffix),
            since=float(since),
            boot=own.boot,
            instance=own.instance,
            schedulable=False,
            state="out",
            pool=pool,
        )

    async def _call(self, verb: str, request: Mapping[str, Any]) -> bytes:
        """Run the program and return its standard output. Raises ActuatorError."""
        variables = {
            "GPUWARDEN_VERB": verb,
            "GPUWARDEN_NODE": self._node,
            "GPUWARDEN_REASON": str(request.get("reason", "")),
        }
        done = await self._runs.run(
            self._undone(verb),
            self._program.command,
            {**self._environment, **variables},
            self._program.timeout,
            json.dumps({"verb": verb, **request}, separators=(",", ":")).encode() + b"\n",
        )
        if done.exit_code == 0:
            return done.stdout
        text = f"{self._undone(verb)}: {self._program.command[0]} {complaint(done)}"
        raise (ActuatorRefused if done.exit_code in REFUSED else ActuatorUnavailable)(text)

    def _undone(self, verb: str) -> str:
        return f"cannot {verb} {self._node}"


_SHAPE = 'expected {"excluded":false}, or {"excluded":true,"reason":"...","since":1772366400}'


def _object(output: bytes) -> Mapping[str, Any]:
    """Parse a JSON object. Raises ActuatorUnavailable for anything else."""
    if (answer := parsed_object(output)) is None:
        raise ActuatorUnavailable(f"the program answers look with {output[:60].decode('latin-1')!r}: {_SHAPE}")
    return answer


def _is_time(since: object) -> bool:
    return isinstance(since, int | float) and abs(since) < 1e11  # false for NaN too


def exec_actuators(config: Config, clock: Clock, counter: Counter) -> list[ExecActuator]:
    """Make the actuator for the registry, if a program is configured."""
    program = config.exec.exclude
    if not program.command:
        return []
    return [ExecActuator(program, node=config.node, boot_id=boot_id(config.paths.proc), counter=counter, clock=clock)]
