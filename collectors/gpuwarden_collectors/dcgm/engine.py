"""One typed connection to nv-hostengine. Every call may block for 60 s, the timeout of libdcgm for a hung engine.
Every call may raise the DCGMError of the bindings (`error`).

Ids of groups and field groups are valid until the engine restarts. The engine removes a client's groups when its
connection ends, so nothing is deleted here. This module creates its own groups, because any client can change the
health watches of a group, and other clients do change those of the group of all GPUs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.dcgm.addresses import Address
from gpuwarden_collectors.dcgm.bindings import Bindings
from gpuwarden_collectors.dcgm.errors import described, failure, is_final
from gpuwarden_collectors.dcgm.facts import DcgmGpuStatus
from gpuwarden_collectors.facts import slot_of

GPU, SWITCH, CPU, CONNECTX = 1, 3, 7, 9  # dcgm_fields.h: dcgm_field_entity_group_t
ALL_SYSTEMS = 0xFFFFFFFF  # DCGM_HEALTH_WATCH_ALL
MOST_GPUS = 32  # dcgm_structs.h: DCGM_MAX_NUM_DEVICES

_CONNECT_MS = 3000  # for the socket only; the call still waits for the answer of a hung engine
_EMPTY_GROUP = 1  # DCGM_GROUP_EMPTY
_ONLY_SUPPORTED = 1  # DCGM_GEGE_FLAG_ONLY_SUPPORTED
_HEALTH_INTERVAL, _HEALTH_KEEP = 30_000_000, 600.0
"""µs and s: DCGM's defaults. Checks that compare samples look back one minute, which must contain two samples."""
_KEEP, _KEEP_SAMPLES = 600.0, 2

Entity = tuple[int, int]
"""Kind and id."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a GPU; a field is empty if the engine does not have it."""

    slot: str = ""
    uuid: str = ""
    name: str = ""


