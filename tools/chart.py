"""Renders the manifests for sites without Helm: `make chart`. A test compares them with the chart.

`kubernetes/base`, for kustomize: the chart at its defaults, in the namespace kube-system. Its configuration is made by kustomize
itself, from files, so that a change of it restarts the pods. `kubernetes/rbac.yaml`: rights and admission policy, also for a
daemon on the host.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "kubernetes"
CHART = FOLDER / "chart"
HELM = ROOT / ".venv-helm" / "bin" / "helm"
NAMESPACE = "kube-system"

_HEAD = "# Made by tools/chart.py from kubernetes/chart; edit that.\n"
_RBAC_HEAD = (
    _HEAD
    + "# What gpuwarden may do in a cluster: read nodes, change taint, label and annotation of nodes, write their conditions,\n# and events about them. Nothing else.\n"
)
_KUSTOMIZATION = f"""{_HEAD}apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: {NAMESPACE}
resources: [serviceaccount.yaml, daemonset.yaml]
configMapGenerator: # an overlay merges a 50-values.toml of its own: behavior: merge
  - name: gpuwarden
    files: [gpuwarden.toml, 50-values.toml]
"""
_HELMS = re.compile(
    r"^ *(helm\.sh/chart|app\.kubernetes\.io/managed-by|checksum/config): .*\n|^# Source: .*\n", re.MULTILINE
)


def template(*options: str) -> str:
    """Return the chart for these options, as Helm renders it. Raises CalledProcessError."""
    command = [str(HELM), "template", "gpuwarden", str(CHART), "--namespace", NAMESPACE, *options]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def files() -> Iterator[tuple[str, str]]:
    """Yield the rendered files: the path below `kubernetes`, and the text."""
    for name in ("serviceaccount", "daemonset"):
        text = _plain(template("--show-only", f"templates/{name}.yaml"))
        yield (
            f"base/{name}.yaml",
            _HEAD + text.removeprefix("---\n").replace("      annotations:\n    spec:", "    spec:"),
        )
    data = yaml.safe_load(template("--show-only", "templates/configmap.yaml"))["data"]
    yield from ((f"base/{name}", text) for name, text in data.items())
    yield "base/kustomization.yaml", _KUSTOMIZATION
    shown = ("--show-only", "templates/serviceaccount.yaml", "--show-only", "templates/rbac.yaml")
    rights = template("--set", "kubernetes.enabled=true", "--kube-version", "1.30.0", *shown)
    yield "rbac.yaml", _RBAC_HEAD + _plain(rights).removeprefix("---\n")


def _plain(text: str) -> str:
    """Return the text without the labels that are about Helm."""
    return re.sub(r"\n\n+", "\n", _HELMS.sub("", text))


def main() -> None:
    for path, text in files():
        (FOLDER / path).parent.mkdir(exist_ok=True)
        (FOLDER / path).write_text(text)


if __name__ == "__main__":
    main()
