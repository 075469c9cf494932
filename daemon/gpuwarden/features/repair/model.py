"""The types of a repair: steps and what they are done to, outcomes, and tries. Pure."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import Annotated

from gpuwarden.health.event_data import cut, no_key, otherwise
from gpuwarden.health.model import Json
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

TEXT_MOST = 300


class StepKind(StrEnum):
    """Steps that the helper can take, from the mildest to the one that ends everything on the node."""

    RESTART_SERVICE = "restart_service"
    RESET_GPU = "reset_gpu"
    RESET_ALL = "reset_all"
    """All GPUs of an NVSwitch host together."""
    RELOAD_DRIVER = "reload_driver"
    REBOOT = "reboot"


ALLOWED_BY = {StepKind.RESET_ALL: StepKind.RESET_GPU.value}
"""By step, the word of `repair.steps` that allows it, if that is not its own name."""
RANK = {kind: rank for rank, kind in enumerate(StepKind)}
TOUCHES_DRIVER = frozenset({StepKind.RESET_GPU, StepKind.RESET_ALL, StepKind.RELOAD_DRIVER})
"""Steps that fail while any process has a GPU open, including the daemon's own reader."""


class Service(StrEnum):
    """The services that may be restarted."""

    FABRIC_MANAGER = "fabric_manager"
    PERSISTENCE = "persistence"
    DCGM = "dcgm"
    IMEX = "imex"


@dataclass(frozen=True, slots=True)
class Step:
    """One request to the helper: what to do, and to what."""

    kind: StepKind
    service: Service | None = None
    slot: str = ""
    """PCI address of the GPU that is reset."""
    uuid: str = ""
    """UUID of that GPU; empty if it never gave one."""

    def __str__(self) -> str:
        match self.kind:
            case StepKind.RESTART_SERVICE:
                return f"restart_service {self.service}"
            case StepKind.RESET_GPU:
                return f"reset_gpu {self.slot}"
        return self.kind.value

    @property
    def allowed_by(self) -> str:
        """Return the word of `repair.steps` that allows it."""
        return ALLOWED_BY.get(self.kind, self.kind.value)

    def request(self) -> dict[str, Json]:
        """Return the request to the helper."""
        request: dict[str, Json] = {"step": self.kind.value}
        if self.service is not None:
            request["service"] = self.service.value
        if self.kind is StepKind.RESET_GPU:
            request |= {"slot": self.slot, "uuid": self.uuid}
        return request


class Outcome(StrEnum):
    """The result of a step."""

    DONE = "done"
    """The helper did it. Later readings show whether it cured anything."""
    REBOOTED = "rebooted"
    """The node booted after the step that was to reboot it."""
    FAILED = "failed"
    REFUSED = "refused"
    """Nothing was done."""
    UNKNOWN = "unknown"
    """It is not known whether it was done."""
    OBSERVED = "observed"
    """Mode observe: it would have been done."""


UNDONE = frozenset({Outcome.REFUSED, Outcome.OBSERVED})
"""Outcomes that are no try, since nothing was done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One step that was begun for a finding, and its outcome. Data of REPAIR_BEGUN, and as a whole of REPAIR_TRIED."""

    id: str
    """Its name, by which the helper does no step twice."""
    step: StepKind = field(metadata=otherwise(StepKind.REBOOT))
    service: Service | None = None
    slot: str = ""
    uuid: str = ""
    board: Annotated[str, cut(64)] = ""
    """UUID of the board that the finding is about, or its slot; empty: the node."""
    number: int = 1
    """Number of tries of this failure of this board within a day, including this one."""
    by: Annotated[str, cut(64)] = ""
    """The operator who ordered it; empty: gpuwarden."""
    outcome: Outcome | None = None
    """None: it is not known yet."""
    text: Annotated[str, cut(TEXT_MOST)] = ""
    """The helper's message, for people."""
    ended: Stamp | None = None
    at: Stamp = field(metadata=no_key())
    boot_id: str = field(metadata=no_key())
    finding: str = field(default="", metadata=no_key())
    """Id of the finding, which is the key of the event."""

    @property
    def counts(self) -> bool:
        """Return True if something was done, or may have been."""
        return self.outcome not in UNDONE

    @property
    def what(self) -> Step:
        return Step(self.step, self.service, self.slot, self.uuid)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Data of REPAIR_ENDED, whose key is the finding."""

    id: str
    step: StepKind = field(metadata=otherwise(StepKind.REBOOT))
    outcome: Outcome = field(metadata=otherwise(Outcome.UNKNOWN))
    text: Annotated[str, cut(TEXT_MOST)] = ""
    board: Annotated[str, cut(64)] = ""
    """As in `Try`."""
    at: Stamp = field(metadata=no_key())
    boot_id: str = field(metadata=no_key())