class Engine:
    def __init__(self, bindings: Bindings, address: Address | None, name: str) -> None:
        """Connects to the engine at the address, or with None runs one inside this process. Raises CollectorError.

        `name` must be unique among the engine's clients.
        """
        self._bindings = bindings
        self._agent = bindings.agent
        self.error: type[Exception] = bindings.structs.DCGMError
        self.name = name
        self.embedded = address is None
        self.address = str(address) if address else "embedded"
        where = {} if address is None else _connect_arguments(address)
        try:
            self._owner = bindings.pydcgm.DcgmHandle(**where)
        except self.error as error:
            doing = f"cannot connect to nv-hostengine at {address}" if address else "cannot run DCGM inside the worker"
            raise failure(doing, error) from error
        self._handle = self._owner.handle

    def close(self) -> None:
        """Disconnects. If the engine hangs here, the parent kills the worker, as for any other call."""
        with suppress(self.error):
            self._owner.Shutdown()
        with suppress(ValueError):
            # otherwise the bindings keep every handle for ever
            self._bindings.pydcgm.DcgmHandle.handles.remove(self._owner)

    def ended_by(self, error: Exception) -> bool:
        """True if the connection is unusable after this error."""
        return is_final(error)

    def version(self) -> str:
        """The engine's version, which may differ from that of the bindings."""
        structs = self._bindings.structs
        info = structs.c_dcgmVersionInfo_v2()
        info.version = structs.dcgmVersionInfo_version2
        if self._agent.dcgmFP("dcgmHostengineVersionInfo")(self._handle, ctypes.byref(info)) != 0:
            return ""
        pairs = dict(pair.partition(":")[::2] for pair in text_of(info, "rawBuildInfoString").split(";"))
        return pairs.get("version", "")

    # --- entities

    def gpus(self) -> list[int]:
        """Returns the ids of all GPUs since the engine started, including lost ones."""
        return list(self._agent.dcgmGetAllDevices(self._handle))[:MOST_GPUS]

    def status(self, gpu: int) -> DcgmGpuStatus:
        number = self._agent.dcgmGetGpuStatus(self._handle, gpu)
        return dict(enumerate(DcgmGpuStatus)).get(number, DcgmGpuStatus.UNKNOWN)

    def identity(self, gpu: int) -> Identity:
        slot = ""
        with self._passable():
            identifiers = self._agent.dcgmGetDeviceAttributes(self._handle, gpu).identifiers
            with suppress(ValueError):
                slot = slot_of(text_of(identifiers, "pciBusId"))
            return Identity(slot, text_of(identifiers, "uuid"), text_of(identifiers, "deviceName"))
        return Identity()

    def others(self) -> list[Entity]:
        """Returns the node's other entities that DCGM watches. A kind whose module is not loaded has no entities."""
        entities: list[Entity] = []
        for kind in (SWITCH, CPU, CONNECTX):
            with self._passable():
                ids = self._agent.dcgmGetEntityGroupEntities(self._handle, kind, _ONLY_SUPPORTED)
                entities += [(kind, number) for number in ids]
        return entities

    # --- health

    def new_group(self) -> Any:
        return self._agent.dcgmGroupCreate(self._handle, _EMPTY_GROUP, self.name)

    def add(self, group: Any, entity: Entity) -> bool:
        """True if the entity is now in the group; the engine refuses one that is lost or not supported."""
        with self._passable():
            self._agent.dcgmGroupAddEntity(self._handle, group, *entity)
            return True
        return False

    def set_watches(self, group: Any) -> None:
        """Watches all systems of the entities that are in the group and active now."""
        self._agent.dcgmHealthSet_v2(self._handle, group, ALL_SYSTEMS, _HEALTH_INTERVAL, _HEALTH_KEEP)

    def watches(self, group: Any) -> int:
        return int(self._agent.dcgmHealthGet(self._handle, group)) & ALL_SYSTEMS  # comes as a signed number

    def check(self, group: Any) -> tuple[Any, Exception | None]:
        """Runs a health check; returns the response, and the error if a part of the check failed.

        Calls libdcgm and not dcgmHealthCheck of the bindings: the return code is that of the last of many checks, and
        on an error the bindings discard the incidents of all checks.
        """
        structure, version = self._bindings.response
        response = structure()
        response.version = version
        code = self._agent.dcgmFP("dcgmHealthCheck")(self._handle, group, ctypes.byref(response))
        if code == 0:
            return response, None
        error: Exception = self._bindings.structs.DCGMError(code)
        if self.ended_by(error):
            raise error
        return response, error

    # --- fields

    def known(self, fields: Iterable[int]) -> list[int]:
        """Returns the fields that the library supports: one unknown field would fail a whole field group."""
        return [field for field in fields if self._bindings.fields.DcgmFieldGetById(field) is not None]

    def new_field_group(self, name: str, fields: Sequence[int]) -> Any:
        return self._agent.dcgmFieldGroupCreate(self._handle, fields, f"{self.name}-{name}")

    def watch_fields(self, group: Any, field_group: Any, interval: float) -> None:
        microseconds = int(interval * 1_000_000)
        self._agent.dcgmWatchFields(self._handle, group, field_group, microseconds, _KEEP, _KEEP_SAMPLES)

    def values(self, entities: Iterable[Entity], fields: Sequence[int]) -> Sequence[Any]:
        """Returns the latest value (c_dcgmFieldValue_v2) of every field of every entity, each with its own status."""
        pair = self._bindings.structs.c_dcgmGroupEntityPair_t
        pairs = [pair(kind, number) for kind, number in entities]
        values: Sequence[Any] = self._agent.dcgmEntitiesGetLatestValues(self._handle, pairs, fields, 0)
        return values

    def refusal(self, ask: Callable[..., None], *arguments: Any) -> str:
        """Makes a call; returns the engine's reason for refusing it, or "" if the call succeeds."""
        try:
            ask(*arguments)
        except self.error as error:
            if self.ended_by(error):
                raise
            return described(error)
        return ""

    @contextmanager
    def _passable(self) -> Iterator[None]:
        """Suppresses errors of a single call; raises those that end the connection."""
        try:
            yield
        except self.error as error:
            if self.ended_by(error):
                raise


def _connect_arguments(address: Address) -> dict[str, Any]:
    if address.path:
        return {"unixSocketPath": address.path, "timeoutMs": _CONNECT_MS}
    return {"ipAddress": f"{address.host}:{address.port}", "timeoutMs": _CONNECT_MS}


_LONGEST_TEXT = 512


def text_of(structure: Any, name: str) -> str:
    """A text of a structure, at most 512 characters; "" for DCGM's blank values. Replaces invalid UTF-8."""
    try:
        text = str(getattr(structure, name))
    except UnicodeDecodeError as error:
        text = error.object.decode(errors="replace")
    blank = text.startswith("<<<") and ">>>" in text  # dcgm_structs.h: DCGM_STR_BLANK and its kin
    return "" if blank else text[:_LONGEST_TEXT]
