"""The Helm chart, rendered by the real Helm, validated by the schemas of Kubernetes; and what is rendered from it for others."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

import gpuwarden
from chart import CHART, FOLDER, files
from gpuwarden.base.capabilities import FOR_SIGNALS
from gpuwarden.config.model import Config, load
from gpuwarden.config.sources import Sources
from gpuwarden.features.kubernetes.options import KubernetesOptions
from support.helm import Objects, objects, program, render, run

OLDEST, NEWEST = "1.25", "1.37"
"""Versions of Kubernetes: Chart.yaml's oldest, and the newest that has schemas here."""
EVERYTHING = (
    "podMonitor.enabled=true,prometheusRule.enabled=true,dashboards.enabled=true",
    "kubernetes.enabled=true,hostMounts.enabled=true,jobs.signal=true,hostNetwork=true,mode=enforce",
    "webConfig.secretName=web,driverRoot=/run/nvidia/driver",
    "imagePullSecrets[0].name=registry,image.digest=sha256:" + "0" * 64,
    "podSecurityContext.seLinuxOptions.type=spc_t",
    "extraEnv[0].name=TZ,extraEnv[0].value=UTC",
    "extraVolumes[0].name=x,extraVolumes[0].emptyDir.medium=Memory,extraVolumeMounts[0].name=x,extraVolumeMounts[0].mountPath=/x",
)
DAEMON = "DaemonSet/gpuwarden"
POD = ("spec", "template", "spec")
CONTAINER = (*POD, "containers", 0)
Where = tuple[str | int, ...]


def at(branch: Any, path: Where) -> Any:
    """Return the value at this path, or None."""
    for part in path:
        try:
            branch = branch[part]
        except (KeyError, IndexError, TypeError):
            return None
    return branch


def mounts(rendered: Objects) -> dict[str, Any]:
    return {mount["mountPath"]: mount for mount in at(rendered[DAEMON], (*CONTAINER, "volumeMounts"))}


def host_paths(rendered: Objects) -> dict[str, str]:
    """Return the path in the container of each folder of the node."""
    volumes = {
        volume["name"]: volume["hostPath"]["path"]
        for volume in at(rendered[DAEMON], (*POD, "volumes"))
        if "hostPath" in volume
    }
    return {volumes[mount["name"]]: path for path, mount in mounts(rendered).items() if mount["name"] in volumes}


def toml(rendered: Objects) -> str:
    return str(rendered["ConfigMap/gpuwarden"]["data"]["gpuwarden.toml"])


def test_the_chart_has_no_fault_and_the_version_of_the_tree() -> None:
    done = run("helm", "lint", "--strict", CHART)
    assert done.returncode == 0, done.stdout + done.stderr
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert {chart["version"], chart["appVersion"]} == {gpuwarden.__version__}


def test_what_is_rendered_for_kustomize_and_kubectl_is_what_the_chart_makes() -> None:
    program("helm")
    made = dict(files())
    assert made.keys() >= {"rbac.yaml", "base/kustomization.yaml"}
    for path, text in made.items():
        assert (FOLDER / path).read_text() == text, "run `make chart`"


# --- values


