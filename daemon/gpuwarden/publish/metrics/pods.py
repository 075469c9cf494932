"""Metrics and status of the pods on the GPUs, with the reason if pod labels are missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any

from gpuwarden.health.gpu.pods import PodsOnGpus
from gpuwarden.publish.snapshot import CollectorStatus, Snapshot
from gpuwarden_collectors.base import PassOutcome
from gpuwarden_collectors.kubelet.facts import PodContainer, PodsFacts

POD = ("pod", "namespace", "container")
"""The labels of dcgm-exporter."""
EXAMPLES = 3
"""Maximum number of ids shown that match no GPU of this node."""


class State(StrEnum):
    """The outcome of the last request to kubelet."""

    LABELLED = "labelled"
    NO_GPU_GIVEN = "no_gpu_given"
    UNMATCHED = "unmatched"
    NO_SOCKET = "no_socket"
    NO_ANSWER = "no_answer"
    FAILED = "failed"


_UNREAD = {
    PassOutcome.ABSENT: State.NO_SOCKET,
    PassOutcome.TIMED_OUT: State.NO_ANSWER,
    PassOutcome.FAILED: State.FAILED,
}


def pod_labels(container: PodContainer) -> tuple[str, str, str]:
    """Return the pod, namespace and container, in the order of the labels `POD`."""
    return container.pod, container.namespace, container.container


def on_gpus(snapshot: Snapshot, labels_of: Callable[[str], tuple[str, ...]]) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield samples of `gpuwarden_gpu_job_info` for pods, with empty labels of Slurm jobs."""
    if snapshot.pods is not None:
        for gpu in snapshot.verdict.gpus:
            for pod in snapshot.pods.on_gpu(gpu.slot):
                yield (*labels_of(gpu.slot), "", "", "", *pod_labels(pod)), 1


def states(snapshot: Snapshot) -> Iterator[tuple[tuple[str, ...], int]]:
    status = asked(snapshot)
    if status is not None:
        now = _state(snapshot, status)
        yield from (((state.value,), int(state is now)) for state in State)


def devices(snapshot: Snapshot) -> Iterator[tuple[tuple[str, ...], int]]:
    if snapshot.pods is not None:
        yield ("true",), snapshot.pods.matched
        yield ("false",), len(snapshot.pods.unmatched)


def document(snapshot: Snapshot) -> dict[str, Any] | None:
    """Return the status section about pods; None if kubelet is not queried."""
    status = asked(snapshot)
    if status is None:
        return None
    pods = snapshot.pods or PodsOnGpus()
    return {
        "state": _state(snapshot, status).value,
        "error": status.error,
        "labelled": bool(pods.containers),
        "matched": pods.matched,
        "unmatched": list(pods.unmatched[:EXAMPLES]),
        "claims": pods.claims,
    }


def asked(snapshot: Snapshot) -> CollectorStatus | None:
    """Return the status of the last request to kubelet; None if it is not queried."""
    return next(
        (collector for collector in snapshot.collectors if collector.name == PodsFacts.collector and collector.outcome),
        None,
    )


def _state(snapshot: Snapshot, status: CollectorStatus) -> State:
    if status.outcome in _UNREAD:
        return _UNREAD[status.outcome]
    if snapshot.pods is None:
        return State.NO_ANSWER
    if snapshot.pods.unmatched:
        return State.UNMATCHED
    return State.LABELLED if snapshot.pods.containers else State.NO_GPU_GIVEN
