"""The container of a pod as flags of Docker: what kubelet and a runtime make of it, as far as the two have it in common.

A field that is not known here is a fault of the test: nothing of a pod is left out in silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Spec = Mapping[str, Any]
_OF_THE_CLUSTER = {
    *("serviceAccountName", "automountServiceAccountToken", "enableServiceLinks", "priorityClassName", "nodeSelector"),
    *("tolerations", "terminationGracePeriodSeconds", "runtimeClassName"),
}
_OF_THE_KUBELET = {"name", "image", "imagePullPolicy", "ports", "livenessProbe", "readinessProbe"}


def flags(pod: Spec, data: Mapping[str, str], node: Path) -> list[str]:
    """Return docker's flags for the one container of `pod`, on a node whose root is the folder `node`. `data`: its ConfigMap."""
    (container,) = pod["containers"]
    return [*_pod(pod), *_container(container), *_volumes(pod["volumes"], container["volumeMounts"], data, node)]


def _pod(pod: Spec) -> Iterator[str]:
    for key, value in pod.items():
        if key == "hostPID":
            yield from ("--pid", "host") if value else ()
        elif key not in _OF_THE_CLUSTER | {"containers", "volumes"}:
            raise AssertionError(f"how is {key}: {value} started with Docker?")
    yield from ("--env", "KUBERNETES_SERVICE_HOST=192.0.2.1")


def _container(container: Spec) -> Iterator[str]:
    for key, value in container.items():
        if key == "env":
            yield from (part for each in value for part in ("--env", f"{each['name']}={each.get('value', 'node7')}"))
        elif key == "securityContext":
            yield from _security(value)
        elif key == "resources":
            yield from ("--memory", value["limits"]["memory"].replace("Mi", "m"))
        elif key not in _OF_THE_KUBELET | {"args", "volumeMounts"}:
            raise AssertionError(f"how is {key}: {value} started with Docker?")


def _security(context: Spec) -> Iterator[str]:
    yield from ("--user", f"{context['runAsUser']}:{context['runAsGroup']}")
    for key, value in context.items():
        match key, value:
            case ("readOnlyRootFilesystem", True):
                yield "--read-only"
            case ("allowPrivilegeEscalation", False):
                yield from ("--security-opt", "no-new-privileges")
            case ("capabilities", _):
                yield from (part for name in value["drop"] for part in ("--cap-drop", name))
                yield from (part for name in value.get("add", []) for part in ("--cap-add", name))
            case ("runAsUser" | "runAsGroup", _) | ("seccompProfile", {"type": "RuntimeDefault"}):
                pass
            case _:
                raise AssertionError(f"how is {key}: {value} started with Docker?")


def _volumes(volumes: list[Spec], mounts: list[Spec], data: Mapping[str, str], node: Path) -> Iterator[str]:
    by_name = {volume["name"]: volume for volume in volumes}
    for mount in mounts:
        volume, path = by_name[mount["name"]], mount["mountPath"]
        options = [name for name, on in (("ro", mount.get("readOnly")), ("rslave", "mountPropagation" in mount)) if on]
        if "emptyDir" in volume:
            yield from ("--tmpfs", path)
            continue
        if "configMap" in volume:
            source = node / "configmap"
            for item in volume["configMap"]["items"]:
                (source / item["path"]).parent.mkdir(parents=True, exist_ok=True)
                (source / item["path"]).write_text(data[item["key"]])
        else:
            here = volume["hostPath"]["path"]
            source = Path("/") if here == "/" else node / here.lstrip("/")
            source.mkdir(parents=True, exist_ok=True)
        yield from ("--volume", ":".join([str(source), path, *([",".join(options)] if options else [])]))
