"""The rules by which nv-hostengine answers.

The modules beside this one have the names, signatures and structures of the bindings of DCGM 4.6.0, as far as our
reader uses them, and are imported by path as those are. What they answer comes from here, and from the file that is
the engine (see fake_state).

Rules kept from the real one, each seen on a running 4.6.0 (tests/data/dcgm-4.6.0): a health check covers the GPUs
of the group that are active, under the mask of the group; Xids stay until the engine is restarted; a mask belongs to
the group and any client can change it, or delete the group; one unknown field fails a field group, as does a name that
is taken; ids die with the engine, groups with their client; health watches watch fields for everybody; a hung engine
blocks a call and the call then times out, but connecting to it takes two such times and then succeeds; an engine that
saw Xid 119 in the kernel log asks the driver nothing any more; a lost GPU forgets who it is, its fields keep their
last values until the next sample and are blank from then on, after its return too, until they are asked for again.
Some texts name a wrong GPU or have their format unfilled. Not kept: what takes time in the engine is done at once
(samples, deltas over a minute, blanks after Xid 119), and connecting to nothing fails without waiting for its timeout.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dcgm_structs import DCGMError  # type: ignore[import-not-found] # found by path, as the real one is
from fake_state import ACTIVE, LAST_XID, VARIABLE, State, state  # type: ignore[import-not-found] # found by path

BADPARAM, GENERIC_ERROR, NOT_SUPPORTED, TIMEOUT, NO_DATA, NOT_WATCHED = -1, -3, -6, -11, -14, -16
GPU_IS_LOST, CONNECTION_NOT_VALID, GPU_NOT_SUPPORTED, MAX_LIMIT, DUPLICATE_KEY = -18, -21, -22, -24, -26
NOT_CONFIGURED, MODULE_NOT_LOADED = -5, -33
MOST = {"groups": 62, "field_groups": 61}
"""The engine holds 64 of each, of which it makes some itself."""
NODE, GPU = 0, 1
PCIE, NVLINK, MEM, INFOROM, THERMAL, POWER, DRIVER = 0x1, 0x2, 0x10, 0x40, 0x80, 0x100, 0x200
ALL = 0xFFFFFFFF
WARN, FAIL = 10, 20

# Xid: system, health, code (DcgmHealthWatch.cpp, BuildXidMappings)
XIDS: dict[int, tuple[int, int, int]] = {
    **dict.fromkeys((48, 74, 119, 120, 140), (ALL, FAIL, 101)),
    **dict.fromkeys((31, 32, 43), (MEM, WARN, 101)),
    **dict.fromkeys((38, 39, 42), (PCIE, WARN, 101)),
    **dict.fromkeys((61, 62), (THERMAL, WARN, 101)),
    **dict.fromkeys((54, 56, 58, 78), (POWER, WARN, 101)),
    **dict.fromkeys((67, 73, 121, 137), (NVLINK, WARN, 101)),
    57: (POWER, WARN, 12),
    60: (THERMAL, WARN, 10),
    63: (MEM, WARN, 6),
    64: (MEM, FAIL, 80),
    79: (ALL, FAIL, 120),
    94: (ALL, WARN, 131),
    95: (ALL, FAIL, 81),
}

# Field: from which value on, system, health, code, text
TOO_MUCH: dict[int, tuple[int, int, int, int, str]] = {
    311: (1, MEM, FAIL, 4, "{value} double-bit ECC errors in GPU {gpu}."),
    390: (63, MEM, FAIL, 7, "Many retired pages in GPU {gpu}."),
    392: (1, MEM, WARN, 6, "A retired page is pending in GPU {gpu}."),
    393: (512, MEM, WARN, 132, "{value} rows of GPU {gpu} were remapped."),
    395: (1, MEM, FAIL, 80, "A row of GPU 1178568848 could not be remapped."),
    1507: (1, MEM, FAIL, 52, "{value} faulty memory elements on GPU %d"),
    497: (1, NVLINK, FAIL, 71, "{value} CRC errors on the NvLinks of GPU {gpu} (should be 0)"),
    498: (1, NVLINK, FAIL, 71, "{value} recovery errors on the NvLinks of GPU {gpu} (should be 0)"),
    499: (1, NVLINK, FAIL, 71, "{value} replay errors on the NvLinks of GPU {gpu} (should be 0)"),
}
# Field: system, and from which change on, up or down, since the watches were set (the real one: within the last minute)
# which health and code; the largest counts
CHANGED: dict[int, tuple[int, dict[int, tuple[int, int]]]] = {
    202: (PCIE, {32: (WARN, 3)}),  # of a link of generation 5 and 16 lanes
    240: (POWER, {1: (WARN, 12)}),
    241: (THERMAL, {1: (WARN, 10)}),
    409: (NVLINK, {1: (WARN, 13), 6000: (FAIL, 70)}),
    419: (NVLINK, {1: (WARN, 13), 6000: (FAIL, 70)}),
    429: (NVLINK, {1: (FAIL, 71)}),
    439: (NVLINK, {1: (FAIL, 71)}),
}
# Field and value: system, health, code
STATES: dict[tuple[int, int], tuple[int, int, int]] = {
    (84, 0): (INFOROM, WARN, 9),
    **{(170, state): (NVLINK, FAIL, 123) for state in (1, 4, 5, 6)},
    (170, 2): (NVLINK, WARN, 123),
}
FABRIC = 174
FABRIC_BAD = (0, 2, 4, 6)  # bits; 1 true, 2 false, 0 not supported, two bits each
FABRIC_CONFIGURATION = 8  # bit; 4 bits: 0 not supported, 1 none
RECOVERY = {1: (FAIL, 125), 2: (FAIL, 126), 3: (WARN, 127), 4: (FAIL, 128)}  # 5 to 7: invalid to DCGM 4.6, no incident
POWER_USAGE, RECOVERY_ACTION = 155, 1523
PROFILING = range(1001, 1013)

HEALTH_FIELDS = (*TOO_MUCH, *CHANGED, 84, 170, FABRIC, POWER_USAGE, RECOVERY_ACTION, LAST_XID)
"""What the health watches have sampled, for everybody to read."""
DOUBLES = (155, *range(1001, 1009))
NODE_FIELDS = (1502, 1503)
STRINGS = (1502,)
KNOWN = frozenset(
    (*HEALTH_FIELDS, *PROFILING, 150, *NODE_FIELDS),
)


LOCAL = ("dcgmInit", "DcgmFieldGetById")  # the library answers these itself


@contextmanager
def call(name: str, handle: Any = None) -> Iterator[State]:
    """Yield the engine's state for one call into the library. Raises DCGMError as the engine would, before or within the call."""
    path = Path(os.environ[VARIABLE])
    if name not in LOCAL:
        _wait_while_hung(path, name)
    with state(path) as engine:
        if engine["crash"]:
            os.kill(os.getpid(), signal.SIGSEGV)
        if name in engine["codes"]:
            raise DCGMError(engine["codes"][name])
        if handle is not None:
            _check(engine, handle)
        yield engine