DEFAULTS = [
    ((*POD, "runtimeClassName"), "nvidia"),
    ((*POD, "priorityClassName"), "system-node-critical"),
    ((*POD, "tolerations"), [{"operator": "Exists"}]),
    ((*POD, "nodeSelector"), {"nvidia.com/gpu.present": "true"}),
    ((*POD, "hostPID"), True),
    ((*POD, "hostNetwork"), None),
    ((*POD, "automountServiceAccountToken"), False),
    ((*POD, "enableServiceLinks"), False),
    ((*CONTAINER, "image"), f"gpuwarden:{gpuwarden.__version__}"),
    ((*CONTAINER, "livenessProbe", "httpGet"), {"path": "/healthz", "port": "metrics"}),
    ((*CONTAINER, "securityContext", "capabilities"), {"drop": ["ALL"], "add": ["SYSLOG"]}),
    ((*CONTAINER, "securityContext", "allowPrivilegeEscalation"), False),
    ((*CONTAINER, "securityContext", "readOnlyRootFilesystem"), True),
    ((*CONTAINER, "securityContext", "runAsUser"), 0),
    (("spec", "updateStrategy", "rollingUpdate", "maxUnavailable"), "10%"),
]
ON_GKE = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": "cloud.google.com/gke-accelerator", "operator": "Exists"}]}
            ]
        }
    }
}
"""Nobody sets NVIDIA's label there."""
OTHERS = [
    ("kernelLog.enabled=false", (*CONTAINER, "securityContext", "capabilities"), {"drop": ["ALL"]}),
    ("jobs.signal=true", (*CONTAINER, "securityContext", "capabilities", "add"), ["SYSLOG", *(right.name for right in FOR_SIGNALS)]),
    ("runtimeClassName=", (*POD, "runtimeClassName"), None),
    ("platform=gke", (*POD, "runtimeClassName"), None),
    ("platform=gke", (*CONTAINER, "securityContext", "privileged"), True),
    ("platform=gke", (*CONTAINER, "securityContext", "capabilities"), None),
    ("platform=gke", (*POD, "nodeSelector"), None),
    ("platform=gke", (*POD, "affinity"), ON_GKE),
    ("platform=gke,nodeSelector.pool=a", (*POD, "nodeSelector"), {"pool": "a"}),
    ("nodeSelector.nvidia\\.com/gpu\\.present=null", (*POD, "nodeSelector"), None),
    ("securityContext.privileged=true", (*CONTAINER, "securityContext", "allowPrivilegeEscalation"), None),
    ("kubernetes.enabled=true", (*POD, "automountServiceAccountToken"), True),
    ("hostNetwork=true", (*POD, "dnsPolicy"), "ClusterFirstWithHostNet"),
    ("priorityClassName=", (*POD, "priorityClassName"), None),
    ("webConfig.secretName=web", (*CONTAINER, "livenessProbe", "tcpSocket"), {"port": "metrics"}),
    ("webConfig.secretName=web", (*CONTAINER, "livenessProbe", "httpGet"), None),
    ("securityContext.runAsUser=991", (*CONTAINER, "securityContext", "runAsUser"), 991),
    ("securityContext.runAsUser=991", (*CONTAINER, "securityContext", "readOnlyRootFilesystem"), True),
    ("podSecurityContext.seLinuxOptions.type=spc_t", (*POD, "securityContext"), {"seLinuxOptions": {"type": "spc_t"}}),
    ("image.repository=r.example/g,image.tag=v9", (*CONTAINER, "image"), "r.example/g:v9"),
    ("extraArgs[0]=--simulate,extraArgs[1]=8", (*CONTAINER, "args"), ["run", "--simulate", "8"]),
    ("podLabels.team=ml", ("spec", "template", "metadata", "labels", "team"), "ml"),
    ("fullnameOverride=other", ("metadata", "name"), "other"),
    ("serviceAccount.create=false,serviceAccount.name=own", (*POD, "serviceAccountName"), "own"),
]  # fmt: skip


def test_the_pod_observes_with_no_right_but_the_kernel_log() -> None:
    rendered = objects(render())
    assert set(rendered) == {DAEMON, "ConfigMap/gpuwarden", "ServiceAccount/gpuwarden"}
    for path, expected in DEFAULTS:
        assert at(rendered[DAEMON], path) == expected, path
    env = at(rendered[DAEMON], (*CONTAINER, "env"))
    assert {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}} in env


@pytest.mark.parametrize(
    ("value", "path", "expected"), OTHERS, ids=[f"{value} {path[-1]}" for value, path, _ in OTHERS]
)
def test_a_value_has_its_effect(value: str, path: Where, expected: object) -> None:
    (daemon,) = (manifest for name, manifest in objects(render(value)).items() if name.startswith("DaemonSet/"))
    assert at(daemon, path) == expected


