"""The checks of this feature."""

from gpuwarden.doctor.check import Check, in_loop
from gpuwarden.features.kubernetes.examination import kubernetes
from gpuwarden.features.kubernetes.pod_labels import pod_labels

CHECKS = {"kubernetes": Check(in_loop(kubernetes), 60.0, "kubernetes"), "pod labels": Check(pod_labels)}
