"""Runs a kubeconfig's credential plugin, which prints a token: bounded in time and size, killed with its children."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Callable
from typing import Any

from lightkube.config.client_adapter import ExecAuth

from gpuwarden.actuators.base import ActuatorUnavailable
from gpuwarden_collectors.plugin.run import run

LARGEST = 64 << 10
"""Most bytes of its output."""
_SHOWN = 200  # characters of its error output; its standard output may be a token and is never shown


async def token(plugin: Any, resolve: Callable[[str], Any], timeout: float) -> str:  # noqa: ASYNC109 - that of the program
    """Run the plugin and return its token. `plugin`: as in the kubeconfig; `resolve`: makes a path in it absolute.
    Raises ActuatorUnavailable.
    """
    command = str(resolve(plugin.command)) if "/" in plugin.command else plugin.command
    request = {"apiVersion": plugin.apiVersion, "kind": "ExecCredential", "spec": {"interactive": False}}
    environment = {**os.environ, **{variable.name: variable.value for variable in plugin.env or ()}}
    done = await run(
        [command, *(plugin.args or ())],
        {**environment, "KUBERNETES_EXEC_INFO": json.dumps(request)},
        timeout,
        kept=LARGEST,
    )
    if done.exit_code != 0:
        first = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        failure = done.error or f"exits with {done.exit_code}"
        raise ActuatorUnavailable(
            f"the kubeconfig's program {command} {failure}" + (f": {first:.{_SHOWN}}" if first else "")
        )
    try:
        match json.loads(done.stdout):
            case {"status": {"token": str(secret)}} if secret:
                return secret
    except (ValueError, RecursionError):
        pass
    raise ActuatorUnavailable(f"the kubeconfig's program {command} gives no token: run it by hand")


def plugin_auth(plugin: Any, resolve: Callable[[str], Any], timeout: float) -> Any:
    """Return the client's authentication, which keeps the plugin's token until the server rejects it."""

    class PluginAuth(ExecAuth):
        bearer = ""

        async def async_auth_flow(self, request: Any) -> AsyncGenerator[Any, Any]:
            if self.bearer:
                request.headers["Authorization"] = self.bearer
                response = yield request
                if response.status_code != 401:
                    return
            self.bearer = f"Bearer {await token(plugin, resolve, timeout)}"
            request.headers["Authorization"] = self.bearer
            yield request

    return PluginAuth(plugin)
