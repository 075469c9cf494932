"""Checks of gpuwarden's environment in a pod, with the chart value for each deficit. No rows outside a pod."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from gpuwarden.base.capabilities import FOR_SIGNALS, lacking, names
from gpuwarden.config.model import Config
from gpuwarden.config.sources import in_pod
from gpuwarden.doctor.row import Row, fail, ok, warn
from gpuwarden_collectors.base import CollectorError
from gpuwarden_collectors.host import FIRST_PIDS
from gpuwarden_collectors.host_collectors.storage import SPEC, StorageCollector
from gpuwarden_collectors.mount_table import mount_of, mount_table

_SHOWN = 4


def pod(config: Config) -> Iterator[Row]:
    """Check node name, processes, user, mounts, signals and folders if this is a pod."""
    if in_pod():
        for row in _ROWS:
            yield from row(config)


def _node(config: Config) -> Iterator[Row]:
    """Check that the node's name is configured: the kernel's host name is the node's only with the host's network."""
    configured = config.origins is not None and ("node",) in config.origins
    if configured:
        yield ok("pod", f"in a pod of node {config.node}")
    else:
        to_do = "set NODE_NAME from spec.nodeName, as the chart does, or the key node"
        yield warn("pod", f"in a pod; the node's name is {config.node}, which is the kernel's name of this pod", to_do)


def _processes(config: Config) -> Iterator[Row]:
    if _inode(config.paths.proc / "self/ns/pid") != FIRST_PIDS:
        state = "this pod has its own process namespace: it is unknown which processes use a GPU, and whose they are"
        yield warn("host processes", state, "values of the chart: hostPID")
    else:
        yield ok("host processes", "the host's processes are visible")


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def _user(_: Config) -> Iterator[Row]:
    if os.geteuid() != 0:
        state = f"uid {os.geteuid()}: Kubernetes gives capabilities only to root, so this process has none"
        yield warn("pod's user", state, "values of the chart: securityContext.runAsUser=0")


def _mounts(config: Config) -> Iterator[Row]:
    storage, root = config.collectors.of(SPEC), config.paths.host
    if not storage.enabled:
        yield ok("host mounts", "not read: collectors.storage is disabled")
    elif root is None:
        to_do = "values of the chart: hostMounts.enabled; or set collectors.storage.enabled = false"
        yield warn("host mounts", "the mounts of this container are read, not those of the host", to_do)
    else:
        yield _below(root, StorageCollector(config.paths.proc, root=root), storage.expected)


def _below(root: Path, collector: StorageCollector, expected: tuple[str, ...]) -> Row:
    try:
        unseen = collector.unseen()
    except CollectorError as error:
        return fail("host mounts", str(error), "values of the chart: hostMounts.enabled and hostPID")
    lost = sorted(unseen.intersection(expected))
    if lost:
        state = f"expected, but not found below {root}: {', '.join(lost[:_SHOWN])}"
        return fail(
            "host mounts", state, "mount / of the host with mountPropagation HostToContainer, as the chart does"
        )
    return ok("host mounts", f"the host's mounts are read below {root}")


def _signals(config: Config) -> Iterator[Row]:
    """Check the capabilities for signals. Without them, root in a container can only signal root's processes."""
    missing = names(lacking(FOR_SIGNALS))
    if not missing:
        yield ok("signals", "processes of other users can be signalled before the machine ends")
    elif config.mode == "enforce":
        state = f"no {missing}: processes of other users are not signalled before the machine ends"
        yield warn("signals", state, "values of the chart: jobs.signal")
    else:
        yield ok("signals", f"no {missing}, and mode observe: nothing is signalled")


def _folders(config: Config) -> Iterator[Row]:
    """Check that state and run directory are mounted from the node: otherwise they are lost with the container."""
    for check, path, contents, value in (
        ("state of the node", config.state.dir, "findings, latches and expected GPUs", "stateDir"),
        ("socket for jobs", config.run.dir, "the sockets and the verdict for jobs", "runDir"),
    ):
        if _of_container(path, config.paths.proc):
            state = f"{path} is a folder of this container: {contents} are lost with it"
            yield warn(check, state, f"values of the chart: {value}, a folder of the host")
        else:
            yield ok(check, f"{path} is mounted")


def _of_container(path: Path, proc: Path) -> bool:
    """Return True if the folder is on the container's root mount.

    Mount points are compared, not devices: a mounted folder of the node may be on the same device as the root.
    """
    try:
        mount = mount_of(path.resolve(), mount_table(proc / "self/mountinfo"))
    except CollectorError:
        return False
    return mount is not None and mount.path == "/"


_ROWS: tuple[Callable[[Config], Iterator[Row]], ...] = (_node, _processes, _user, _mounts, _signals, _folders)
