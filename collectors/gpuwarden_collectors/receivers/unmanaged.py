"""Groups processes that hold a GPU outside of jobs and containers with the processes of their tree.

The tree begins below processes that only provide access: a service, a process of another user, a shell started only by
shells. It contains the ancestors of GPU processes down from there, and all their descendants: launchers, ranks,
helpers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.receivers.facts import Role
from gpuwarden_collectors.receivers.names import named


@dataclass(frozen=True, slots=True)
class ProcessNode:
    """One process of the whole host."""

    pid: int
    parent: int
    name: str


def trees(
    holders: Collection[int], nodes: Mapping[int, ProcessNode], uid_of: Callable[[int], int | None]
) -> dict[int, set[int]]:
    """Returns the processes of each tree, by its topmost process.

    `nodes` omits processes of other groups, so that a tree ends there in both directions.
    """
    tree = _Trees(nodes, uid_of)
    by_root: dict[int, set[int]] = {}
    for holder in sorted(holders):
        if holder in nodes and not tree.is_service(holder):
            way = tree.upwards(holder)
            by_root.setdefault(way[-1], set()).update(way, tree.downwards(holder))
    taken: set[int] = set()
    for root, pids in by_root.items():
        by_root[root] = (
            pids - taken
        )  # PIDs reused during the scan can form a cycle, which has several topmost processes
        taken |= pids
    return {root: pids for root, pids in by_root.items() if pids}


class _Trees:
    def __init__(self, nodes: Mapping[int, ProcessNode], uid_of: Callable[[int], int | None]) -> None:
        self._nodes = nodes
        self._uid_of = uid_of
        self._children: dict[int, list[int]] = {}
        for node in nodes.values():
            self._children.setdefault(node.parent, []).append(node.pid)

    def is_service(self, pid: int) -> bool:
        return named(self._nodes[pid].name, ()) is Role.SERVICE

    def upwards(self, holder: int) -> list[int]:
        """Returns the processes from `holder` up to the topmost of its tree."""
        way, top = [holder], 1
        while (pid := self._nodes[way[-1]].parent) not in way and self._are_one(pid, way[-1]):
            way.append(pid)
            if named(self._nodes[pid].name, ()) is not Role.SHELL:
                top = len(way)
        return way[:top]

    def downwards(self, holder: int) -> set[int]:
        descendants, todo = set[int](), [holder]
        while todo:
            parent = todo.pop()
            for pid in self._children.get(parent, ()):
                if pid not in descendants and self._are_one(parent, pid):
                    descendants.add(pid)
                    todo.append(pid)
        return descendants

    def _are_one(self, parent: int, child: int) -> bool:
        if parent <= 1 or parent not in self._nodes or self.is_service(parent) or self.is_service(child):
            return False
        return self._uid_of(parent) == self._uid_of(child)
