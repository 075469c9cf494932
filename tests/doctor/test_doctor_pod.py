"""The doctor in a pod: what is missing there, and which value of the chart gives it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpuwarden.config.model import Config, load
from gpuwarden.config.sources import Layer, Sources
from gpuwarden.doctor import host, pod
from gpuwarden.doctor.row import Grade, Row
from support.quick import first_quick

POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "NODE_NAME": "gpu-7"}


@pytest.fixture(autouse=True)
def in_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", POD["KUBERNETES_SERVICE_HOST"])


def rows(environment: dict[str, str], **tables: object) -> dict[str, Row]:
    config = load(Sources(file=None, environment=environment, overrides=(Layer("test", dict(tables)),)))
    return {row.check: row for row in pod.pod(config)}


def mounted(proc: Path, *folders: str) -> None:
    """Write the mount table of a container: these folders, all on one device, as where a snapshot of its image is no overlay."""
    (proc / "self").mkdir()
    lines = [f"{number} 1 254:0 /x {folder} rw - ext4 /dev/vda rw\n" for number, folder in enumerate(folders)]
    (proc / "self/mountinfo").write_text("".join(lines))


@pytest.mark.needs("root")
def test_a_pod_as_the_chart_makes_it_by_default_lacks_the_mounts_of_the_host_alone() -> None:
    by_check = rows(POD, state={"dir": "/dev/shm/x"}, run={"dir": "/dev/shm/y"}, mode="enforce")
    assert by_check["pod"].found == "in a pod of node gpu-7"
    bad = {name: row.to_do for name, row in by_check.items() if row.grade is not Grade.OK}
    assert bad.pop("host processes", "values of the chart: hostPID") == "values of the chart: hostPID"  # of this host
    assert bad == {"host mounts": "values of the chart: hostMounts.enabled; or set collectors.storage.enabled = false"}


def test_each_thing_that_is_missing_has_a_row_with_the_value_that_gives_it(tmp_path: Path) -> None:
    mounted(tmp_path, "/")
    by_check = rows(
        {"KUBERNETES_SERVICE_HOST": "10.0.0.1"},
        paths={"proc": str(tmp_path), "host": str(tmp_path)}, state={"dir": "/etc/x"}, run={"dir": "/etc/y"},
    )  # fmt: skip
    todo = {name: row.to_do for name, row in by_check.items() if row.grade is not Grade.OK}
    assert "NODE_NAME" in todo["pod"]
    assert todo["host processes"].endswith("hostPID")
    assert todo["host mounts"].endswith("hostMounts.enabled and hostPID")
    assert "stateDir" in todo["state of the node"]
    assert "runDir" in todo["socket for jobs"]


def test_a_folder_of_the_node_on_the_device_of_the_containers_root_is_no_folder_of_the_container(
    tmp_path: Path,
) -> None:
    mounted(tmp_path, "/", "/etc")
    by_check = rows(POD, paths={"proc": str(tmp_path)}, state={"dir": "/etc/x/y"}, run={"dir": "/opt/y"})
    assert by_check["state of the node"].grade is Grade.OK
    assert by_check["socket for jobs"].grade is Grade.WARN


def test_a_kernel_log_that_a_pod_may_not_read_names_the_value_that_gives_it(tmp_path: Path) -> None:
    config = load(
        Sources(file=None, environment=POD, overrides=(Layer("test", {"paths": {"kmsg": str(tmp_path / "x")}}),))
    )
    (row,) = host.kernel_log(config)
    assert row.grade is Grade.FAIL
    assert (
        row.to_do == "values of the chart: kernelLog.enabled, securityContext.runAsUser=0; until then Xids are not read"
    )


def test_outside_of_a_pod_there_is_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    assert list(pod.pod(Config())) == []


@pytest.mark.needs("root")
@pytest.mark.parametrize(
    ("lost", "value"),
    first_quick(
        1,
        [
            ("kill", "jobs.signal"),
            ("sys_ptrace", "jobs.signal"),
            ("syslog", "kernelLog.enabled"),
        ],
    ),
)
def test_a_capability_that_the_pod_lacks_is_named_by_the_value_that_gives_it(lost: str, value: str) -> None:
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from gpuwarden.config.model import Config\n"
        "from gpuwarden.doctor import pod, system\n"
        "from gpuwarden.doctor.running import Running\n"
        "from pathlib import Path\n"
        "config = Config(mode='enforce')\n"
        "nobody = Running(folder=Path('/run'), status={}, why='')\n"
        "for row in [*pod.pod(config), *system.permissions(nobody, config)]:\n"
        "    print(row.check, row.found, row.to_do, sep='|')\n"
    )
    command = ["setpriv", f"--bounding-set=-{lost}", f"--inh-caps=-{lost}", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    named = [line for line in done.stdout.splitlines() if line.startswith(("signals|", "rights|"))]
    assert any(line.endswith(f"values of the chart: {value}") for line in named), done.stdout
