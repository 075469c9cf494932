"""What dcgm-exporter's counters are, as in tests/data/dcgm_exporter."""

from __future__ import annotations

from dataclasses import dataclass

from support.trees import DATA

ABSENT = "-"


@dataclass(frozen=True, slots=True)
class Documented:
    """A row of the table: `default`: given unless the list is changed. `level` of DCGM: gpu, instance, vgpu, node."""

    name: str
    default: bool
    kind: str
    form: str
    unit: str
    level: str


def _rows() -> tuple[Documented, ...]:
    lines = (DATA / "dcgm_exporter" / "counters.txt").read_text().splitlines()
    cells = [line.split() for line in lines if line and not line.startswith("#")]
    return tuple(Documented(name, default == "yes", *rest) for name, default, *rest in cells)


COUNTERS = _rows()
DEFAULTS = tuple(row for row in COUNTERS if row.default and row.kind != "label")
