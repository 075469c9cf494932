"""The checks of this feature."""

from __future__ import annotations

import asyncio

from gpuwarden.config.model import Config
from gpuwarden.config.sources import in_pod
from gpuwarden.doctor.check import Check, in_loop
from gpuwarden.doctor.row import Row, ok, warn
from gpuwarden.doctor.running import Running
from gpuwarden.features.kubernetes.examination import kubernetes
from gpuwarden.features.kubernetes.options import KubernetesOptions
from gpuwarden.features.kubernetes.sources import pods_reader
from gpuwarden_collectors.base import CollectorError

ASKED_WITHIN = 2.0
_CHECK = "pod labels"
_NONE = "kubelet answers; no pod has a GPU from a device plugin"
_CLAIMS = "; {} containers have devices of Dynamic Resource Allocation, which are not labelled"
_TO_DO = {
    "no_socket": "set kubernetes.kubelet_socket to the path of this node's kubelet",
    "no_answer": "see journalctl -u kubelet on the host: it must answer within 2 s",
    "failed": "see docs/use/kubernetes.md#labels-of-pods",
}
_IN_POD = (
    "values of the chart: kubeletPath, the node's folder of kubelet's files, from which the socket's folder is mounted"
)


def _to_do(state: str) -> str:
    return _IN_POD if state == "no_socket" and in_pod() else _TO_DO[state]


async def pod_labels(running: Running, config: Config) -> list[Row]:
    """Check that kubelet answers, and lists devices of this host; by the daemon, or by an own query."""
    if not config.of(KubernetesOptions).pod_labels:
        return []
    document = running.status.get("pods")
    if isinstance(document, dict):
        return [_of_daemon(document)]
    return [await _asked(config)]


def _of_daemon(document: dict[str, object]) -> Row:
    state, error = str(document.get("state")), str(document.get("error") or "")
    matched, unmatched, claims = document.get("matched"), document.get("unmatched"), document.get("claims")
    of_claims = _CLAIMS.format(claims) if claims else ""
    if state in _TO_DO:
        kept = "; labels of the last answer are kept for a minute" if document.get("labelled") else ""
        return warn(_CHECK, f"{error}{kept}", _to_do(state))
    if isinstance(unmatched, list) and unmatched:
        text = f"kubelet answers; {matched} devices match, but no GPU here has the ids {', '.join(map(str, unmatched))}"
        return warn(_CHECK, text + of_claims, "file an issue with these ids and the device plugin's name and version")
    text = f"kubelet answers; all {matched} devices of pods match a GPU here" if matched else _NONE
    return ok(_CHECK, text + of_claims)


async def _asked(config: Config) -> Row:
    try:
        async with asyncio.timeout(ASKED_WITHIN):
            facts = await pods_reader(config.of(KubernetesOptions)).read()
    except CollectorError as error:
        return warn(_CHECK, str(error), _to_do("no_socket"))
    except TimeoutError:
        text = f"kubelet has not answered at {config.of(KubernetesOptions).kubelet_socket} within {ASKED_WITHIN:g} s"
        return warn(_CHECK, text, _to_do("no_answer"))
    of_claims = _CLAIMS.format(facts.claims) if facts.claims else ""
    count = sum(len(container.devices) for container in facts.containers)
    text = f"kubelet answers; {count} devices are given to {len(facts.containers)} containers" if count else _NONE
    return ok(_CHECK, text + of_claims)


CHECKS = {"kubernetes": Check(in_loop(kubernetes), 60.0, "kubernetes"), "pod labels": Check(pod_labels)}
