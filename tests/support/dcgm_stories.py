"""Stories that run on an engine of DCGM. What a real one answered is kept (tests/data/dcgm-4.6.0), and the double must
give the same.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

from support.dcgm_client import FIELDS, GPU, Client, Rig, outcome, reported

UNKNOWN_FIELD = 9999
XIDS = (
    13, 31, 32, 38, 39, 42, 43, 45, 46, 48, 54, 56, 57, 58, 60, 61, 62, 63, 64, 67, 73, 74, 78, 79, 92, 93, 94, 95, 109, 119,
    120, 121, 136, 137, 140, 143, 149, 154,
)  # fmt: skip
# Field, the value without an incident, and values in the order in which the engine gets them
LEVELS: tuple[tuple[int, float, tuple[float, ...]], ...] = (
    (311, 0, (1, 0, 7)), (390, 0, (62, 63)), (392, 0, (1,)), (393, 0, (511, 512)), (395, 0, (1,)), (1507, 0, (1,)),
    (84, 1, (0,)), (155, 70.5, (140737488355328.0, 140737488355330.0)), (497, 0, (1,)), (498, 0, (1,)), (499, 0, (1,)),
    (170, 3, (0, 1, 2, 4, 5, 6)), (174, 0x1AA, (0x1A9, 0x1A6, 0x19A, 0x16A, 0x2AA, 0x0AA)), (1523, 0, (1, 2, 3, 4, 5, 6, 7)),
)  # fmt: skip
# Field, and by how much it changes
CHANGES: tuple[tuple[int, int], ...] = (
    (202, 31), (202, 32), (240, 1), (241, 1), (409, 1), (409, 5999), (409, 6600), (419, 1), (429, 1), (439, 1),
)  # fmt: skip
FALLING = (202, 240, 241, 409, 419, 429, 439)

Record = Callable[[str, Any], None]


def no_gpus(rig: Rig, record: Record) -> None:
    rig.start(0)
    record("an engine without GPUs", Client(rig).all())


def healthy(rig: Rig, record: Record) -> None:
    rig.start(8)
    client = Client(rig)
    client.watch(FIELDS)
    record("eight GPUs", client.all())


def xids(rig: Rig, record: Record) -> None:
    rig.start(2)
    client = Client(rig)
    record("before", client.all())
    rig.xid(1, 79)
    record("Xid 79", client.all())
    for xid in XIDS:
        rig.xid(0, xid)
    record("many Xids", client.all())
    client.close()
    client = Client(rig)
    record("a new connection", client.all())
    rig.restart()
    record("with the old connection after a restart", client.all())
    record("a new connection after a restart", Client(rig).all())


def lost(rig: Rig, record: Record) -> None:
    rig.start(2)
    client = Client(rig)
    client.watch(FIELDS)
    rig.xid(1, 79)
    record("Xid 79", client.all())
    rig.lose(1)
    record("lost", client.all())
    rig.sample()
    record("lost for longer", client.all())
    other = Client(rig)
    record("a connection that never saw it", other.all())
    rig.back(1)
    record("back, before any watch is set again", client.engine())
    record("back", client.all())
    record("back, for the connection that never saw it", other.all())


def detached(rig: Rig, record: Record) -> None:
    """Somebody has the engine let go of the driver, as before an upgrade (dcgmi set --detach-driver)."""
    rig.start(2)
    client = Client(rig)
    rig.xid(1, 79)
    record("Xid 79", client.all())
    rig.detach()
    record("detached", client.all())
    other = Client(rig)
    record("a new connection", other.all())
    rig.attach()
    record("attached again", client.all())
    record("attached again, for the new connection", other.all())


def paused(rig: Rig, record: Record) -> None:
    """Pause the engine's health checks, as a diagnostic does while it runs."""
    rig.start(2)
    client = Client(rig)
    record("before", client.all())
    rig.pause()
    rig.xid(1, 79)
    record("paused", client.all())
    other = Client(rig)
    record("a new connection", other.all())
    rig.resume()
    record("after it", client.all())
    record("after it, for the new connection", other.all())