def test_folders_of_the_node_come_where_a_value_asks_for_them() -> None:
    own = {"/run/gpuwarden": "/run/gpuwarden", "/var/lib/gpuwarden": "/var/lib/gpuwarden"}
    pods = {"/var/lib/kubelet/pod-resources": "/var/lib/kubelet/pod-resources"}
    assert host_paths(objects(render())) == own | pods
    assert host_paths(objects(render("kubernetes.podLabels=false"))) == own
    moved = objects(render("kubeletPath=/data/kubelet,stateDir=/data/gpuwarden"))
    assert host_paths(moved) == {
        "/run/gpuwarden": "/run/gpuwarden", "/data/gpuwarden": "/var/lib/gpuwarden",
        "/data/kubelet/pod-resources": "/var/lib/kubelet/pod-resources",
    }  # fmt: skip
    gke = host_paths(objects(render("platform=gke,hostMounts.enabled=true,driverRoot=/run/nvidia/driver")))
    assert gke == own | pods | {
        "/home/kubernetes/bin/nvidia": "/usr/local/nvidia",
        "/": "/host",
        "/run/nvidia/driver": "/run/nvidia/driver",
    }


def test_the_root_of_the_node_is_read_only_and_shows_later_mounts() -> None:
    mount = mounts(objects(render("hostMounts.enabled=true")))["/host"]
    assert (mount["readOnly"], mount["mountPropagation"]) == (True, "HostToContainer")


