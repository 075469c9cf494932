"""The authenticated connection to an API server, as a kubeconfig or a pod's service account describes it.

lightkube reads them and makes the client. This is done in a thread, since it takes files, YAML, certificates and 12 MB
of modules (PSS, measured); a file system that hangs then costs only that thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Protocol, cast

from gpuwarden.actuators.base import ActuatorRefused
from gpuwarden.base.threads import detached
from gpuwarden.features.kubernetes.options import EXTRA, KubernetesOptions

CLOSED_WITHIN = 2.0


class Client(Protocol):
    """The part of httpx's AsyncClient that is used here."""

    auth: Any

    def stream(self, method: str, url: str, **options: Any) -> Any: ...

    async def aclose(self) -> None: ...


class Connection:
    """Makes and keeps the client. After `drop`, the next call gets a new client, made from the files as they are then.
    A call that uses the old one ends with it.
    """

    def __init__(self, options: KubernetesOptions) -> None:
        self._options = options
        self._client: Client | None = None
        self._users: dict[Client, int] = {}
        self._making: asyncio.Future[Client] | None = None

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """Lend the present client. Raises ActuatorError if none can be made."""
        client = await self._current()
        self._users[client] = self._users.get(client, 0) + 1
        try:
            yield client
        finally:
            self._users[client] -= 1
            if client is not self._client and not self._users[client]:
                await self._close(client)

    async def drop(self) -> None:
        client, self._client = self._client, None
        if client is not None and not self._users.get(client):
            await self._close(client)

    async def _current(self) -> Client:
        while self._client is None:
            making = self._making
            if making is None:
                making = self._making = detached("kubernetes-client", lambda: new_client(self._options))
                making.add_done_callback(lambda made: made.exception())  # even if no call waits any more
            await asyncio.wait((making,))  # a shield: a waiter that gives up leaves the thread to the next
            if self._making is making:
                self._making = None
                self._client = making.result()
            else:
                making.result()
        return self._client

    async def _close(self, client: Client) -> None:
        self._users.pop(client, None)
        with contextlib.suppress(Exception):  # it is discarded, whatever is wrong with it
            async with asyncio.timeout(CLOSED_WITHIN):
                await client.aclose()


def new_client(options: KubernetesOptions) -> Client:
    """Make a client. Raises ActuatorRefused, quoting no file, if the package or kubeconfig is missing or wrong."""
    try:
        from gpuwarden.features.kubernetes.kubeconfig import client_of  # noqa: PLC0415 - 12 MB, of an extra, which may be missing
    except ImportError as error:
        raise ActuatorRefused(f"Kubernetes needs a package that is not installed ({error}): {EXTRA}") from None
    return cast("Client", client_of(options))
