"""Checks what an evacuation needs of this host: pidfd, the labels of containers, and Slurm for some keys."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

from gpuwarden.config.model import Config
from gpuwarden.doctor.check import Check, in_thread
from gpuwarden.doctor.row import Row, ok, warn
from gpuwarden_collectors.receivers.labels import PATIENCE, SIGNAL_LABEL

_PING = b"GET /_ping HTTP/1.0\r\nHost: localhost\r\n\r\n"
_RESPONSE_MOST = 64 * 1024  # bytes


def job_signals(_: Config) -> Iterator[Row]:
    """Check signals through a pidfd: a bare PID may belong to another process by the time of the signal."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        state = f"pidfd_open: {error.strerror}, on Linux {os.uname().release}: no process of this host is signalled"
        to_do = "use Linux 5.3 or later, and allow pidfd_open in the container's seccomp profile; jobs can still read the notice"
        yield warn("job signals", state, to_do)
    else:
        yield ok("job signals", "processes can be signalled through a pidfd")


def container_labels(config: Config) -> Iterator[Row]:
    """Check that the container runtime that has the labels answers, if there is one."""
    path = config.jobs.docker
    default = f"containers are signalled with {config.jobs.signal}, whatever their label {SIGNAL_LABEL} is"
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE)
            connection.connect(os.fspath(path))
            connection.sendall(_PING)
            first = connection.recv(_RESPONSE_MOST).partition(b"\r\n")[0]
    except FileNotFoundError:
        yield ok("container labels", f"no Docker or Podman listens at {path}")
    except TimeoutError:
        state = f"{path} has not answered within {PATIENCE:g} s: {default}"
        yield warn(
            "container labels", state, "check whether dockerd hangs, for example on a full disk: journalctl -u docker"
        )
    except OSError as error:
        state = f"{path}: {error.strerror}: {default}"
        yield warn(
            "container labels", state, "start the runtime, let this user write to its socket, or correct jobs.docker"
        )
    else:
        if first.startswith(b"HTTP/1.") and b" 200" in first:
            yield ok("container labels", f"{path} answers")
        else:
            yield warn("container labels", f"{path} answers {first[:60]!r}: {default}", "correct jobs.docker")


def wanted_of_slurm(config: Config) -> Iterator[Row]:
    """Warn of settings that need Slurm without [slurm]. No failure: two kinds of nodes may share a configuration."""
    jobs = config.jobs
    wanted = [
        *([f'jobs.final_node_state = "{jobs.final_node_state}"'] if jobs.final_node_state != "none" else ()),
        *(['the requeue of jobs.failing_gpu = "requeue"'] if jobs.failing_gpu == "requeue" else ()),
    ]
    if wanted and not config.slurm.enabled:
        state = f"without [slurm] there is no effect of {' and of '.join(wanted)}"
        yield warn("job settings", state, "enable [slurm] if this is a node of Slurm; else remove the key")


CHECKS = {
    "job signals": Check(in_thread(job_signals)),
    "container labels": Check(in_thread(container_labels)),
    "job settings": Check(in_thread(wanted_of_slurm)),
}
