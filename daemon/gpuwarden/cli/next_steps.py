"""Suggests commands for another terminal while simulated GPUs run."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpuwarden.config.model import Config

CONTAINER = "container"
"""Environment variable that systemd and the image (packaging/Dockerfile) set in a container."""


def next_steps(config: Config, environment: Mapping[str, str]) -> Iterator[str]:
    """Yields lines about how to try a simulation."""
    command = _command(environment)
    folder = shlex.quote(str(config.run.dir))
    yield "These GPUs are SIMULATED: no scheduler, notification, cloud notice or check of the host is used."
    yield "In another terminal:"
    yield f"  {command} status --run-dir {folder}"
    yield f"  {command} inject --run-dir {folder} --gpu 0 lost"
    if port := config.publish.listen.port:
        yield f"  curl -s http://localhost:{port}/heartbeat"


def _command(environment: Mapping[str, str]) -> str:
    """The command as it was called, or its bare name if the shell finds it.

    In a container it starts with `docker exec`; the default hostname there identifies the container.
    """
    name = Path(sys.argv[0]).name
    command = name if shutil.which(name, path=environment.get("PATH", "")) else shlex.quote(sys.argv[0])
    return f"docker exec {os.uname().nodename} {command}" if environment.get(CONTAINER) else command