def levels(rig: Rig, record: Record) -> None:
    rig.start(1)
    client = Client(rig)
    for field, usual, values in LEVELS:
        for value in values:
            rig.field(0, field, value)
            record(f"field {field} is {value}", {"check": client.check(), "texts": client.texts()})
        rig.field(0, field, usual)
        record(f"field {field} is {usual} again", {"check": client.check()})


def changes(rig: Rig, record: Record) -> None:
    rig.start(1)
    client = Client(rig)
    for field, by in CHANGES:
        rig.field(0, field, by)
        record(f"field {field} grew by {by}", {"check": client.check(), "texts": client.texts()})
        rig.field(0, field, 0)
        record(f"field {field} as before", {"check": client.check()})


def falls(rig: Rig, record: Record) -> None:
    """Let counters fall to 0, as after a reset of the GPU or a reload of its driver: they are counted anew."""
    rig.start(1)
    for field in FALLING:
        rig.field(0, field, 100_000)
    client = Client(rig)
    for field in FALLING:
        rig.field(0, field, 0)
    record("all counters are 0", {"check": client.check(), "texts": client.texts()})


def other_clients(rig: Rig, record: Record) -> None:
    rig.start(2)
    client = Client(rig)
    rig.xid(0, 31)
    rig.xid(0, 48)
    record("before", client.all())
    for mask in (0, 0x10):
        rig.clear_watches(mask)
        record(f"another client set the mask to {mask:#x}", client.all())
        record("the pass after it", client.all())
    agent = client.agent
    agent.dcgmGroupDestroy(rig.client(), client.group)
    record("another client deleted the group", client.engine())


def kernel_log(rig: Rig, record: Record) -> None:
    rig.start(2)
    client = Client(rig)
    client.watch(FIELDS)
    rig.kernel_log_xid(0, 79)
    record("Xid 79 in the kernel log", client.all())
    rig.kernel_log_xid(0, 119)
    rig.sample()
    record("Xid 119 in the kernel log", client.all())
    rig.xid(1, 48)
    record("an Xid from NVML after it", client.all())
    record("a new connection", Client(rig).all())
    rig.restart()
    record("after a restart", Client(rig).all())


def refusals(rig: Rig, record: Record) -> None:
    rig.start(2)
    client = Client(rig)
    nothing = ctypes.c_void_p(4711)
    group, call = client.group, client.call
    record("a GPU twice", call("dcgmGroupAddEntity", group, GPU, 0))
    record("a GPU that there is not", call("dcgmGroupAddEntity", group, GPU, 5))
    record("an entity of another kind that there is not", call("dcgmGroupAddEntity", group, 7, 0))
    record("a group that there is not: add", call("dcgmGroupAddEntity", nothing, GPU, 0))
    record("a group that there is not: set", call("dcgmHealthSet_v2", nothing, 1, 30_000_000, 600.0))
    record("a group that there is not: get", call("dcgmHealthGet", nothing))
    record("an empty field group", call("dcgmFieldGroupCreate", [], "empty"))
    record("an unknown field in a field group", call("dcgmFieldGroupCreate", [150, UNKNOWN_FIELD], "unknown"))
    record("an unknown field", rig.dcgm.fields.DcgmFieldGetById(UNKNOWN_FIELD) is None)
    record("what the health watches watch", client.values([(GPU, 0)], FIELDS))
    record("an unknown field's value", client.values([(GPU, 0)], [UNKNOWN_FIELD]))
    record("a value of no GPU", client.values([(GPU, 5)], [150]))
    record("no entities", client.values([], [150]))
    record("no fields", client.values([(GPU, 0)], []))
    record("profiling fields", client.watch([1001, 1004, 1009], "profiling"))
    record("a taken name", client.watch([150], "profiling"))
    fields = call("dcgmFieldGroupCreate", [150], "mine")
    record("a watch of a group that there is not", call("dcgmWatchFields", nothing, fields, 1_000_000, 60.0, 2))
    record("a watch of fields that there are not", call("dcgmWatchFields", group, nothing, 1_000_000, 60.0, 2))
    response = client.structs.c_dcgmHealthResponse_v5()
    record(
        "a response of another version",
        client.agent.dcgmFP("dcgmHealthCheck")(client.handle, group, ctypes.byref(response)),
    )
    rig.lose(1)
    record("a GPU that is lost", call("dcgmGroupAddEntity", call("dcgmGroupCreate", 1, "other"), GPU, 1))


