"""The names and colours of states, the same everywhere."""

from __future__ import annotations

from grafana_dashboards.model import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, YELLOW, Column, Texts

HEALTH: Texts = {
    "0": ("healthy", GREEN), "1": ("warning", YELLOW), "2": ("unknown", PURPLE), "3": ("failure", RED),
}  # fmt: skip
NODE_STATE: Texts = {
    "0": ("healthy", GREEN), "1": ("warning", YELLOW), "2": ("unknown", PURPLE),
    "3": ("failure, out of scheduling", ORANGE), "4": ("silent", GREY), "5": ("failure, still gets work", RED),
}  # fmt: skip
RANK: Texts = {"2": ("failure", RED), "1": ("warning", YELLOW), "0": ("shadow", BLUE)}
SEVERITY: Texts = {"failure": ("failure", RED), "warning": ("warning", YELLOW), "shadow": ("shadow", BLUE)}
NODE_WORK: Texts = {
    "0": ("still gets work", RED), "1": ("out, for a failure", ORANGE), "2": ("out, as planned", BLUE),
}  # fmt: skip
OWNER: Texts = {
    "failure": ("gpuwarden, for a failure", ORANGE), "termination": ("gpuwarden, for a termination", BLUE),
    "operator": ("an operator", BLUE), "foreign": ("another party", PURPLE),
    "maintenance": ("maintenance", BLUE),
}  # fmt: skip
GETS_WORK: Texts = {"0": ("no", ORANGE), "1": ("yes", GREEN)}
ENFORCING: Texts = {"0": ("observe: does nothing", YELLOW), "1": ("enforce", GREEN)}
BREAKER: Texts = {"0": ("closed", GREEN), "1": ("open: kept in service", RED)}
SOURCE_UP: Texts = {"0": ("down", RED), "1": ("up", GREEN)}
CHANGE: Texts = {"began": ("began", RED), "ended": ("ended", GREEN)}
TESTED: Texts = {
    "nothing_found": ("nothing found", GREEN), "warning": ("warning", YELLOW), "failure": ("failure", RED),
    "no_verdict": ("no verdict", GREY),
}  # fmt: skip
YES_NO: Texts = {"0": ("no", GREEN), "1": ("yes", RED)}
PENDING: Texts = {"0": ("no", GREEN), "1": ("reset the GPU", YELLOW)}

NODE = Column(field="node", name="Node", node=True, width=160)
CLUSTER = Column(field="cluster", name="Cluster", width=110)
GPU = Column(field="gpu", name="GPU", width=60)
SLOT = Column(field="pci_bus_id", name="PCI bus", width=130)
RANKED = Column(field="Value", name="Severity", texts=RANK, width=90)
"""The column keeps its number, since texts would not sort by severity."""
SEVERE = Column(field="severity", name="Severity", texts=SEVERITY, width=90)
WHAT = (Column(field="title", name="What"), Column(field="detail", name="Detail", width=110))
TO_DO = Column(field="advice", name="To do")
