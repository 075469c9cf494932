"""Frames between the daemon and a worker process: a header of kind, sequence number and length, then JSON.

The daemon sends START once and ASK for each pass; both fit into one atomic write to a pipe. The worker answers an ASK
with FACTS, CHANGES, ABSENT or FAILED and the same sequence number; before a read that may hang it first sends PARTIAL.
It sends CONNECTED after the library is initialised, and EVENT for each event. The kind is outside the JSON, so that a
flood of frames can be dropped without parsing.
"""

from __future__ import annotations

import json
import struct
from enum import IntEnum
from typing import Any, NamedTuple

# Sixteen GPUs with 18 links and MIG make 0.2 MB; reading 2 MiB of JSON costs the daemon's loop about 20 ms.
MAX_PAYLOAD = 2 << 20

_HEADER = struct.Struct(">BII")


class Kind(IntEnum):
    START = 1  # {"reader", "options", "options_type"}
    ASK = 2  # {"held": the sequence number of the answer whose facts the daemon holds, or null; "hung": see `hung`}
    CONNECTED = 3
    FACTS = 4
    ABSENT = 5  # text
    FAILED = 6  # text
    EVENT = 7
    CHANGES = 8  # instead of FACTS: `changes` since the facts that the daemon has
    PARTIAL = 9  # the facts without the parts at which a worker hung before


_KINDS = {kind.value: kind for kind in Kind}


class FrameError(ValueError):
    """The data is not a frame; the rest of the stream is unusable."""


class Frame(NamedTuple):
    kind: Kind
    sequence: int
    payload: bytes

    def value(self) -> Any:
        """The JSON value. Raises ValueError, or RecursionError for deeply nested JSON."""
        return json.loads(self.payload)


def pack(kind: Kind, sequence: int = 0, value: object = None) -> bytes:
    """Returns the bytes of one frame. Raises FrameError if it would be too long, TypeError if `value` is not JSON."""
    payload = json.dumps(value, separators=(",", ":")).encode()
    if len(payload) > MAX_PAYLOAD:
        raise FrameError(f"a frame of {len(payload)} bytes is longer than {MAX_PAYLOAD}")
    return _HEADER.pack(kind, sequence, len(payload)) + payload


class FrameBuffer:
    """Splits bytes into complete frames; buffers at most one incomplete frame."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Returns the frames that `data` completes. Raises FrameError."""
        self._held += data
        frames: list[Frame] = []
        start = 0
        while len(self._held) >= start + _HEADER.size:
            number, sequence, length = _HEADER.unpack_from(self._held, start)
            kind = _KINDS.get(number)
            if kind is None or length > MAX_PAYLOAD:
                raise FrameError(f"no frame starts with {bytes(self._held[start : start + 40])!r}")
            payload, end = start + _HEADER.size, start + _HEADER.size + length
            if len(self._held) < end:
                break
            frames.append(Frame(kind, sequence, bytes(self._held[payload:end])))
            start = end
        del self._held[:start]
        return frames
