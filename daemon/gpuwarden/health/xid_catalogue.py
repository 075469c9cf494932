"""The Xids: what each means, how we class it, what to do, and where that comes from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpuwarden.health.model import Advice


class XidClass(StrEnum):
    """`record`: kept in the history, the GPU stays healthy. `warning`: reported. `failure`: the node is taken out."""

    RECORD = "record"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """`action` is the vendor's bucket for the immediate action, in its own word ("" where the vendor gives none)."""

    xid: int
    meaning: str
    klass: XidClass
    action: str
    advice: Advice
    note: str = ""
    provenance: str = "NVIDIA Xid catalogue"


XIDS: dict[int, Xid] = {
    79: Xid(
        xid=79, meaning="GPU has fallen off the bus", klass=XidClass.FAILURE, action="RESTART_BM", advice=Advice.REBOOT
    ),
}


def xid_row(xid: int) -> Xid:
    """The row of an Xid; a number nobody has described is a warning, never dropped."""
    known = XIDS.get(xid)
    return known or Xid(
        xid=xid,
        meaning="not described by the vendor",
        klass=XidClass.WARNING,
        action="CONTACT_SUPPORT",
        advice=Advice.CONTACT_SUPPORT,
        provenance="unknown numbers are warnings",
    )
