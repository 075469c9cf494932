"""A pretended nv-hostengine is a JSON file, named in FAKE_DCGM, that all its clients share.

It is read at every call, under a lock, and what a client changes is written back. So several clients, a restart that
voids every id, and a change by a test between two calls are what they are with a process.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

VARIABLE = "FAKE_DCGM"
State = dict[str, Any]
ACTIVE, LOST, DETACHED = (1, 5), 4, 7  # DcgmEntityStatus_t
LAST_XID = 230


def healthy(gpus: int) -> State:
    """An engine 4.6.0 with so many GPUs, without the licensed module for profiling.

    `pid`: of the process in place of the engine, if there is one: while it is dead nothing runs, while it is stopped
    everything hangs. `hang`: no call returns before it ends, or `hang_limit` seconds have passed. `crash`: the next call ends its
    process. `codes`: what a call by this name returns; "part of dcgmHealthCheck" comes beside its incidents,
    "dcgmHealthSet_v2 of others" only for a group that has more than GPUs. `blind`: the engine asks the driver nothing.
    `unknown`: fields that it does not know. `xids`: GPU and number, as they came; `noted` of a GPU: when the last did. `incidents`: system, health, code,
    text, kind and id of the entity, besides those that follow from the rest. `others`: kind and id of switches and the
    like. `unloaded`: kinds of entities whose module is not loaded. `profiling_code`: what a watch of profiling fields
    returns without `profiling`. `node`: fields of no GPU. What follows is the clients'; `sampled`: kind, id
    and field of all that was ever watched, in this life of the engine.
    """
    return {
        "running": True, "pid": 0, "version": "4.6.0", "hang": False, "hang_limit": 60.0, "crash": False, "codes": {},
        "blind": False, "unknown": [], "profiling": False, "profiling_code": -36, "xids": [], "incidents": [], "others": [],
        "unloaded": [], "node": {"1502": "NOT_INSTALLED", "1503": -1},
        "gpus": [a_gpu(number) for number in range(gpus)],
        "next": 1, "clients": {}, "groups": {}, "field_groups": {}, "watched": [], "sampled": [],
    }  # fmt: skip


def a_gpu(number: int) -> State:
    """`blank`: the engine asked for its fields while it was lost, and got nothing; they stay so until asked for again."""
    fields = {"150": 40, "155": 70.5, "240": 0, "241": 0, "311": 0, "1507": 0, "1523": 0}
    return {
        "noted": 0.0,
        "status": 1,
        "blank": False,
        "slot": f"00000000:{number + 1:02X}:00.0",
        "uuid": f"GPU-{number}",
        "fields": fields,
    }


@contextmanager
def state(path: Path) -> Iterator[State]:
    """The engine, for one who changes it: nobody else changes it meanwhile, and nobody reads half a change."""
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        engine: State = json.loads(path.read_text())
        yield engine
        new = path.with_suffix(".new")
        new.write_text(json.dumps(engine))
        new.replace(path)


def sampled(engine: State) -> None:
    """Every watched field is due: what is lost gives nothing. A last Xid is overwritten for good."""
    for gpu in engine["gpus"]:
        gpu["blank"] = gpu["blank"] or gpu["status"] == LOST
        if engine["blind"] or gpu["blank"]:
            gpu["fields"][str(LAST_XID)] = None
