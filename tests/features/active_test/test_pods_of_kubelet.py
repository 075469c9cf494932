"""Which pods hold a GPU: those of kubelet's record that have a process at a pod's place, wherever else its UID is written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpuwarden.features.active_test.tester.pods import pods_with_gpus

UID = "3f0c2c6e-9c9b-4f0a-9d51-6a1f6a1b2c3d"
SLICE = UID.replace("-", "_")
ID = "0123456789abcdef" * 4
NOW = 1_000_000.0


def running(folder: Path, group: str) -> dict[str, int]:
    """Return the pods with GPUs, for an old record of one pod and one process in this control group."""
    record = folder / "kubelet/device-plugins/kubelet_internal_checkpoint"
    record.parent.mkdir(parents=True)
    entry = {"PodUID": UID, "ResourceName": "nvidia.com/gpu", "DeviceIDs": {"-1": ["GPU-1"]}}
    record.write_text(json.dumps({"Data": {"PodDeviceEntries": [entry]}}))
    os.utime(record, (NOW - 3600.0, NOW - 3600.0))
    (folder / "proc/4711").mkdir(parents=True)
    (folder / "proc/4711/cgroup").write_text(f"{group}\n")
    return pods_with_gpus(NOW, folder / "kubelet", folder / "proc")


@pytest.mark.parametrize(
    "group",
    [
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice/cri-containerd-{ID}.scope",
        f"0::/kubepods.slice/kubepods-pod{SLICE}.slice",
        f"4:memory:/kubepods/besteffort/pod{UID}/{ID}\n0::/",
        f"0::/site/kubepods/pod{UID}/{ID}",
        f"0::/system.slice/containerd.service/kubepods-burstable-pod{SLICE}.slice:cri-containerd:{ID}",
        f"0::/../../kubepods-burstable-pod{SLICE}.slice/crio-{ID}.scope",
        f"0::/system.slice/docker-{ID}.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SLICE}.slice/x",
        f"0::/docker/{ID}/kubepods/burstable/pod{UID}/{ID}",
    ],
)
def test_a_pod_with_a_process_at_its_place_has_its_gpu(tmp_path: Path, group: str) -> None:
    assert running(tmp_path, group) == {UID: 1}


@pytest.mark.parametrize(
    "group",
    [
        f"0::/user.slice/user-1000.slice/user@1000.service/kubepods/pod{UID}",
        f"0::/user.slice/user-1000.slice/user@1000.service/kubepods.slice/kubepods-pod{SLICE}.slice/x.scope",
        f"4:memory:/user.slice/user-1000.slice/session-2.scope/kubepods/burstable/pod{UID}/{ID}",
        f"0::/system.slice/web.service/kubepods-burstable-pod{SLICE}.slice:cri-containerd:{ID}",
        f"0::/kubepods.slice/kubepods-pod7.slice/cri-containerd-{ID}.scope/kubepods/pod{UID}",
    ],
)
def test_a_user_s_group_named_as_a_pod_s_keeps_no_gpu_from_a_test(tmp_path: Path, group: str) -> None:
    assert running(tmp_path, group) == {}
