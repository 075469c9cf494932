"""Makes a client from the kubeconfig, or from the service account of a pod. It needs the extra `kubernetes`."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Callable
from typing import Any

import yaml
from lightkube.config import client_adapter
from lightkube.config.client_adapter import ExecAuth
from lightkube.config.kubeconfig import KubeConfig

from gpuwarden.actuators.base import ActuatorRefused, ActuatorUnavailable
from gpuwarden.base.json_text import parsed
from gpuwarden.features.kubernetes.options import KubernetesOptions
from gpuwarden_collectors.plugin.run import run


def client_of(options: KubernetesOptions) -> Any:
    """Make a client. Raises ActuatorRefused if the kubeconfig is missing or wrong. No message quotes it."""
    try:
        if options.kubeconfig is not None:
            config = KubeConfig.from_file(options.kubeconfig).get(options.context or None)
        else:
            config = KubeConfig.from_service_account(options.service_account).get()
        if config is None or config.user is None:
            raise ValueError("its context names no user")  # noqa: TRY301 - handled as any other error of it
        parameters = client_adapter.ConnectionParams(timeout=None, trust_env=False)  # every call has a deadline
        client = client_adapter.AsyncClient(config, parameters)
        if config.user.exec is not None and config.user.token is None and config.user.token_file is None:
            client.auth = plugin_auth(config.user.exec, config.abs_file, options.timeout)
    except KeyError as error:
        raise ActuatorRefused(f"the Kubernetes configuration lacks {error}: set kubernetes.kubeconfig") from None
    except yaml.YAMLError as error:  # its own text quotes the line, which may hold a token
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark is not None else ""
        raise ActuatorRefused(
            f"the Kubernetes configuration cannot be used: invalid YAML{line} of {options.kubeconfig}"
        ) from None
    except Exception as error:  # noqa: BLE001 - a file that another program wrote: whatever may be wrong in it
        text = " ".join(str(error).split())
        raise ActuatorRefused(f"the Kubernetes configuration cannot be used: {text:.300}") from None
    return client


LARGEST = 64 << 10
"""Most bytes of its output."""
_SHOWN = 200  # characters of its error output; its standard output may be a token and is never shown


async def token(plugin: Any, resolve: Callable[[str], Any], timeout: float) -> str:  # noqa: ASYNC109 - that of the program
    """Run the plugin, bounded in time and size, and return its token. Raises ActuatorUnavailable.

    `plugin`: as in the kubeconfig; `resolve`: makes a path in it absolute.
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
    match parsed(done.stdout):
        case {"status": {"token": str(secret)}} if secret:
            return secret
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
