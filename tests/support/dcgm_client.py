"""A client of an engine of DCGM, real or double, and its answers in a form that can be kept and compared.

An answer holds what the library returns (`engine`) and what our reader makes of it (`reader`), without what differs from one
run of a story to the next: times, ids of groups, and texts. Of an incident's text only what we read from it is
compared; the texts are beside, under `texts`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from gpuwarden_collectors.base import CollectorError
from gpuwarden_collectors.codec import to_wire
from gpuwarden_collectors.dcgm.bindings import Bindings
from gpuwarden_collectors.dcgm.facts import NOT_ANSWERING, DcgmFacts
from gpuwarden_collectors.dcgm.incidents import xid_and_link
from gpuwarden_collectors.dcgm.reader import DcgmReader

GPU, NODE = 1, (0, 0)
ALL_SYSTEMS = 0xFFFFFFFF
FIELDS = (150, 155, 230, 240, 311, 1507, 1523)
"""Those that a client reads: some of the reader's, some of the health watches'."""

Answer = dict[str, Any]


class Rig(Protocol):
    """An engine, and what may befall it. GPUs are H100s at the slots 1, 2, ...; every method returns when it is so."""

    dcgm: Bindings
    hang_limit: float

    def start(self, gpus: int) -> None: ...
    def client(self) -> Any:
        """A new connection: its handle. Raises DCGMError."""

    def reader(self, **options: Any) -> DcgmReader: ...
    def lose(self, gpu: int) -> None: ...
    def back(self, gpu: int) -> None: ...
    def detach(self) -> None:
        """The engine lets go of the driver, and with it of every GPU."""

    def attach(self) -> None: ...
    def pause(self) -> None:
        """The engine leaves the GPUs alone for a diagnostic."""

    def resume(self) -> None: ...
    def sample(self) -> None:
        """The engine asks for all that is watched."""

    def xid(self, gpu: int, xid: int) -> None:
        """Report an Xid as NVML does."""

    def kernel_log_xid(self, gpu: int, xid: int) -> None: ...
    def field(self, gpu: int, field: int, value: float) -> None: ...
    def clear_watches(self, mask: int) -> None:
        """Another client sets the mask of every group."""

    def stop(self) -> None: ...
    def go_on(self) -> None: ...
    def kill(self) -> None: ...
    def restart(self) -> None: ...
    def measured(self, call: Callable[[], Any]) -> tuple[Any, float]:
        """Return the result of the call, and for how many seconds it blocked."""


class Client:
    """A client of the engine with a group of all GPUs under all health watches, and a DcgmReader beside it."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.agent, self.structs = rig.dcgm.agent, rig.dcgm.structs
        self.handle = rig.client()
        self.gpus = self.agent.dcgmGetAllDevices(self.handle)
        self.group = self.agent.dcgmGroupCreate(self.handle, 1, "story")
        for gpu in self.gpus:
            with suppress(self.structs.DCGMError):
                self.agent.dcgmGroupAddEntity(self.handle, self.group, GPU, gpu)
        self.agent.dcgmHealthSet_v2(self.handle, self.group, ALL_SYSTEMS, 30_000_000, 600.0)
        self.reader = rig.reader()
        self.reader.connect()

    def all(self) -> Answer:
        answer = {"engine": self.engine(), "reader": self.read()}
        return {**answer, "texts": self.texts()}

    def engine(self) -> Answer:
        return {
            "gpus": self.call("dcgmGetAllDevices"),
            "status": [self.call("dcgmGetGpuStatus", gpu) for gpu in (*self.gpus, 31, 99)],
            "who": [self.who(gpu) for gpu in (*self.gpus, 31)],
            "kinds": {str(kind): self.call("dcgmGetEntityGroupEntities", kind, 1) for kind in (GPU, 3, 7, 9)},
            "mask": self.call("dcgmHealthGet", self.group),
            "check": self.check(),
            "values": self.values([(GPU, gpu) for gpu in self.gpus], FIELDS) if self.gpus else [],
            "node": self.values([NODE], (1502, 1503)),
        }

    def read(self) -> Answer:
        try:
            return reported(self.reader.read())
        except CollectorError as error:
            return {"error": type(error).__name__, "silent": str(error).startswith(NOT_ANSWERING)}

    def call(self, name: str, *arguments: Any) -> Any:
        return outcome(self.structs, lambda: getattr(self.agent, name)(self.handle, *arguments))

    def who(self, gpu: int) -> Any:
        attributes = self.call("dcgmGetDeviceAttributes", gpu)
        if isinstance(attributes, dict):
            return attributes
        identifiers = attributes.identifiers
        return [identifiers.pciBusId, identifiers.uuid, identifiers.deviceName]

    def _response(self) -> tuple[int, Any]:
        response = self.structs.c_dcgmHealthResponse_v5()
        response.version = self.structs.dcgmHealthResponse_version5
        code = self.agent.dcgmFP("dcgmHealthCheck")(self.handle, self.group, ctypes.byref(response))
        return code, response

    def check(self) -> Answer:
        code, response = self._response()
        incidents = [
            [
                each.system,
                each.health,
                each.error.code,
                each.entityInfo.entityGroupId,
                each.entityInfo.entityId,
                *xid_and_link(each),
            ]
            for each in response.incidents[: response.incidentCount]
        ]
        return {"code": code, "overall": response.overallHealth, "incidents": sorted(incidents, key=repr)}

    def texts(self) -> list[str]:
        response = self._response()[1]
        return sorted({each.error.msg for each in response.incidents[: response.incidentCount]})

    def values(self, entities: Sequence[tuple[int, int]], fields: Sequence[int]) -> Any:
        pairs = [self.structs.c_dcgmGroupEntityPair_t(*entity) for entity in entities]
        values = self.call("dcgmEntitiesGetLatestValues", pairs, fields, 0)
        return values if isinstance(values, dict) else [_value(each) for each in values]

    def watch(self, fields: Sequence[int], name: str = "fields") -> Any:
        made = self.call("dcgmFieldGroupCreate", fields, name)
        return (
            made if isinstance(made, dict) else self.call("dcgmWatchFields", self.group, made, 3600_000_000, 7200.0, 2)
        )

    def close(self) -> None:
        self.reader.close()
        self.agent.dcgmDisconnect(self.handle)


def _value(value: Any) -> list[Any]:
    kind = chr(value.fieldType & 0xFF)
    reading = {"i": lambda: value.value.i64, "d": lambda: value.value.dbl, "s": lambda: value.value.str}[kind]()
    return [value.entityGroupId, value.entityId, value.fieldId, value.status, kind, reading, value.ts > 0]


def outcome(structs: Any, call: Callable[[], Any]) -> Any:
    """Return the result of the call, ids aside, or the error's class and number."""
    try:
        answer = call()
    except structs.DCGMError as error:
        return {"error": type(error).__name__, "code": error.value}
    return answer


def reported(facts: DcgmFacts) -> Answer:
    """Return the facts of the reader without times and the engine's address."""
    wire: Any = to_wire(facts)
    for name in ("address", "watched_since"):
        wire.pop(name, None)
    for gpu in wire.get("gpus", ()):
        gpu.get("readings", {}).pop("last_xid_at", None)
    for incident in wire.get("incidents", ()):
        incident.pop("first_seen", None)
        incident.pop("message", None)
    wire["incidents"] = sorted(wire.get("incidents", ()), key=repr)
    wire["problems"] = [problem["kind"] for problem in wire.get("problems", ())]
    return dict(wire)
