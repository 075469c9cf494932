"""kubelet, the agent of Kubernetes on each node."""

from pathlib import Path

FOLDER = Path("/var/lib/kubelet")
SOCKET = "pod-resources/kubelet.sock"
VENDOR = "nvidia.com/"
"""Of the resources that NVIDIA's device plugins give out."""
