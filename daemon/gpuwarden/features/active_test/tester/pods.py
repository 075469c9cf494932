"""Finds the pods that have a GPU of this node: from kubelet's own record of devices, written before a container starts.

The API only has how many GPUs a pod requests; which pods hold them here is in
`device-plugins/kubelet_internal_checkpoint` (kubelet's `pkg/kubelet/cm/devicemanager/checkpoint`), which only root can
read. GPUs allocated by Dynamic Resource Allocation are not recorded there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuwarden_collectors.control_groups import RootFolders, lines
from gpuwarden_collectors.host_files import read_bytes, read_text
from gpuwarden_collectors.kubelet import FOLDER, VENDOR
from gpuwarden_collectors.places import place_begins, pod_at

KUBELET = FOLDER
_RECORD = "device-plugins/kubelet_internal_checkpoint"
_RECORD_MOST = 16 << 20  # bytes
_SHARED = "::"
"""Mark in the id of a device that is a time slice of a GPU (NVIDIA's device plugin, time-slicing and MPS)."""
_STARTING = 600.0
"""Seconds after the record was written in which a pod without a process may be starting. Later it has ended: kubelet
removes it only when it next allocates devices."""
_GROUP_MOST = 16 << 10  # bytes


class PodsUnread(Exception):  # noqa: N818 - a state of the host
    """A kubelet runs here, but its record cannot be read. The message says why and what to do."""


def is_kubernetes(kubelet: Path) -> bool:
    """Return True if kubelet has ever run here."""
    return (kubelet / "device-plugins").is_dir()


def pods_with_gpus(now: float, kubelet: Path, proc: Path, own: str = "") -> dict[str, int]:
    """Return the pods that hold a GPU or may be about to, by UID: how many whole ones, 0 if they are shared by time.

    `now`: Unix time. `own`: UID of the pod that this process is in; empty if none. Raises PodsUnread.
    """
    path = kubelet / _RECORD
    try:
        written = path.stat().st_mtime
        entries = json.loads(read_bytes(path, _RECORD_MOST))["Data"]["PodDeviceEntries"] or []
        pods = _with_gpus(entries)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise PodsUnread(f"cannot read which pods have a GPU ({path}): {error.strerror}; run as root") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PodsUnread(f"cannot read which pods have a GPU: {path} has another form than known") from error
    if pods and now - written >= _STARTING:
        here = {*_running(set(pods), proc), own}
        pods = {pod: gpus for pod, gpus in pods.items() if pod in here}
    return dict(sorted(pods.items()))


def _with_gpus(entries: list[Any]) -> dict[str, int]:
    devices_by_pod: dict[str, set[str]] = {}
    for entry in entries:
        if entry["ResourceName"].startswith(VENDOR) and any((entry["DeviceIDs"] or {}).values()):
            whole = {
                str(device) for part in entry["DeviceIDs"].values() for device in part if _SHARED not in str(device)
            }
            devices_by_pod.setdefault(str(entry["PodUID"]), set()).update(whole)
    return {pod: len(devices) for pod, devices in devices_by_pod.items()}


def _running(pods: set[str], proc: Path) -> Iterator[str]:
    """Yield the UIDs of pods that have a process in a cgroup at a pod's place, in folders of root's.

    Any user can name a cgroup of their own like a pod's.
    """
    folders = RootFolders(proc)
    for process in proc.iterdir():
        if not process.name.isdecimal():
            continue
        try:
            text = read_text(process / "cgroup", _GROUP_MOST)
        except OSError:
            continue
        for line in lines(text):
            pod = pod_at(line.path, place_begins(line.path))
            if pod is not None and pod.uid in pods and folders.are_roots(line, pod.end):
                yield pod.uid