def _wait_while_hung(path: Path, name: str) -> None:
    """Connecting asks twice, and does not mind to get no answer."""
    asked = time.monotonic()
    connecting = name == "dcgmConnect_v3"
    while (engine := json.loads(path.read_text()))["hang"] or process_state(engine["pid"]) == "T":
        if time.monotonic() > asked + engine["hang_limit"] * (2 if connecting else 1):
            if connecting:
                return
            raise DCGMError(TIMEOUT)
        time.sleep(0.02)


def process_state(pid: int) -> str:
    """The letter in /proc/PID/stat; "" for a process that is gone, or only waited for."""
    if pid == 0:
        return "S"
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
    return "" if letter in "ZX" else letter


def runs(engine: State) -> bool:
    return bool(engine["running"] and process_state(engine["pid"]))


def _check(engine: State, handle: ctypes.c_void_p) -> None:
    if handle.value is None:
        raise DCGMError(BADPARAM)
    if not runs(engine) or str(handle.value) not in engine["clients"]:
        raise DCGMError(CONNECTION_NOT_VALID)


def connect(engine: State) -> int:
    if not runs(engine):
        raise DCGMError(CONNECTION_NOT_VALID)
    for client, pid in list(engine["clients"].items()):
        if not Path(f"/proc/{pid}").exists():
            disconnect(engine, client)
    number = new_id(engine)
    engine["clients"][str(number)] = os.getpid()
    return number


def disconnect(engine: State, client: str) -> None:
    with suppress(KeyError):
        del engine["clients"][client]
    for kind in ("groups", "field_groups"):
        engine[kind] = {key: each for key, each in engine[kind].items() if each["client"] != client}
    engine["watched"] = [watch for watch in engine["watched"] if watch[0] != client]


def new_id(engine: State) -> int:
    engine["next"] += 1
    return int(engine["next"])


def group_of(engine: State, group: ctypes.c_void_p) -> State:
    if str(group.value) not in engine["groups"]:
        raise DCGMError(NOT_CONFIGURED)
    record: State = engine["groups"][str(group.value)]
    return record


def status_of(engine: State, kind: int, number: int) -> int:
    """Return the entity's DcgmEntityStatus_t as a number."""
    if kind == GPU:
        return int(engine["gpus"][number]["status"]) if 0 <= number < len(engine["gpus"]) else 0
    return 1 if [kind, number] in engine["others"] else 0


