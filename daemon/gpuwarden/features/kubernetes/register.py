"""Kubernetes as an actuator: this node's taint, by an API server that knows all nodes."""

from __future__ import annotations

import os

from gpuwarden.config.model import Config
from gpuwarden.features.kubernetes.node_actuator import KubernetesActuator
from gpuwarden.features.kubernetes.options import KubernetesOptions
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.host import boot_id


def register(config: Config, clock: Clock, *_: object) -> KubernetesActuator:
    """Make the actuator. It uses neither the text of details nor the client of Slurm, which every register gets."""
    boot = boot_id(config.paths.proc)
    return KubernetesActuator(config.of(KubernetesOptions), clock=clock, hostname=os.uname().nodename, boot_id=boot)
