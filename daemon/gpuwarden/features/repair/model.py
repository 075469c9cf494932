"""What a repair is made of: steps, what each is done to, and tries. Pure."""

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
    """What the helper can do, from the mildest to the one that ends everything else on the node."""

    RESTART_SERVICE = "restart_service"
    RESET_GPU = "reset_gpu"
    RESET_ALL = "reset_all"
    """All GPUs of an NVSwitch host together."""
    RELOAD_DRIVER = "reload_driver"
    REBOOT = "reboot"


ALLOWED_BY = {StepKind.RESET_ALL: StepKind.RESET_GPU.value}
"""By step, the word of `repair.steps` that allows it, where that is not its own name."""
RANK = {kind: rank for rank, kind in enumerate(StepKind)}
TOUCHES_DRIVER = frozenset({StepKind.RESET_GPU, StepKind.RESET_ALL, StepKind.RELOAD_DRIVER})
"""Steps that fail while any process, the daemon's own reader too, has a GPU open."""


class Service(StrEnum):
    """The services that may be restarted."""

    FABRIC_MANAGER = "fabric_manager"
    PERSISTENCE = "persistence"
    DCGM = "dcgm"
    IMEX = "imex"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that the helper is asked for, and what it is done to."""

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
        """Return what the helper is sent."""
        request: dict[str, Json] = {"step": self.kind.value}
        if self.service is not None:
            request["service"] = self.service.value
        if self.kind is StepKind.RESET_GPU:
            request |= {"slot": self.slot, "uuid": self.uuid}
        return request


class Outcome(StrEnum):
    """What came of a step."""

    DONE = "done"
    """The helper did it. Whether it cured anything shows by itself."""
    REBOOTED = "rebooted"
    """The node booted after the step that was to reboot it."""
    FAILED = "failed"
    REFUSED = "refused"
    """Nothing was done."""
    UNKNOWN = "unknown"
    """Nobody knows whether it was done."""
    OBSERVED = "observed"
    """Mode observe: it would have been done."""


UNDONE = frozenset({Outcome.REFUSED, Outcome.OBSERVED})
"""Outcomes of what is no try, since nothing was done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One step that was begun for a finding, and what came of it. Data of REPAIR_BEGUN, and as a whole of REPAIR_TRIED."""

    id: str
    """Its name, by which the helper does nothing twice."""
    step: StepKind = field(metadata=otherwise(StepKind.REBOOT))
    service: Service | None = None
    slot: str = ""
    uuid: str = ""
    board: Annotated[str, cut(64)] = ""
    """UUID of the board that the finding is of, or its slot; empty: the node."""
    number: int = 1
    """How many tries of this failure of this board there were within a day, this one included."""
    by: Annotated[str, cut(64)] = ""
    """The operator who ordered it; empty: gpuwarden."""
    outcome: Outcome | None = None
    """None: it is not known yet."""
    text: Annotated[str, cut(TEXT_MOST)] = ""
    """What the helper said, for people."""
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
    """As of `Try`."""
    at: Stamp = field(metadata=no_key())
    boot_id: str = field(metadata=no_key())