def limits(rig: Rig, record: Record) -> None:
    rig.start(1)
    handle, other = rig.client(), rig.client()
    agent, structs = rig.dcgm.agent, rig.dcgm.structs
    for name, make in (
        ("groups", lambda n: agent.dcgmGroupCreate(handle, 1, str(n))),
        ("field groups", lambda n: agent.dcgmFieldGroupCreate(handle, [150], str(n))),
    ):
        made = [outcome(structs, lambda n=n, make=make: make(n)) for n in range(70)]  # type: ignore[misc]
        record(f"most {name}", [sum(not isinstance(each, dict) for each in made), made[-1]])
    record("another client's", outcome(structs, lambda: agent.dcgmGroupCreate(other, 1, "one more")))
    agent.dcgmDisconnect(handle)
    record(
        "after the first one left", outcome(structs, lambda: bool(agent.dcgmGroupCreate(other, 1, "one more").value))
    )
    record(
        "and its names are free", outcome(structs, lambda: bool(agent.dcgmFieldGroupCreate(other, [150], "0").value))
    )


def hung(rig: Rig, record: Record) -> None:
    rig.start(1)
    client = Client(rig)
    rig.stop()
    for name, limits, call in (
        ("a call", 1, lambda: client.call("dcgmGetAllDevices")),
        ("a check", 1, lambda: client.check()["code"]),
        ("a connection", 2, lambda: bool(rig.client().value)),
        ("what a field is", 0, lambda: rig.dcgm.fields.DcgmFieldGetById(150) is not None),
    ):
        answer, seconds = rig.measured(call)
        blocked = seconds >= 0.9 * limits * rig.hang_limit
        record(
            f"{name} while the engine is stopped, after {limits} x the limit", {"answer": answer, "blocked": blocked}
        )
    rig.go_on()
    record("after it went on", client.engine())


def dead(rig: Rig, record: Record) -> None:
    rig.start(1)
    client = Client(rig)
    rig.kill()
    record("a call", client.call("dcgmGetAllDevices"))
    record("a check", client.check())
    record("a pass", client.read())
    record("a connection", outcome(client.structs, rig.client))
    rig.restart()
    record("a call after a restart", client.call("dcgmGetAllDevices"))
    record("a disconnect", outcome(client.structs, lambda: client.agent.dcgmDisconnect(client.handle)))
    record("a call after the disconnect", client.call("dcgmGetAllDevices"))
    client.handle = rig.client()
    record("a new connection, the old group", client.call("dcgmHealthGet", client.group))


def embedded(rig: Rig, record: Record) -> None:
    rig.start(2)
    dcgm = rig.dcgm
    reader = rig.reader(address="", probe=(), embedded=True)
    reader.connect()
    record("an engine inside the process", reported(reader.read()))
    beside = dcgm.pydcgm.DcgmHandle()
    record("a second one beside it", outcome(dcgm.structs, lambda: dcgm.agent.dcgmGetAllDevices(beside.handle)))
    record("to end it", outcome(dcgm.structs, beside.Shutdown))
    record("the first one", reported(reader.read()))
    reader.close()
    after = dcgm.pydcgm.DcgmHandle()
    record("one after it", outcome(dcgm.structs, lambda: dcgm.agent.dcgmGetAllDevices(after.handle)))
    after.Shutdown()


STORIES: Mapping[str, Callable[[Rig, Record], None]] = {
    story.__name__: story
    for story in (
        no_gpus, healthy, xids, lost, detached, paused, levels, changes, falls, other_clients, kernel_log, refusals, limits, hung, dead, embedded,
    )
}  # fmt: skip
