"""The doctor says why a series has no label of a pod: by the running daemon's own state, else by asking kubelet itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuwarden.config.model import Config
from gpuwarden.doctor.row import Grade, Row
from gpuwarden.doctor.running import Running
from gpuwarden.features.kubernetes.doctor import pod_labels
from gpuwarden.features.kubernetes.options import KubernetesOptions
from support.kubelet import answer, container, kubelet, pod, training

pytestmark = pytest.mark.timeout(120)


async def row(folder: Path, document: dict[str, Any] | None = None, *, enabled: bool = True) -> Row | None:
    options = KubernetesOptions(pod_labels=enabled, kubelet_socket=folder / "kubelet.sock")
    status = {} if document is None else {"pods": document}
    rows = await pod_labels(Running(folder=folder, status=status), Config(kubernetes=options))  # type: ignore[call-arg]
    return rows[0] if rows else None


def of(state: str, **more: Any) -> dict[str, Any]:
    return {"state": state, "error": "", "labelled": False, "matched": 0, "unmatched": [], "claims": 0, **more}


@pytest.mark.parametrize(
    ("document", "grade", "text"),
    [
        (of("labelled", matched=8), Grade.OK, "kubelet answers; all 8 devices of pods match a GPU here"),
        (of("no_gpu_given"), Grade.OK, "kubelet answers; no pod has a GPU from a device plugin"),
        (of("no_gpu_given", claims=2), Grade.OK, "2 containers have devices of Dynamic Resource Allocation"),
        (of("unmatched", matched=1, unmatched=["nvidia9"]), Grade.WARN, "1 devices match, but no GPU here has the ids nvidia9"),
        (of("no_socket", error="cannot ask kubelet: x"), Grade.WARN, "cannot ask kubelet: x"),
        (of("failed", error="refused", labelled=True), Grade.WARN, "refused; labels of the last answer are kept"),
    ],
)  # fmt: skip
async def test_the_running_daemon_says_what_it_was_answered(
    tmp_path: Path, document: dict[str, Any], grade: Grade, text: str
) -> None:
    shown = await row(tmp_path, document)
    assert shown is not None
    assert (shown.grade, bool(shown.to_do)) == (grade, grade is Grade.WARN)
    assert text in shown.found


async def test_without_a_daemon_kubelet_is_asked(tmp_path: Path) -> None:
    missing = await row(tmp_path)
    assert missing is not None
    assert "there is no such socket" in missing.found
    assert "kubernetes.kubelet_socket" in missing.to_do
    with kubelet(tmp_path / "kubelet.sock", answer(training("a", "GPU-1", "GPU-2"))) as server:
        answered = await row(tmp_path)
        assert answered is not None
        assert (answered.grade, answered.found) == (Grade.OK, "kubelet answers; 2 devices are given to 1 containers")
        server.response = answer(pod("team-b", "b", container("main", claims=1)))
        claimed = await row(tmp_path)
        assert claimed is not None
        assert "1 containers have devices of Dynamic Resource Allocation" in claimed.found


async def test_in_a_pod_the_row_names_the_value_of_the_chart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "192.0.2.1")
    for document in (None, of("no_socket", error="cannot ask kubelet: x")):
        missing = await row(tmp_path, document)
        assert missing is not None
        assert "values of the chart: kubeletPath" in missing.to_do


async def test_where_labels_of_pods_are_off_there_is_no_row(tmp_path: Path) -> None:
    assert await row(tmp_path, enabled=False) is None
