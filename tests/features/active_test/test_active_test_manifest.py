"""The manifest of the test in a pod: what it must have so that the test is alone, gives way, and is believed."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

from gpuwarden.base.paths import RUN_DIR
from gpuwarden.features.active_test.tester.occupancy import POD_VARIABLE
from gpuwarden.features.active_test.tester.pods import KUBELET
from gpuwarden.features.kubernetes.options import KubernetesOptions

MANIFEST = Path(__file__).parents[3] / "kubernetes/active-test.yaml"
PRIORITY, JOB = yaml.safe_load_all(MANIFEST.read_text())
SPEC: dict[str, Any] = JOB["spec"]["template"]["spec"]
CONTAINER: dict[str, Any] = SPEC["containers"][0]


def test_it_has_the_lowest_priority_and_takes_nobodys_place() -> None:
    assert (PRIORITY["value"], PRIORITY["preemptionPolicy"], PRIORITY["globalDefault"]) == (
        -2_000_000_000,
        "Never",
        False,
    )
    assert SPEC["priorityClassName"] == PRIORITY["metadata"]["name"]
    assert SPEC["terminationGracePeriodSeconds"] <= 2


def test_it_runs_once_within_a_limit_on_the_node_that_is_named() -> None:
    assert (JOB["spec"]["backoffLimit"], SPEC["restartPolicy"]) == (0, "Never")
    assert JOB["spec"]["activeDeadlineSeconds"] <= 900
    assert SPEC["nodeSelector"] == {"kubernetes.io/hostname": "NODE"}


def test_the_command_at_its_head_puts_in_the_name_of_the_node_and_leaves_the_variable_that_shows_it() -> None:
    """A name such as 10.0.0.7 would make a variable that no API server takes."""
    text = MANIFEST.read_text()
    (script,) = re.findall(r"^#   sed '(.+)' kubernetes/active-test.yaml", text, re.MULTILINE)
    script = script.replace("n1", "10.0.0.7").replace("gpu: 4", "gpu: 2")
    done = subprocess.run(["sed", script], input=text, capture_output=True, text=True, check=True, timeout=60)
    _, job = yaml.safe_load_all(done.stdout)
    spec = job["spec"]["template"]["spec"]
    assert job["metadata"]["name"] == "gpuwarden-test-10.0.0.7"
    assert spec["nodeSelector"] == {"kubernetes.io/hostname": "10.0.0.7"}
    assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert [variable["name"] for variable in spec["containers"][0]["env"]] == [
        variable["name"] for variable in CONTAINER["env"]
    ]


def test_of_taints_it_tolerates_gpuwardens_own_alone() -> None:
    assert [toleration["key"] for toleration in SPEC["tolerations"]] == [KubernetesOptions().key]


def test_its_image_is_the_one_of_the_chart() -> None:
    """`make image` gives no other tag, and of `latest` a node asks the registry each time."""
    (daemon,) = yaml.safe_load_all((MANIFEST.parent / "base/daemonset.yaml").read_text())
    assert CONTAINER["image"] == daemon["spec"]["template"]["spec"]["containers"][0]["image"]


def test_it_asks_for_all_gpus_and_shows_which_pod_it_is() -> None:
    assert CONTAINER["resources"]["limits"]["nvidia.com/gpu"] == 8
    variables = {
        variable["name"]: variable.get("value") or variable["valueFrom"]["fieldRef"]["fieldPath"]
        for variable in CONTAINER["env"]
    }
    assert variables[POD_VARIABLE] == "metadata.uid"
    assert variables["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    assert SPEC["hostPID"]


def test_the_daemon_and_kubelets_record_are_where_the_test_expects_them() -> None:
    mounted = {volume["mountPath"]: volume["name"] for volume in CONTAINER["volumeMounts"]}
    host = {volume["name"]: volume["hostPath"]["path"] for volume in SPEC["volumes"] if "hostPath" in volume}
    for path in (str(RUN_DIR), str(KUBELET / "device-plugins")):
        assert host[mounted[path]] == path


def test_it_has_the_rights_to_run_workers_as_another_user_to_end_them_and_to_reach_a_daemon_of_any_user() -> None:
    rights = CONTAINER["securityContext"]["capabilities"]
    assert (rights["drop"], set(rights["add"])) == (["ALL"], {"CHOWN", "DAC_OVERRIDE", "KILL", "SETGID", "SETUID"})
