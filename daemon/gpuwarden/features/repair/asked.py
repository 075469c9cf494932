"""Answers `gpuwarden repair`: the ladder of a finding, the next step, and what forbids it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpuwarden.base.peer import Peer
from gpuwarden.base.services import NoAnswer, NotBegun
from gpuwarden.features.repair.client import probe
from gpuwarden.features.repair.ladder import ladder
from gpuwarden.features.repair.plan import Plan
from gpuwarden.features.repair.preconditions import Obstacle, Scene, fitted, notes, obstacles
from gpuwarden.features.repair.scene import Sight
from gpuwarden.publish.sockets.control import Verb, VerbError

Document = dict[str, Any]
PROBED_WITHIN = 2.0
"""Seconds, out of the four that a verb has."""
SHOWN_MOST = 10
FLEET = "repair.at_once and repair.per_day are checked in the fleet right before the step"


class Asking:
    """Answers operators. `order` takes an operator's order, and returns why it is refused; "" if it begins."""

    def __init__(self, sight: Sight, order: Callable[[Plan, str], str]) -> None:
        self._sight = sight
        self._order = order

    def verbs(self) -> dict[str, Verb]:
        return {"repair": self._repair}

    async def _repair(self, arguments: dict[str, Any], peer: Peer) -> Document:
        name, dry_run = arguments.get("finding"), arguments.get("dry_run", False)
        if not isinstance(name, str) or not isinstance(dry_run, bool):
            raise VerbError("repair needs `finding` to be the id of a finding and `dry_run` to be true or false")
        plan = self._sight.plan_for(name)
        if plan is None:
            raise VerbError(f"there is no finding {name[:100]!r} now{self._others()}")
        planned, scene, slow = await self._fitted(plan, self._sight.scene(ordered=True))
        barred = obstacles(scene, planned)
        begun = ""
        if not dry_run and not barred:
            begun = self._order(planned, "root" if peer.uid == 0 else f"uid {peer.uid}")
        return {
            "finding": str(planned.finding.key),
            "title": planned.finding.title,
            "ladder": [" ".join(filter(None, map(str, rung))) for rung in _rungs(planned, scene)],
            "step": None if planned.step is None else str(planned.step),
            "try": planned.number,
            "forbidden_by": [_obstacle(obstacle) for obstacle in barred],
            "notes": [*notes(scene, planned), *slow, *([FLEET] if dry_run and not barred else [])],
            "ordered": not dry_run and not barred and not begun,
            "not_ordered": begun,
        }

    async def _fitted(self, planned: Plan, scene: Scene) -> tuple[Plan, Scene, tuple[str, ...]]:
        """Return both with what the helper can do here, and a note if it is slow: a hung driver must not block that."""
        if planned.step is None:
            return planned, scene, ()
        try:
            host = await probe(self._sight.options.socket, planned.step, within=PROBED_WITHIN)
        except NotBegun as error:
            return planned, replace(scene, helper=str(error)), ()
        except NoAnswer as error:
            return planned, scene, (f"{error}: the helper is asked again right before the step",)
        return replace(planned, step=fitted(planned.step, host.able)), replace(scene, unable=host.unable), ()

    def _others(self) -> str:
        names = [str(plan.finding.key) for plan in self._sight.plans()][:SHOWN_MOST]
        return f"; failures: {', '.join(names)}" if names else ": gpuwarden status shows those there are"


def _rungs(planned: Plan, scene: Scene) -> tuple[tuple[object, ...], ...]:
    return tuple((rung.kind, rung.service or "") for rung in ladder(planned.finding, scene.verdict.domain))


def _obstacle(obstacle: Obstacle) -> Document:
    return {"precondition": obstacle.precondition.value, "why": obstacle.text}
