"""Encodes a state without torch. Only fixed kinds of values exist, so a file cannot name code to run or import.

    file     MAGIC, one value
    value    one byte that names its kind, then its content; lengths and counts are 8 bytes, little-endian
    array    as numpy's own format has it (NPY 1.0 or 2.0, numpy.lib.format), never with pickle

Memory use is bounded by the file's length: a length that exceeds the rest of the file is an error.
"""

from __future__ import annotations

import importlib
import io
import struct
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import IO, Any

MAGIC = b"GWSTATE1"
DEPTH_MOST = 100
"""Most nested containers: more than any state has, and few enough for Python's stack."""
_CHUNK = 16 << 20  # bytes
_NPY_HEADER_MOST = 10_000  # bytes, as numpy.lib.format itself takes since 1.24
_NPY_NESTED_MOST = 32  # brackets in the description of a structured array
_COUNT = struct.Struct("<Q")
_FLOAT = struct.Struct("<d")


class NotPlain(ValueError):  # noqa: N818
    """The content has other values than tensors and plain ones. Such a state is not saved, such a file not read."""


# --- writing


def encode(value: Any, file: IO[bytes]) -> None:
    """Write the value to the file. Raises NotPlain for types that are not plain, OSError if it cannot be written."""
    file.write(MAGIC)
    _Writer(file).write(value, 0)


