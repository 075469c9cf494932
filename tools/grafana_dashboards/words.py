"""How states are called and coloured, everywhere alike."""

from __future__ import annotations

from grafana_dashboards.model import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, YELLOW, Column, Words

HEALTH: Words = {
    "0": ("healthy", GREEN), "1": ("warning", YELLOW), "2": ("unknown", PURPLE), "3": ("failure", RED),
}  # fmt: skip
NODE_STATE: Words = {
    "0": ("healthy", GREEN), "1": ("warning", YELLOW), "2": ("unknown", PURPLE),
    "3": ("failure, out of scheduling", ORANGE), "4": ("silent", GREY), "5": ("failure, still gets work", RED),
}  # fmt: skip
RANK: Words = {"2": ("failure", RED), "1": ("warning", YELLOW), "0": ("shadow", BLUE)}
SEVERITY: Words = {"failure": ("failure", RED), "warning": ("warning", YELLOW), "shadow": ("shadow", BLUE)}
STANDING: Words = {
    "0": ("still gets work", RED), "1": ("out, for a failure", ORANGE), "2": ("out, as planned", BLUE),
}  # fmt: skip
OWNER: Words = {
    "failure": ("gpuwarden, for a failure", ORANGE), "termination": ("gpuwarden, for its end", BLUE),
    "operator": ("an operator", BLUE), "foreign": ("somebody else", PURPLE),
}  # fmt: skip
GETS_WORK: Words = {"0": ("no", ORANGE), "1": ("yes", GREEN)}
ENFORCING: Words = {"0": ("observe: does nothing", YELLOW), "1": ("enforce", GREEN)}
BREAKER: Words = {"0": ("closed", GREEN), "1": ("open: kept in service", RED)}
ANSWERS: Words = {"0": ("does not answer", RED), "1": ("answers", GREEN)}
CHANGE: Words = {"began": ("began", RED), "ended": ("ended", GREEN)}
YES_NO: Words = {"0": ("no", GREEN), "1": ("yes", RED)}
PENDING: Words = {"0": ("no", GREEN), "1": ("reset the GPU", YELLOW)}

NODE = Column(field="node", name="Node", node=True, width=160)
CLUSTER = Column(field="cluster", name="Cluster", width=110)
GPU = Column(field="gpu", name="GPU", width=60)
SLOT = Column(field="pci_bus_id", name="PCI bus", width=130)
RANKED = Column(field="Value", name="Severity", words=RANK, width=90)
"""Sorted as the number that it is: words would not be sorted by how bad they are."""
SEVERE = Column(field="severity", name="Severity", words=SEVERITY, width=90)
WHAT = (Column(field="title", name="What"), Column(field="detail", name="Detail", width=110))
TO_DO = Column(field="advice", name="To do")