def test_rights_in_the_cluster_come_only_with_kubernetes_enabled() -> None:
    rights = {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
    kinds = rights | {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    assert not kinds & {manifest["kind"] for manifest in objects(render()).values()}
    assert kinds <= {manifest["kind"] for manifest in objects(render("kubernetes.enabled=true")).values()}
    assert not kinds & {
        manifest["kind"] for manifest in objects(render("kubernetes.enabled=true,rbac.create=false")).values()
    }
    old = {
        manifest["kind"] for manifest in objects(render("kubernetes.enabled=true,rbac.admissionPolicy=false")).values()
    }
    assert kinds & old == rights
    text = render("kubernetes.enabled=true,namespaceOverride=gpu,serviceAccount.name=own")
    assert 'request.userInfo.username == "system:serviceaccount:gpu:own"' in text


FAULTY = [
    "mode=act", "platform=eks", "port=0", "hostMount.enabled=true", "runDir=run", "image.digest=latest", "podMonitor.interval=often",
    "tolerations=all", "kubernetes.enabled=maybe", "extraArgs=--simulate", "listen=::", "rbac.keys={failure}",
]  # fmt: skip


@pytest.mark.parametrize("value", FAULTY)
def test_a_value_that_is_none_is_refused_by_its_name(value: str) -> None:
    done = run("helm", "template", "gpuwarden", CHART, "--set", value)
    assert done.returncode != 0
    assert value.partition("=")[0].partition(".")[0] in done.stderr
    assert "values don't meet the specifications of the schema" in done.stderr


# --- configuration


@pytest.mark.parametrize("values", [(), EVERYTHING, ("platform=gke",), ("kubernetes.podLabels=false",)], ids=repr)
def test_the_configuration_is_one_that_the_daemon_takes(values: tuple[str, ...], tmp_path: Path) -> None:
    config = loaded(objects(render(*values)), tmp_path)
    assert config.mode == ("enforce" if values == EVERYTHING else "observe")
    assert config.publish.listen.port == 9839
    assert ("storage" in config.collectors.off) == (values != EVERYTHING)


def test_pods_of_ipv6_alone_are_listened_for(tmp_path: Path) -> None:
    assert str(loaded(objects(render("listen=[::]")), tmp_path).publish.listen) == "[::]:9839"


def test_the_breaker_of_gke_counts_the_nodes_that_have_pods(tmp_path: Path) -> None:
    config = loaded(objects(render("platform=gke,kubernetes.enabled=true")), tmp_path)
    assert config.of(KubernetesOptions).pool == "cloud.google.com/gke-accelerator"


def test_the_value_config_wins_and_changes_the_pods(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("config: |\n  mode = 'enforce'\n  [collectors.storage]\n  enabled = true\n")
    mine = objects(render(options=("--values", values)))
    config = loaded(mine, tmp_path)
    assert (config.mode, "storage" in config.collectors.off) == ("enforce", False)
    annotations = ("spec", "template", "metadata", "annotations")
    assert at(mine[DAEMON], annotations) != at(objects(render())[DAEMON], annotations)


def loaded(rendered: Objects, folder: Path) -> Config:
    """The configuration of the pod, laid out as its volume has it."""
    data = rendered["ConfigMap/gpuwarden"]["data"]
    (volume,) = (candidate for candidate in at(rendered[DAEMON], (*POD, "volumes")) if candidate["name"] == "config")
    for item in volume["configMap"]["items"]:
        file = folder / "etc" / item["path"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(data[item["key"]])
    return load(Sources(file=folder / "etc/gpuwarden.toml", required=True))


# --- Prometheus and Grafana


def test_the_pod_monitor_keeps_the_labels_of_the_job_and_names_the_series_by_node() -> None:
    """A label with the name of gpuwarden's pod would begin all series of a node anew with each update of the chart."""
    values = "podMonitor.enabled=true,nameOverride=other,podMonitor.interval=1m30s"
    (endpoint,) = objects(render(values))["PodMonitor/gpuwarden-other"]["spec"]["podMetricsEndpoints"]
    assert (endpoint["honorLabels"], endpoint["port"], endpoint["interval"]) == (True, "metrics", "1m30s")
    assert endpoint["relabelings"] == [
        {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "instance"},
        {"targetLabel": "job", "replacement": "gpuwarden"},
        {"action": "labeldrop", "regex": "pod|container"},
    ]


def test_rules_and_dashboards_are_those_of_the_tree() -> None:
    rendered = objects(render("prometheusRule.enabled=true,dashboards.enabled=true"))
    for kind in ("alerts", "recording"):
        rules = yaml.safe_load((FOLDER.parent / f"grafana/prometheus/{kind}.rules.yml").read_text())
        assert rendered[f"PrometheusRule/gpuwarden-{kind}"]["spec"] == rules
    for file in sorted((FOLDER.parent / "grafana/dashboards").glob("*.json")):
        config_map = rendered[f"ConfigMap/gpuwarden-dashboard-{file.stem}"]
        assert config_map["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert json.loads(config_map["data"][f"gpuwarden-{file.name}"]) == json.loads(file.read_text())
    moved = render("prometheusRule.enabled=true,prometheusRule.runbooks=https://wiki.example/gpu/")
    assert "runbook_url: 'https://wiki.example/gpu/Gpuwarden" in moved
    assert "blob/main/docs/use/runbooks" not in moved


# --- what takes it


def test_the_notes_name_what_to_type_and_what_prevents_a_pod() -> None:
    done = run("helm", "install", "mine", CHART, "--namespace", "gpu", "--dry-run=client", "--set", "jobs.signal=true")
    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("NOTES:")[2]
    assert "kubectl -n gpu exec ds/mine-gpuwarden -- gpuwarden doctor" in notes
    for words in (
        'RuntimeClass "nvidia" not found',
        "nvidia.com/gpu.present=true",
        "Pod Security",
        "DiskPressure",
        "SELinux",
        f"no registry has the image gpuwarden:{gpuwarden.__version__}",
        "insufficient quota",
        "listen=[::]",
    ):
        assert words in notes
    assert "in mode observe nothing is signalled" in notes


@pytest.mark.slow
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_kubernetes_takes_every_object(version: str, tmp_path: Path) -> None:
    """The check uses Kubernetes' schemas; those of the Prometheus operator are not among them."""
    manifests = []
    for number, values in enumerate([(), EVERYTHING, ("platform=gke",)]):
        policy = [] if version == NEWEST else ["rbac.admissionPolicy=false"]
        manifests.append(tmp_path / f"{number}.yaml")
        manifests[-1].write_text(render(*values, *policy, version=f"{version}.0"))
    done = run("kubernetes-validate", "-k", version, "--strict", *manifests, FOLDER / "base/daemonset.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    unknown = {
        line.split(" for kind ")[1].split()[0] for line in (done.stdout + done.stderr).splitlines() if "WARN" in line
    }
    assert unknown == {"PodMonitor", "PrometheusRule"}


def test_a_kubernetes_that_is_too_old_is_refused() -> None:
    done = run("helm", "template", "gpuwarden", CHART, "--kube-version", "1.24.0")
    assert "requires kubeVersion: >=1.25.0" in done.stderr


def test_a_cluster_without_admission_policies_is_refused_with_the_value_that_leaves_the_policy_out() -> None:
    """Kubernetes 1.27 refuses the kind, "no matches for kind", and Helm shows notes only after an installation that succeeded."""
    words = ("template", "gpuwarden", CHART, "--kube-version", "1.29.9", "--set", "kubernetes.enabled=true")
    assert "--set rbac.admissionPolicy=false" in run("helm", *words).stderr
    assert run("helm", *words, "--set", "rbac.admissionPolicy=false").returncode == 0


def test_an_overlay_of_kustomize_changes_image_namespace_and_configuration(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    for file in (FOLDER / "base").iterdir():
        (tmp_path / "base" / file.name).write_text(file.read_text())
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/50-values.toml").write_text('mode = "enforce"\n')
    (tmp_path / "mine/kustomization.yaml").write_text(
        "resources: [../base]\nnamespace: gpu\nimages: [{name: gpuwarden, newName: r.example/gpuwarden, newTag: '9'}]\n"
        "configMapGenerator: [{name: gpuwarden, behavior: merge, files: [50-values.toml]}]\n"
        'patches: [{patch: "[{\\"op\\": \\"remove\\", \\"path\\": \\"/spec/template/spec/runtimeClassName\\"}]", target: {kind: DaemonSet}}]\n'
    )
    done = run("kubectl", "kustomize", tmp_path / "mine")
    assert done.returncode == 0, done.stderr
    rendered = objects(done.stdout)
    (config,) = (name for name in rendered if name.startswith("ConfigMap/"))
    daemon = rendered[DAEMON]
    assert at(daemon, (*CONTAINER, "image")) == "r.example/gpuwarden:9"
    assert at(daemon, (*POD, "runtimeClassName")) is None
    assert {manifest["metadata"]["namespace"] for manifest in rendered.values()} == {"gpu"}
    assert rendered[config]["data"]["50-values.toml"] == 'mode = "enforce"\n'
    assert "pod_labels" in rendered[config]["data"]["gpuwarden.toml"]
    (volume,) = (candidate for candidate in at(daemon, (*POD, "volumes")) if candidate["name"] == "config")
    assert f"ConfigMap/{volume['configMap']['name']}" == config


def test_the_packed_chart_has_the_files_that_are_links_in_the_tree(tmp_path: Path) -> None:
    done = run("helm", "package", CHART, "--destination", tmp_path)
    assert done.returncode == 0, done.stderr
    with tarfile.open(tmp_path / f"gpuwarden-{gpuwarden.__version__}.tgz") as packed:
        rules = packed.extractfile("gpuwarden/files/alerts.rules.yml")
        assert rules is not None
        assert rules.read() == (FOLDER.parent / "grafana/prometheus/alerts.rules.yml").read_bytes()
