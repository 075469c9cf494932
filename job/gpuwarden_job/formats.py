"""The default format of a state: reading it back runs no code that the file brings along.

Where the job has loaded torch this is torch's own, read with `weights_only=True` and onto the CPU. Elsewhere it is pickle,
read with no classes but `_HARMLESS`. What a state may consist of: plain.py.

`load_trusted` reads everything, and runs what it reads: for checkpoints from before, and for parts of other kinds.
"""

from __future__ import annotations

import pickle
import sys
from typing import IO, Any

_ZIP = b"PK\x03\x04"  # what torch.save begins with, and pickle never
_HARMLESS = {
    "builtins": ("bytearray", "complex", "frozenset", "range", "set", "slice"),
    "collections": ("Counter", "OrderedDict", "deque"),
    "numpy": ("dtype", "ndarray"),
    "numpy.core.multiarray": ("_reconstruct", "scalar"),  # before numpy 2
    "numpy.core.numeric": ("_frombuffer",),
    "numpy._core.multiarray": ("_reconstruct", "scalar"),
    "numpy._core.numeric": ("_frombuffer",),
}


class NotPlain(ValueError):  # noqa: N818
    """More than tensors and plain values: in a state, which then is not saved, or in a file, which then is not read."""


def dump(state: Any, file: IO[bytes]) -> None:
    """Raises what torch or pickle raise."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.save(state, file)
    else:
        pickle.dump(state, file)


def load(file: IO[bytes]) -> Any:
    """What `dump` wrote, here or where torch was not loaded. Raises NotPlain, and what torch or pickle raise."""
    if (torch := _torch_for(file)) is None:
        return _Unpickler(file).load()
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise NotPlain(_distrust(str(error).partition("WeightsUnpickler error: ")[2] or str(error))) from error


def load_trusted(file: IO[bytes]) -> Any:
    """As `load`, and also what may run any code. Raises what torch, pickle and that code raise."""
    if (torch := _torch_for(file)) is None:
        return pickle.load(file)  # noqa: S301 - the caller trusts it
    return torch.load(file, map_location="cpu", weights_only=False)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name not in _HARMLESS.get(module, ()):
            raise NotPlain(_distrust(f"{module}.{name}"))
        return super().find_class(module, name)


def _torch_for(file: IO[bytes]) -> Any:
    """The module torch if it wrote the file, else None."""
    begin = file.read(len(_ZIP))
    file.seek(0)
    if begin != _ZIP:
        return None
    if (torch := sys.modules.get("torch")) is None:
        raise ImportError("torch wrote it: import torch before loading")
    return torch


def _distrust(what: str) -> str:
    return (
        f"it holds more than tensors and plain values ({what.strip().splitlines()[0]}). Checkpoints from before did: if you "
        "trust all who can write this folder, load it once with CheckpointStore(..., load=load_trusted), which runs what it reads"
    )
