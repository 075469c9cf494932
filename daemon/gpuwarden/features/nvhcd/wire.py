"""The messages of nvidia-resiliency-ext's node health check on the wire (`nvhcd.proto`, package `nvhcd`):

    service HealthCheckService { rpc RunHealthCheck(HealthCheckRequest) returns (HealthCheckResponse); }
    HealthCheckRequest  { repeated string args = 1; }
    HealthCheckResponse { bool success = 1; int32 exit_code = 2; string output = 3; string error = 4; }

The request is not read, since the response is the same for any request. The response is four fields: written here, it needs
neither protobuf (5 MiB in the process) nor its compiler.
"""

from __future__ import annotations

from dataclasses import dataclass

METHOD = b"/nvhcd.HealthCheckService/RunHealthCheck"
_VARINT, _BYTES = 0, 2  # wire types of protobuf
_SUCCESS, _EXIT_CODE, _OUTPUT, _ERROR = 1, 2, 3, 4


@dataclass(frozen=True, slots=True)
class Response:
    """The message of a response. `exit_code` is 0 or more."""

    success: bool
    exit_code: int = 0
    output: str = ""
    error: str = ""


def framed(message: bytes) -> bytes:
    """Return the message as in gRPC's DATA frames: a byte for compression (none), and its length."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def encoded(response: Response) -> bytes:
    """Return the message, without fields that have their default, as in proto3."""
    fields = bytearray()
    for number, value in ((_SUCCESS, int(response.success)), (_EXIT_CODE, response.exit_code)):
        if value:
            fields += _varint(number << 3 | _VARINT) + _varint(value)
    for number, text in ((_OUTPUT, response.output), (_ERROR, response.error)):
        if text:
            data = text.encode("utf-8", "replace")
            fields += _varint(number << 3 | _BYTES) + _varint(len(data)) + data
    return bytes(fields)


def _varint(value: int) -> bytes:
    """Return a varint: seven bits a byte, the lowest first; the eighth bit is set if more follow."""
    septets = bytearray()
    while value > 0x7F:
        septets.append(value & 0x7F | 0x80)
        value >>= 7
    septets.append(value)
    return bytes(septets)
