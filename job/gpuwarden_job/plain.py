"""Checks that the default format can store a state: tensors and plain values, in dictionaries, lists and tuples.

Which other values torch reads with `weights_only` depends on its version, so they are tested by writing and reading.
"""

from __future__ import annotations

import io
import sys
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Any

from gpuwarden_job.encoding import NotPlain
from gpuwarden_job.formats import dump, load

_PLAIN = (type(None), bool, int, float, str)
_LONG = 2000  # bits of an integer from which torch cannot read the pickled form


def check(state: Any) -> None:
    """Checks a state cheaply: only the kinds of tensors and arrays. Raises NotPlain, which names the part."""
    plain_kinds: dict[Hashable, bool] = {}
    for path, value in _odd(state, ()):
        kind = _kind(value)
        if kind is None or kind not in plain_kinds:
            plain_kinds[kind] = _comes_back(_sample(value))
        if not plain_kinds[kind]:
            raise NotPlain(_refusal(path, value))


def _odd(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yields each value that is neither plain nor a container of plain values, with its path of keys."""
    if type(value) in (dict, OrderedDict):
        for key, item in value.items():
            yield from _odd(key, (*path, key))
            yield from _odd(item, (*path, key))
        yield from _odd(getattr(value, "__dict__", None), path)  # where a model's has its _metadata
    elif type(value) in (list, tuple):
        for index, item in enumerate(value):
            yield from _odd(item, (*path, index))
    elif type(value) not in _PLAIN or (type(value) is int and value.bit_length() > _LONG):
        yield path, value


def _kind(value: Any) -> Hashable | None:
    """Returns a kind whose values can all be read back, or none of them; None if each value must be tested."""
    if type(value) in (bytes, bytearray):
        return type(value).__name__
    dtype = getattr(value, "dtype", None)
    if dtype is None or getattr(dtype, "hasobject", False) or getattr(value, "__dict__", None):
        return None
    return type(value), str(dtype), str(getattr(value, "layout", ""))


def _sample(value: Any) -> Any:
    """Returns an empty value of the same kind if possible, otherwise the value itself."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if _kind(value) is None:
        return value
    if type(value) in (bytes, bytearray):
        return value[:0]
    if numpy is not None and type(value) is numpy.ndarray:
        return value.flat[:0]
    if torch is None or type(value) not in (torch.Tensor, torch.nn.Parameter):
        return value
    return value.new_empty(0) if value.layout is torch.strided and not value.is_quantized else value


def _comes_back(value: Any) -> bool:
    file = io.BytesIO()
    try:
        dump(value, file)
        file.seek(0)
        load(file)
    except Exception:  # noqa: BLE001 - whatever it is, a restart would meet it too
        return False
    return True


def _refusal(path: tuple[Any, ...], value: Any) -> str:
    named = len(path) > 1 and path[0] == "parts"  # by `capture`
    owner = f"the part {path[1]}" if named else "the state"
    where = "".join(f"[{key!r}]" for key in path[2 if named else 0 :])
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if kind == "numpy.ndarray":
        kind = f"{kind} of {value.dtype}"
    return (
        f"{owner} holds a {kind}{where and f' at {where}'}, which a restart could not load: let its state_dict give tensors, "
        f"numbers, text, lists and dictionaries, or trust the folder and pass dump={_trusting_dump()}, load=load_trusted"
    )


def _trusting_dump() -> str:
    return "pickle.dump" if sys.modules.get("torch") is None else "torch.save"
