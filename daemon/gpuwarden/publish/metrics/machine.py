"""Labels to compare nodes: a property that failing nodes share may be the cause (`gpuwarden fleet --why`)."""

from __future__ import annotations

from collections.abc import Iterable

from gpuwarden_collectors.facts import NvmlFacts
from gpuwarden_collectors.host_facts import InfinibandFacts

MACHINE_LABELS = tuple(
    """
    machine_type model driver vbios cluster_uuid clique chassis_serial chassis_slot chassis_tray switch kernel
    inforom adapter_firmware""".split()
)
OF_THE_NODE = frozenset({"__name__", "instance", "job", "node", "boot_id", "replica", "prometheus_replica"})
"""Labels of the series that identify the node, which nodes do not share."""
_LONGEST = 120  # characters


def machine_labels(
    machine_type: str,
    facts: NvmlFacts | None,
    switch: str = "",
    *,
    kernel: str = "",
    infiniband: InfinibandFacts | None = None,
) -> tuple[str, ...]:
    """Return the values of `MACHINE_LABELS`; "" if unknown, joined by `+` if GPUs of the node differ. The firmware of
    adapters includes the board, because a node may have several kinds.
    """
    gpus = () if facts is None else facts.gpus
    of = [gpu.placement for gpu in gpus]
    adapters = () if infiniband is None else infiniband.adapters
    return (
        machine_type[:_LONGEST],
        _joined(gpu.name for gpu in gpus),
        "" if facts is None else facts.driver_version,
        _joined(gpu.vbios for gpu in gpus),
        _joined(board.cluster_uuid for board in of),
        _joined(_text(gpu.readings.fabric_clique) for gpu in gpus if gpu.readings.fabric_in_cluster),
        _joined(board.chassis_serial for board in of),
        _joined(_text(board.chassis_slot) for board in of),
        _joined(_text(board.chassis_tray) for board in of),
        switch[:_LONGEST],
        kernel[:_LONGEST],
        _joined(gpu.inforom for gpu in gpus),
        _joined(f"{adapter.board} {adapter.firmware}".lstrip() for adapter in adapters if adapter.firmware),
    )


def _text(number: int | None) -> str:
    """Return the number, which may be 0, as text; "" if it is unknown."""
    return "" if number is None else str(number)


def _joined(values: Iterable[str]) -> str:
    return "+".join(sorted(set(filter(None, values))))[:_LONGEST]
