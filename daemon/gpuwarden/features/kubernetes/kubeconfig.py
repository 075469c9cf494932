"""Makes a client from the kubeconfig, or from the service account of a pod. It needs the extra `kubernetes`."""

from __future__ import annotations

from typing import Any

import yaml
from lightkube.config import client_adapter
from lightkube.config.kubeconfig import KubeConfig

from gpuwarden.actuators.base import ActuatorRefused
from gpuwarden.features.kubernetes.options import KubernetesOptions
from gpuwarden.features.kubernetes.plugin import plugin_auth


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