class _Writer:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, value: Any, depth: int) -> None:
        if depth > DEPTH_MOST:
            raise NotPlain(f"containers in containers, more than {DEPTH_MOST} of them, or one that contains itself")
        kind = type(value)
        if value is None or kind is bool:
            self._file.write({None: b"n", True: b"t", False: b"f"}[value])
        elif kind is int:
            self._bytes(b"i", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
        elif kind is float:
            self._file.write(b"d" + _FLOAT.pack(value))
        elif kind is str:
            self._bytes(b"s", value.encode("utf-8", "surrogatepass"))
        elif kind in (bytes, bytearray):
            self._bytes(b"b" if kind is bytes else b"B", value)
        elif kind in _PARTS:
            tag, parts = _PARTS[kind]
            self._values(tag, parts(value), depth)
        else:
            self._array(value)

    def _bytes(self, tag: bytes, content: bytes | bytearray) -> None:
        self._file.write(tag + _COUNT.pack(len(content)))
        self._file.write(content)

    def _values(self, tag: bytes, values: list[Any], depth: int) -> None:
        self._file.write(tag + _COUNT.pack(len(values)))
        for value in values:
            self.write(value, depth + 1)

    def _array(self, value: Any) -> None:
        """Writes a numpy array, scalar or dtype. Raises NotPlain for anything else."""
        module = type(value).__module__.partition(".")[0]
        numpy = _numpy() if module == "numpy" else None
        if numpy is None or not (type(value) is numpy.ndarray or isinstance(value, (numpy.generic, numpy.dtype))):
            raise NotPlain(f"{type(value).__module__}.{type(value).__qualname__}")
        tag = b"a" if type(value) is numpy.ndarray else b"y" if isinstance(value, numpy.dtype) else b"g"
        array = numpy.empty(0, value) if tag == b"y" else numpy.asarray(value)
        if array.dtype.hasobject or not _is_named_in_ascii(array.dtype) or not _is_numpys(numpy, array.dtype):
            raise NotPlain(f"an array of {array.dtype}")
        self._file.write(tag)
        numpy.lib.format.write_array(self._file, array, allow_pickle=False)


def _is_named_in_ascii(dtype: Any) -> bool:
    """True if all field names are ASCII; others need version 3.0 of the format."""
    base = dtype.base
    return base.names is None or all(name.isascii() and _is_named_in_ascii(base[name]) for name in base.names)


def _is_numpys(numpy: Any, dtype: Any) -> bool:
    """True if numpy's format gives back the type itself. Of one that is not numpy's (bfloat16 of ml_dtypes, which JAX uses) it has the size alone."""
    names = numpy.lib.format
    return bool(names.descr_to_dtype(names.dtype_to_descr(dtype)) == dtype)


def _flat(pairs: Iterable[tuple[Any, Any]]) -> list[Any]:
    return [item for pair in pairs for item in pair]


_PARTS: dict[type, tuple[bytes, Callable[[Any], list[Any]]]] = {
    list: (b"l", list),
    tuple: (b"u", list),
    dict: (b"m", lambda value: _flat(value.items())),
    OrderedDict: (b"o", lambda value: [dict(vars(value)), *_flat(value.items())]),
    Counter: (b"c", lambda value: _flat(value.items())),
    set: (b"e", list),
    frozenset: (b"z", list),
    deque: (b"q", lambda value: [value.maxlen, *value]),
    complex: (b"x", lambda value: [value.real, value.imag]),
    range: (b"r", lambda value: [value.start, value.stop, value.step]),
    slice: (b"k", lambda value: [value.start, value.stop, value.step]),
}


# --- reading


def decode(file: IO[bytes]) -> Any:
    """Reads what `encode` wrote.

    Raises NotPlain for another content, OSError, ImportError where an array needs numpy.
    """
    reader = _Reader(file)
    if reader.take(len(MAGIC)) != MAGIC:
        raise NotPlain("it does not begin as a state does")
    try:
        value = reader.value(0)
    except (ArithmeticError, LookupError, MemoryError, TypeError, ValueError) as error:
        raise NotPlain(f"it is no state: {error}") from error
    if reader.left:
        raise NotPlain(f"{reader.left} bytes follow the state")
    return value


class _Reader:
    def __init__(self, file: IO[bytes]) -> None:
        begin = file.tell()
        self.left = file.seek(0, io.SEEK_END) - begin
        file.seek(begin)
        self._file = file

    def take(self, size: int) -> bytes:
        return bytes(self._taken(size))

    def _taken(self, size: int) -> bytearray:
        """Reads exactly `size` bytes. Raises ValueError if fewer are left."""
        if size > self.left:
            raise ValueError(f"{size} bytes are announced, and {self.left} are left")
        content = bytearray(size)
        view, at = memoryview(content), 0
        while at < size:
            part = self._file.read(min(size - at, _CHUNK))
            if not part:
                raise ValueError("it is shorter than it was")
            view[at : at + len(part)] = part
            at += len(part)
        self.left -= size
        return content

    def _count(self) -> int:
        (count,) = _COUNT.unpack(self._taken(_COUNT.size))
        if count > self.left:
            raise ValueError(f"{count} are announced, and {self.left} bytes are left")
        return int(count)

    def value(self, depth: int) -> Any:
        """Return the next value. Invalid bytes only raise Arithmetic-, Lookup-, Memory-, Type- or ValueError."""
        if depth > DEPTH_MOST:
            raise ValueError(f"more than {DEPTH_MOST} containers in containers")
        tag = self.take(1)
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag == b"d":
            return _FLOAT.unpack(self._taken(_FLOAT.size))[0]
        if tag in _OF_BYTES:
            return _OF_BYTES[tag](self._taken(self._count()))
        if tag in _OF_PARTS:
            return _OF_PARTS[tag]([self.value(depth + 1) for _ in range(self._count())])
        if tag in (b"a", b"g", b"y"):
            array = self._array()
            return array if tag == b"a" else array.dtype if tag == b"y" else _scalar(array)
        raise ValueError(f"there is no kind {tag!r}")

    def _array(self) -> Any:
        """Return the next array. Raises ValueError if it is not in numpy's format."""
        numpy = _numpy()
        if numpy is None:
            raise ImportError("it holds arrays of numpy: install numpy before loading")
        begin = self.take(8)
        if begin[:6] != b"\x93NUMPY" or begin[6:] not in (b"\x01\x00", b"\x02\x00"):
            raise ValueError("an array is in no format of numpy's that is read here")
        length = self.take(2 if begin[6] == 1 else 4)
        if (size := int.from_bytes(length, "little")) > _NPY_HEADER_MOST:
            raise ValueError(f"the header of an array has {size} bytes")
        header = self.take(size)
        if _nested(header) > _NPY_NESTED_MOST:
            raise ValueError("the header of an array is nested too deeply")
        read = numpy.lib.format.read_array_header_1_0 if begin[6] == 1 else numpy.lib.format.read_array_header_2_0
        try:
            shape, fortran, dtype = read(io.BytesIO(length + header))
        except Exception as error:
            raise ValueError(f"the header of an array cannot be read: {error}") from error
        return self._filled(numpy, shape, dtype, "F" if fortran else "C")

    def _filled(self, numpy: Any, shape: tuple[int, ...], dtype: Any, order: str) -> Any:
        if dtype.hasobject or dtype.subdtype is not None or any(side < 0 for side in shape):
            raise ValueError(f"an array of {dtype} with shape {shape}")
        count = 1
        for side in shape:
            count *= side
        if count == 0 or dtype.itemsize == 0:
            if max((*shape, 0)) > self.left + _CHUNK:
                raise ValueError(f"an empty array with shape {shape}")
            return numpy.zeros(shape, dtype, order)
        array = numpy.frombuffer(self._taken(count * dtype.itemsize), dtype).reshape(shape, order=order)
        if not _is_text(numpy, array):
            raise ValueError("a text array with an invalid character")
        return array


_CONSTANTS: dict[bytes, bool | None] = {b"n": None, b"t": True, b"f": False}
_OF_BYTES: dict[bytes, Callable[[bytearray], Any]] = {
    b"i": lambda content: int.from_bytes(content, "little", signed=True),
    b"s": lambda content: content.decode("utf-8", "surrogatepass"),
    b"b": bytes,
    b"B": lambda content: content,
}


def _pairs(values: list[Any]) -> Iterable[tuple[Any, Any]]:
    if len(values) % 2:
        raise ValueError("a key without a value")
    return zip(values[::2], values[1::2])


def _ordered(values: list[Any]) -> OrderedDict[Any, Any]:
    """Builds an OrderedDict with the attributes that torch adds to a model's state."""
    attributes, *rest = values
    made = OrderedDict(_pairs(rest))
    if not isinstance(attributes, dict) or not all(isinstance(name, str) for name in attributes):
        raise ValueError("attributes without names")
    vars(made).update(attributes)
    return made


def _counter(values: list[Any]) -> Counter[Any]:
    made: Counter[Any] = Counter()
    made.update(dict(_pairs(values)))
    return made


def _complex(values: list[Any]) -> complex:
    real, imaginary = values
    return complex(float(real), float(imaginary))


def _three(kind: type) -> Callable[[list[Any]], Any]:
    def made(values: list[Any]) -> Any:
        start, stop, step = values
        return kind(start, stop, step)

    return made


_OF_PARTS: dict[bytes, Callable[[list[Any]], Any]] = {
    b"l": lambda values: values,
    b"u": tuple,
    b"m": lambda values: dict(_pairs(values)),
    b"o": _ordered,
    b"c": _counter,
    b"e": set,
    b"z": frozenset,
    b"q": lambda values: deque(values[1:], values[0]),
    b"x": _complex,
    b"r": _three(range),
    b"k": _three(slice),
}


def _scalar(array: Any) -> Any:
    if array.shape != ():
        raise ValueError(f"a scalar with shape {array.shape}")
    return array[()]


def _is_text(numpy: Any, array: Any) -> bool:
    """True if all code points are valid. numpy does not check them, and reading an invalid one raises SystemError."""
    dtype = array.dtype
    if dtype.names is not None:
        return all(_is_text(numpy, array[name]) for name in dtype.names)
    if dtype.kind != "U" or not array.size or not dtype.itemsize:
        return True
    codes = numpy.ascontiguousarray(array).reshape(-1).view(numpy.dtype("u4").newbyteorder(dtype.byteorder))
    return int(codes.max()) <= sys.maxunicode


def _nested(header: bytes) -> int:
    depth = deepest = 0
    for char in header:
        depth += (char in b"([{") - (char in b")]}")
        deepest = max(deepest, depth)
    return deepest


def _numpy() -> Any:
    """Returns numpy, or None where it is not installed."""
    try:
        importlib.import_module("numpy.lib.format")
        return importlib.import_module("numpy")
    except ImportError:
        return None
