"""Reads which containers have which devices from kubelet's Unix socket (`PodResourcesLister` v1, since 1.20).

Each request opens a new connection, because kubelet creates a new socket whenever it starts. An answer longer than
`ANSWER_MOST` ends the connection. The caller sets the deadline.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.config import Configuration
from grpclib.const import Status
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from grpclib.protocol import H2Protocol

from gpuwarden_collectors.base import Clock, CollectorError, SourceAbsent, host_clock
from gpuwarden_collectors.kubelet.facts import PodsFacts
from gpuwarden_collectors.kubelet.wire import METHOD, Malformed, decoded

ANSWER_MOST = 4 << 20
"""Largest answer in bytes, as for gRPC's own clients. 110 pods are 12 kB."""
_ELSEWHERE = 64 << 10
"""Bytes from which an answer is decoded in a thread: on the event loop it would take more than 5 ms."""
_WINDOW = 256 << 10  # bytes that kubelet may send unread
_KEY = "kubernetes.kubelet_socket"
_YOUNG_FOR = 60.0
"""Seconds after kubelet's start in which its list may be incomplete: it answers before it has read the API server."""


class PodsReader:
    """Reads the pods from kubelet.

    Once kubelet has answered, a missing socket means that kubelet restarts, not that the host has none. An answer
    without GPUs right after its start is ignored, because kubelet may not have its pods yet.
    """

    def __init__(self, socket: Path, clock: Clock = host_clock) -> None:
        self._socket = socket
        self._clock = clock
        self._answered = False
        self._last = PodsFacts()
        self._made: tuple[int, int] | None = None
        self._young_until = 0.0

    async def read(self) -> PodsFacts:
        """Returns the pods, as the same object if nothing has changed.

        Raises CollectorError, or SourceAbsent where no kubelet was ever seen.
        """
        made = self._socket_made()
        facts = await self._facts(await self._asked())
        self._answered = True
        now = self._clock().boottime
        if made != self._made:
            self._young_until = 0.0 if self._made is None else now + _YOUNG_FOR
            self._made = made
        is_unknown = not facts.containers and now < self._young_until
        self._last = self._last if is_unknown or facts == self._last else facts
        return self._last

    def _socket_made(self) -> tuple[int, int] | None:
        """Returns an identity of the socket: inode and ctime, because the kernel may reuse the inode."""
        try:
            status = self._socket.stat()
        except OSError:
            return None
        return status.st_ino, status.st_ctime_ns

    async def _asked(self) -> bytes:
        channel = _BoundedChannel(path=str(self._socket), codec=_Codec(), config=_CONFIGURATION)
        try:
            method = UnaryUnaryMethod[bytes, bytes](channel, METHOD, bytes, bytes)
            return await method(b"")
        except FileNotFoundError:
            missing = SourceAbsent if not self._answered else CollectorError
            raise missing(self._cannot(f"there is no such socket; start kubelet, or set {_KEY}")) from None
        except PermissionError:
            to_do = (
                "run as root, as the chart and the profile enforce do; where SELinux denies it (ausearch -m avc), "
                "let the pod run as spc_t (podSecurityContext.seLinuxOptions.type of the chart)"
            )
            raise CollectorError(self._cannot(f"permission denied; {to_do}")) from None
        except OSError as error:
            raise CollectorError(self._cannot(f"{error.strerror or error}; is kubelet running?")) from None
        except GRPCError as error:
            raise CollectorError(self._cannot(_meaning(error))) from None
        except (StreamTerminatedError, ProtocolError, AssertionError) as error:  # grpclib asserts that a reply arrived
            if channel.received > ANSWER_MOST:
                raise CollectorError(self._cannot(f"the answer is longer than {ANSWER_MOST >> 20} MiB")) from None
            raise CollectorError(
                self._cannot(f"the connection ended: {str(error)[:80] or 'no reason given'}")
            ) from None
        except Exception as error:  # a compressed message, a status that is no number: grpclib has no common type for what it cannot read
            raise CollectorError(
                self._cannot(
                    f"the answer cannot be read ({type(error).__name__}: {str(error)[:80] or 'no reason given'})"
                )
            ) from error
        finally:
            channel.close()

    async def _facts(self, answer: bytes) -> PodsFacts:
        try:
            if len(answer) < _ELSEWHERE:
                return decoded(answer)
            return await asyncio.get_running_loop().run_in_executor(None, decoded, answer)
        except Malformed as error:
            raise CollectorError(self._cannot(f"the answer is not PodResourcesLister v1's: {error}")) from None

    def _cannot(self, why: str) -> str:
        return f"cannot ask kubelet at {self._socket} which pods have GPUs: {why}"


_MEANINGS = {
    Status.UNIMPLEMENTED: "it has no PodResourcesLister v1, which kubelets have since Kubernetes 1.20",
    Status.RESOURCE_EXHAUSTED: "it refuses for now: too many programs ask it, or its answer is too long for it",
}


def _meaning(error: GRPCError) -> str:
    text = "".join(filter(str.isprintable, error.message or ""))[:120]
    meaning = _MEANINGS.get(error.status, "it answers with an error")
    return f"{meaning} ({error.status.name}{f': {text}' if text else ''})"


class _Codec(CodecBase):
    """Encodes a request without fields; the response is decoded elsewhere."""

    __content_subtype__ = "proto"

    def encode(self, message: bytes, message_type: type[bytes]) -> bytes:  # noqa: ARG002 - grpclib's signature
        return message

    def decode(self, data: bytes, message_type: type[bytes]) -> bytes:  # noqa: ARG002
        return data


_CONFIGURATION = Configuration(http2_connection_window_size=_WINDOW, http2_stream_window_size=_WINDOW)


class _BoundedChannel(Channel):
    """A channel for one question."""

    received = 0

    def _protocol_factory(self) -> H2Protocol:
        made = super()._protocol_factory()
        return _BoundedProtocol(made.handler, made.config, made.h2_config, self)


class _BoundedProtocol(H2Protocol):
    def __init__(self, handler: Any, config: Any, h2_config: Any, channel: _BoundedChannel) -> None:
        super().__init__(handler, config, h2_config)
        self._channel = channel

    def data_received(self, data: bytes) -> None:
        self._channel.received += len(data)
        if self._channel.received > ANSWER_MOST:
            self.processor.close("its answer is too long")
        else:
            super().data_received(data)
