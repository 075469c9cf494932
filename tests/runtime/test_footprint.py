"""What is not configured is not loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest


def python(script: str) -> subprocess.CompletedProcess[str]:
    """Run the script in a process of its own."""
    environment = {"PYTHONPATH": ":".join(sys.path)}
    return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)


@pytest.mark.slow
def test_only_who_waits_for_a_shutdown_loads_what_speaks_to_the_bus() -> None:
    script = (
        "import sys, gpuwarden.runtime.serve, gpuwarden_collectors.cloud.shutdown\n"
        "print([name for name in sys.modules if name.startswith('jeepney')])"
    )
    seen = python(script)
    assert (seen.stdout, seen.stderr) == ("[]\n", "")


@pytest.mark.slow
def test_what_is_not_configured_is_not_loaded() -> None:
    script = (
        "import sys, gpuwarden.runtime.serve; from gpuwarden.runtime.app import Daemon\n"
        "rooms = ('features.kubernetes.node_actuator', 'features.kubernetes.condition', 'features.active_test.gate', 'publish.web.yaml', 'publish.web.auth', 'collect.simulation')\n"
        "others = ('gpuwarden_collectors.nvml.simulated', 'gpuwarden_collectors.kubelet.client', 'gpuwarden_collectors.cloud.gcp')\n"
        "unwanted = tuple(f'gpuwarden.{room}' for room in rooms) + others\n"
        "print([name for name in sys.modules if name.startswith(unwanted)])"
    )
    seen = python(script)
    assert (seen.stdout, seen.stderr) == ("[]\n", "")
