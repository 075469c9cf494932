"""The default format of a state: reading it back runs no code that the file brings along.

Where the job has loaded torch this is torch's own, read with `weights_only=True` and onto the CPU. Elsewhere it is our own, in which
a file cannot name a class: encoding.py. What a state may consist of: plain.py.

`load_trusted` reads everything, pickles too, and runs what it reads: for checkpoints from before, and for parts of other kinds.
"""

from __future__ import annotations

import pickle
import sys
from typing import IO, Any

from gpuwarden_job.encoding import MAGIC, NotPlain, decode, encode

_ZIP = b"PK\x03\x04"  # what torch.save begins with


def dump(state: Any, file: IO[bytes]) -> None:
    """Write the state, with torch where it is loaded. Raises NotPlain without torch, and what torch raises."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.save(state, file)
    else:
        encode(state, file)


def load(file: IO[bytes]) -> Any:
    """Reads what `dump` wrote, here or where torch was not loaded. Raises NotPlain, and what torch raises."""
    begin = _begin(file)
    if begin == MAGIC:
        return decode(file)
    if not begin.startswith(_ZIP):
        raise NotPlain(_distrust("it is no file of this library or torch's, perhaps a pickle"))
    try:
        return _torch().load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise NotPlain(_distrust(str(error).partition("WeightsUnpickler error: ")[2] or str(error))) from error


def load_trusted(file: IO[bytes]) -> Any:
    """Reads what `load` reads, and also files that may run any code. Raises what torch, pickle and that code raise."""
    begin = _begin(file)
    if begin == MAGIC:
        return decode(file)
    if begin.startswith(_ZIP):
        return _torch().load(file, map_location="cpu", weights_only=False)
    return pickle.load(file)  # noqa: S301 - the caller trusts it


def _begin(file: IO[bytes]) -> bytes:
    begin = file.read(len(MAGIC))
    file.seek(0)
    return begin


def _torch() -> Any:
    if (torch := sys.modules.get("torch")) is None:
        raise ImportError("torch wrote it: import torch before loading")
    return torch


def _distrust(error_text: str) -> str:
    return (
        f"it holds more than tensors and plain values ({error_text.strip().splitlines()[0]}). Checkpoints from before did: if you "
        "trust all who can write this folder, load it once with CheckpointStore(..., load=load_trusted), which runs what it reads"
    )