def value_of(engine: State, kind: int, number: int, field: int) -> Any:
    """The number; None for a blank. Raises KeyError for a field that has no sample yet."""
    if kind != GPU:
        return None if engine["blind"] else engine["node"][str(field)]
    gpu = engine["gpus"][number]
    if (engine["blind"] or gpu["blank"]) and field != LAST_XID:
        return None
    return gpu["fields"][str(field)]


def asked_again(engine: State) -> None:
    """Sample all fields at once, as the engine does when watches are set."""
    for gpu in engine["gpus"]:
        if gpu["status"] in ACTIVE:
            gpu["blank"] = False


def _number(engine: State, gpu: int, field: int) -> float:
    try:
        value = value_of(engine, GPU, gpu, field)
    except KeyError:
        return 0
    return 0 if value is None or isinstance(value, str) else value


def set_watches(engine: State, group: State, mask: int) -> None:
    asked_again(engine)
    group["mask"] = mask
    if mask:
        note_watches(engine, [(NODE, 0, field) for field in NODE_FIELDS])
        note_watches(engine, [(*entity, field) for entity in group["entities"] for field in HEALTH_FIELDS])
    group["since"] = {
        f"{number}/{field}": _number(engine, number, field)
        for kind, number in group["entities"]
        for field in CHANGED
        if kind == GPU
    }


def note_watches(engine: State, watches: Iterable[tuple[int, int, int]]) -> None:
    """The last value stays readable for as long as the engine lives, whatever client watches it still."""
    sampled = {tuple(each) for each in engine["sampled"]}
    engine["sampled"] += [list(watch) for watch in watches if watch not in sampled]


def incidents(engine: State, group: State) -> Iterator[tuple[int, int, int, str, int, int]]:
    """Yield the incidents that a check of this group finds: system, health, code, text, kind and id of the entity."""
    for kind, number in group["entities"] if group["mask"] else ():
        if status_of(engine, kind, number) not in ACTIVE:
            continue
        faults = list(_incidents(engine, kind, number))
        if kind == GPU:
            faults += [*_xids(engine, number), *_readings(engine, group, number)]
        for system, health, code, text in faults:
            if system == ALL or system & group["mask"]:
                yield system, health, code, text, kind, number


Found = Iterator[tuple[int, int, int, str]]


def _incidents(engine: State, kind: int, number: int) -> Found:
    """Yield the incidents that the test has set for this entity."""
    for system, health, code, text, of_kind, of_number in engine["incidents"]:
        if (of_kind, of_number) == (kind, number):
            yield system, health, code, text


def _xids(engine: State, gpu: int) -> Found:
    for number, xid in engine["xids"]:
        if number == gpu and xid in XIDS:
            system, health, code = XIDS[xid]
            text = f"XID {xid} on GPU {gpu}" if code == 101 else "GPU %d has a fault."
            yield system, health, code, f"{text} (triggered by XID {xid}: something)"


def _readings(engine: State, group: State, gpu: int) -> Found:
    for field, (least, system, health, code, text) in TOO_MUCH.items():
        if (value := _number(engine, gpu, field)) >= least:
            yield system, health, code, text.format(value=value, gpu=gpu)
    for field, (system, grades) in CHANGED.items():
        change = abs(_number(engine, gpu, field) - group["since"].get(f"{gpu}/{field}", 0))
        if reached := [least for least in grades if change >= least]:
            yield system, *grades[max(reached)], f"Field {field} of GPU {gpu} changed by {change:.0f}."
    yield from _states(engine, gpu)
    if (action := int(_number(engine, gpu, RECOVERY_ACTION))) in RECOVERY:
        yield DRIVER, *RECOVERY[action], f"GPU {gpu} asks for recovery action {action}."
    with suppress(KeyError):
        if value_of(engine, GPU, gpu, POWER_USAGE) is None:
            yield POWER, WARN, 11, f"The power usage of GPU {gpu} cannot be read."


def _states(engine: State, gpu: int) -> Found:
    for (field, bad), fault in STATES.items():
        with suppress(KeyError):
            if value_of(engine, GPU, gpu, field) == bad:
                yield *fault, f"Field {field} of GPU {gpu} is {bad}."
    mask = int(_number(engine, gpu, FABRIC))
    for bit in FABRIC_BAD:
        if mask >> bit & 3 == 1:
            yield NVLINK, FAIL, 33, f"Bit {bit} of the fabric health of GPU {gpu} is set."
    if mask >> FABRIC_CONFIGURATION & 15 not in {0, 1}:
        yield NVLINK, FAIL, 33, f"The fabric of GPU {gpu} is configured wrongly."
