"""The fields that one connection watches, and their latest values."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from gpuwarden_collectors.dcgm.engine import GPU, Engine, Entity
from gpuwarden_collectors.dcgm.facts import DcgmReadings
from gpuwarden_collectors.dcgm.fields import GPU_FIELDS, NODE, NODE_FIELDS, PROFILING, Values, by_entity, ids


class Readings:
    """The watched fields of all GPUs.

    `error` is why fields are not watched. Profiling fields have their own field group, since the engine may refuse to
    watch them (no licensed module, counters in use, several passes needed); `profiling_error` is the reason.
    """

    def __init__(self, engine: Engine, interval: float, *, profiling: bool) -> None:
        """Make the field groups in the engine. Raises DCGMError if it refuses them."""
        self._engine = engine
        self._interval = interval
        self._gpu_fields = engine.known(ids(GPU_FIELDS))
        self._node_fields = engine.known(ids(NODE_FIELDS))
        self._profiling = engine.known(ids(PROFILING)) if profiling else []
        self._groups: dict[str, Any] = {
            name: engine.new_field_group(name, fields)
            for name, fields in (("fields", self._gpu_fields + self._node_fields), ("profiling", self._profiling))
            if fields
        }
        self.error = ""
        self.profiling_error = "" if profiling else "switched off (collectors.dcgm.profiling)"

    def watch(self, group: Any) -> None:
        """Make the engine sample the fields of all GPUs in `group`. Raises DCGMError if the connection is lost."""
        self.error = self._watch(group, "fields")
        if self._profiling:
            self.profiling_error = self._watch(group, "profiling")

    def _watch(self, group: Any, name: str) -> str:
        return self._engine.refusal(self._engine.watch_fields, group, self._groups[name], self._interval)

    def read(self, gpus: Collection[int]) -> tuple[dict[int, DcgmReadings], Values]:
        """Reads the latest values: readings by GPU id, and the node's values by attribute of DcgmFacts."""
        fields = self._gpu_fields + ([] if self.profiling_error else self._profiling)
        entity_values = self._values([(GPU, gpu) for gpu in gpus], fields) | self._values([NODE], self._node_fields)
        node = entity_values.pop(NODE, {})
        return {gpu: DcgmReadings(**values) for (_, gpu), values in entity_values.items()}, node

    def _values(self, entities: list[Entity], fields: list[int]) -> dict[Entity, Values]:
        return by_entity(self._engine.values(entities, fields)) if entities and fields else {}
