"""The default format of a state. Loading it never runs code from the file.

If the job has loaded torch, it is torch's format, read with `weights_only=True` onto the CPU. Otherwise it is that of
encoding.py, which cannot name a class. plain.py defines the allowed content. `load_trusted` also reads pickles and runs
their code: for old checkpoints, and for parts of other kinds.
"""

from __future__ import annotations

import pickle
import sys
from typing import IO, Any

from gpuwarden_job.encoding import MAGIC, NotPlain, decode, encode

_ZIP = b"PK\x03\x04"  # the first bytes of a file of torch.save


def dump(state: Any, file: IO[bytes]) -> None:
    """Write the state, with torch if it is loaded. Raises NotPlain (without torch), and what torch raises."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.save(state, file)
    else:
        encode(state, file)


def load(file: IO[bytes]) -> Any:
    """Reads a file of `dump`, written with or without torch. Raises NotPlain, and what torch raises."""
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
    """Reads any file, even one that runs code. Raises what torch, pickle and that code raise."""
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
