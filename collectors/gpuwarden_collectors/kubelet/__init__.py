"""kubelet, the agent of Kubernetes on each node."""

from pathlib import Path

FOLDER = Path("/var/lib/kubelet")
SOCKET = "pod-resources/kubelet.sock"
VENDOR = "nvidia.com/"
"""Prefix of the resources that NVIDIA's device plugins offer."""
