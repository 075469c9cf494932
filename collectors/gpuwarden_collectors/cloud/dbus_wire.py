"""As much of D-Bus as talking to logind needs: method calls with texts, and messages read as far as plain values go.

The D-Bus specification, "Message Protocol": everything here is little-endian, and is aligned to its own size.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

SYSTEM_BUS = "/run/dbus/system_bus_socket"

METHOD_CALL, METHOD_RETURN, ERROR, SIGNAL = 1, 2, 3, 4
MESSAGE_MOST = 256 * 1024
"""Bytes; what is longer is not for us."""
HEAD = 16
_PATH, _INTERFACE, _MEMBER, _ERROR_NAME, _REPLY_SERIAL, _DESTINATION, _SENDER, _SIGNATURE, _FDS = range(1, 10)
_FIXED = {"y": ("B", 1), "b": ("I", 4), "u": ("I", 4), "i": ("i", 4), "h": ("I", 4), "t": ("Q", 8), "x": ("q", 8)}


class WireError(ValueError):
    """Not a message that this code reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """`body` holds the values up to the first that is not plain."""

    kind: int
    serial: int
    path: str = ""
    interface: str = ""
    member: str = ""
    error: str = ""
    sender: str = ""
    reply_to: int = 0
    body: tuple[Any, ...] = field(default=())


class _Writer:
    def __init__(self) -> None:
        self.data = bytearray()

    def align(self, size: int) -> None:
        self.data += b"\0" * (-len(self.data) % size)

    def put(self, kind: str, value: Any) -> None:
        if kind in _FIXED:
            code, size = _FIXED[kind]
            self.align(size)
            self.data += struct.pack(f"<{code}", value)
            return
        text = str(value).encode()
        if kind == "g":
            self.data += struct.pack("<B", len(text))
        else:
            self.align(4)
            self.data += struct.pack("<I", len(text))
        self.data += text + b"\0"


def pack(
    kind: int, serial: int, fields: dict[int, tuple[str, Any]], signature: str = "", values: tuple[Any, ...] = ()
) -> bytes:
    """`fields`: by their numbers in the specification, the type and the value of each."""
    body = _Writer()
    for code, value in zip(signature, values, strict=True):
        body.put(code, value)
    inner = _Writer()
    for number, (code, value) in {**fields, **({_SIGNATURE: ("g", signature)} if signature else {})}.items():
        inner.align(8)
        inner.put("y", number)
        inner.put("g", code)
        inner.put(code, value)
    head = struct.pack("<cBBBIII", b"l", kind, 0, 1, len(body.data), serial, len(inner.data)) + inner.data
    return head + b"\0" * (-len(head) % 8) + bytes(body.data)


def call(  # noqa: PLR0917 - the order of the specification
    serial: int, destination: str, path: str, interface: str, member: str, signature: str = "",
    values: tuple[Any, ...] = (),
) -> bytes:  # fmt: skip
    fields = {
        _PATH: ("o", path), _INTERFACE: ("s", interface), _MEMBER: ("s", member), _DESTINATION: ("s", destination),
    }  # fmt: skip
    return pack(METHOD_CALL, serial, fields, signature, values)


def length(head: bytes) -> int:
    """Bytes of the whole message, by its first 16. Raises WireError."""
    if len(head) < HEAD or head[0:1] != b"l" or head[3] != 1:
        raise WireError("not a little-endian message of version 1")
    body, _, inner = struct.unpack_from("<III", head, 4)
    whole = HEAD + inner + (-inner % 8) + body
    if whole > MESSAGE_MOST:
        raise WireError(f"a message of {whole} bytes")
    return int(whole)


class _Reader:
    def __init__(self, data: bytes, here: int = 0) -> None:
        self.data = data
        self.here = here

    def align(self, size: int) -> None:
        self.here += -self.here % size

    def take(self, kind: str) -> Any:
        if kind in _FIXED:
            code, size = _FIXED[kind]
            self.align(size)
            (value,) = struct.unpack_from(f"<{code}", self.data, self.here)
            self.here += size
            return bool(value) if kind == "b" else value
        if kind == "v":
            return self.take(self.take("g"))
        if kind not in ("s", "o", "g"):
            raise WireError(f"a value of type {kind!r}")
        size = self.take("y") if kind == "g" else self.take("u")
        text = self.data[self.here : self.here + size]
        self.here += size + 1
        if self.here > len(self.data):
            raise WireError("a text goes beyond its message")
        return text.decode("utf-8", "replace")


def unpack(data: bytes) -> Message:
    """Raises WireError."""
    try:
        return _unpack(data)
    except (struct.error, IndexError, RecursionError) as error:
        raise WireError(str(error)) from error


def _unpack(data: bytes) -> Message:
    length(data)
    serial, inner = struct.unpack_from("<II", data, 8)
    found: dict[int, Any] = {}
    reader = _Reader(data, HEAD)
    while reader.here < HEAD + inner:
        reader.align(8)
        number = reader.take("y")
        found[number] = reader.take("v")
    reader.align(8)
    words = {number: found[number] for number in found if isinstance(found[number], str)}
    return Message(
        kind=data[1], serial=serial, path=words.get(_PATH, ""), interface=words.get(_INTERFACE, ""),
        member=words.get(_MEMBER, ""), error=words.get(_ERROR_NAME, ""), sender=words.get(_SENDER, ""),
        reply_to=found[_REPLY_SERIAL] if isinstance(found.get(_REPLY_SERIAL), int) else 0,
        body=_plain(_Reader(data[reader.here :]), words.get(_SIGNATURE, "")),
    )  # fmt: skip


def _plain(reader: _Reader, signature: str) -> tuple[Any, ...]:
    values: list[Any] = []
    for kind in signature:
        try:
            values.append(reader.take(kind))
        except WireError:
            break
    return tuple(values)
