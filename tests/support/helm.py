"""Helm and kubectl, as programs, and the chart of this tree as they render it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from chart import CHART, HELM, NAMESPACE
from support.needs import HELM as REASON
from support.needs import unmet

ENVIRONMENT = HELM.parent
Objects = dict[str, dict[str, Any]]
"""By `Kind/name`."""


def program(name: str) -> Path:
    """helm, kubectl or kubernetes-validate, of the environment that `make helm` makes."""
    if not (ENVIRONMENT / name).exists():
        unmet(REASON)
    return ENVIRONMENT / name


def run(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HELM_CACHE_HOME": "/nonexistent", "KUBECONFIG": "/nonexistent"}
    return subprocess.run(
        [program(name), *arguments], env=environment, capture_output=True, text=True, check=False, timeout=120
    )


def render(*values: str, version: str = "1.30.0", options: Sequence[str | Path] = ()) -> str:
    """Return the chart as Helm renders it with these values, as `--set` takes them."""
    flags = [part for value in values for part in ("--set", value)]
    done = run(
        "helm", "template", "gpuwarden", CHART, "--namespace", NAMESPACE, "--kube-version", version, *flags, *options
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(text: str) -> Objects:
    return {
        f"{document['kind']}/{document['metadata']['name']}": document
        for document in yaml.safe_load_all(text)
        if document
    }
