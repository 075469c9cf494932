"""Ids that kubelet gave out become GPUs and instances here; pods are named where they belong: in findings, series and messages."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpuwarden.health.gpu.pods import CONTAINERS_MOST, KEPT, PodsOnGpus, matched, pods_on_gpus, with_pods
from gpuwarden.health.model import Event, EventKind, Key, Pin, gpu
from gpuwarden.health.view import Rules, Sight, View
from gpuwarden.notify.messages import Origin, message
from gpuwarden.publish.metrics import pods
from gpuwarden.publish.metrics.exposition import Renderer
from gpuwarden.publish.snapshot import CollectorStatus, JobLabels, Snapshot
from gpuwarden.publish.status import status
from gpuwarden.trace.pseudonyms import Pseudonyms
from gpuwarden_collectors.base import Observation, PassOutcome
from gpuwarden_collectors.codec import to_wire
from gpuwarden_collectors.facts import GpuFacts, MigInstance, NvmlFacts
from gpuwarden_collectors.kubelet.facts import PodContainer, PodsFacts
from support.snapshots import UPTIME, at, gpu_facts, h100_readings, slot, snapshot

UUIDS = [f"GPU-8f2c1d90-3e5a-4b17-9c2e-00000000000{n}" for n in range(3)]
MIG = "MIG-2ce7a541-c516-5dbc-a76e-26cc100d9b55"


def container(pod: str, *devices: str, name: str = "main") -> PodContainer:
    return PodContainer(namespace="team-a", pod=pod, container=name, devices=devices)


def listed(*minors: int | None) -> NvmlFacts:
    """The first has two instances, the second of which NVML gives no UUID."""
    mig = (
        MigInstance(gpu_instance=3, compute_instance=0, uuid=MIG),
        MigInstance(gpu_instance=5, compute_instance=0),
    )
    return NvmlFacts(
        gpus=tuple(
            GpuFacts(slot=slot(n), index=n, minor=minor, uuid=UUIDS[n], mig=mig if n == 0 else ())
            for n, minor in enumerate(minors)
        )
    )


@pytest.mark.parametrize(
    ("device", "place"),
    [
        (UUIDS[1], (slot(1), None)),
        (UUIDS[1].upper().replace("GPU", "gpu"), (slot(1), None)),
        (f"{UUIDS[1]}::3", (slot(1), None)),
        (MIG, (slot(0), 3)),
        (f"{MIG}::12", (slot(0), 3)),
        ("nvidia5", (slot(1), None)),
        ("nvidia5/vgpu0", (slot(1), None)),
        ("nvidia7/gi3", (slot(0), 3)),
        ("nvidia7/gi5/vgpu2", (slot(0), 5)),
        ("1", (slot(1), None)),
        ("1::0", (slot(1), None)),
        ("nvidia1", None),
        ("nvidia7/gi4", None),
        ("nvidia5/vgpu", None),
        (f"{UUIDS[1]}-extra", None),
        (UUIDS[2], None),
        ("", None),
        ("9", None),
    ],
)
def test_every_form_of_id_is_found_and_no_other_is_guessed(device: str, place: tuple[str, int | None] | None) -> None:
    """Device files have the minor number, which is not NVML's index."""
    holder = container("a", device)
    result = matched(PodsFacts(containers=(holder,)), {}, listed(7, 5))
    assert result.containers == ({} if place is None else {place: (holder,)})
    assert (result.matched, result.unmatched) == ((0, (device,)) if place is None else (1, ()))


def test_without_minor_numbers_files_are_by_index_and_a_lost_gpu_is_known_by_its_pin() -> None:
    first, second = container("a", "nvidia1"), container("b", UUIDS[2])
    pins = {slot(2): Pin(slot=slot(2), uuid=UUIDS[2])}
    result = matched(PodsFacts(containers=(first, second), claims=3), pins, listed(None, None))
    assert result.containers == {(slot(1), None): (first,), (slot(2), None): (second,)}
    assert result.claims == 3
    assert matched(PodsFacts(containers=(second,)), pins, None).containers == {(slot(2), None): (second,)}


def test_containers_that_share_a_gpu_are_each_named_and_bounded() -> None:
    shared = [container(f"pod-{n}", f"{UUIDS[1]}::{n}", f"{UUIDS[1]}::{n + 50}") for n in range(20)]
    result = matched(PodsFacts(containers=tuple(shared)), {}, listed(0, 1))
    assert result.containers == {(slot(1), None): tuple(shared[:CONTAINERS_MOST])}
    assert result.matched == 40


def seen(facts: PodsFacts, *, age: float = 0.0) -> Sight:
    now, before = at(UPTIME), at(UPTIME - age)
    view = View(boot_id="a-boot")
    for name, pass_facts, when in (("nvml", listed(7, 5), now), ("pods", facts, before)):
        view = view.after(
            Observation(collector=name, outcome=PassOutcome.OBSERVED, started=when, finished=when, facts=pass_facts)
        )
    return Sight.of(view, Rules(), now)


GIVEN = PodsFacts(
    containers=(
        container("a", MIG),
        container("b", "nvidia7/gi5", name="c1"),
        container("b", "nvidia7/gi5", name="c2"),
        container("c", UUIDS[1]),
    )
)


def test_a_finding_names_the_pods_that_were_there_when_it_was_first_seen() -> None:
    first = with_pods({"xid": 79}, None, seen(GIVEN), {}, slot(0))
    assert first == {"xid": 79, "pod": "team-a/a team-a/b"}
    later = PodsFacts(containers=(container("later", MIG),))
    assert with_pods({"xid": 79, "new": 1}, first, seen(later), {}, slot(0)) == {**first, "new": 1}
    assert with_pods({"xid": 79}, {"xid": 79}, seen(later), {}, slot(0)) == {"xid": 79}, "it was there before the pod"
    for nothing in (with_pods({}, None, seen(GIVEN), {}, ""), with_pods({}, None, seen(PodsFacts()), {}, slot(0))):
        assert nothing == {}


def test_labels_of_a_kubelet_that_no_longer_answers_end_after_a_minute() -> None:
    def now(age: float) -> PodsOnGpus | None:
        sight = seen(GIVEN, age=age)
        return pods_on_gpus({}, sight.view, sight.nvml, sight.now)

    assert now(KEPT - 1) is not None
    assert now(KEPT + 1) is None
    assert with_pods({}, None, seen(GIVEN, age=KEPT + 1), {}, slot(0)) == {}


@pytest.mark.parametrize("publish", [False, True])
def test_names_of_pods_leave_in_messages_only_on_request(publish: bool) -> None:
    key = Key("xid", gpu(slot(0)), "79")
    event = Event(kind=EventKind.RAISED, at=at(UPTIME), boot_id="b", key=key, data={"pod": "team-a/a", "xid": 79})
    made = message(event, Origin(node="n1", mode="observe", boot_id="b"), names=publish)
    assert made is not None
    assert json.loads(made[1].body)["data"] == ({"pod": "team-a/a", "xid": 79} if publish else {"xid": 79})


def test_a_shared_trace_has_other_names() -> None:
    other = Pseudonyms((), key=b"k" * 32)
    facts = json.dumps(other(json.loads(json.dumps(to_wire(GIVEN)))))
    assert "team-a" not in facts
    assert '"main"' not in facts
    evidence = other({"pod": "team-a/a team-a/b"})["pod"]
    (first, second) = (word.split("/") for word in evidence.split())
    assert first[0] == second[0]
    assert {f'"pod": "{first[1]}"' in facts, f'"namespace": "{first[0]}"' in facts} == {True}


def shown(on_gpus: PodsOnGpus | None, outcome: PassOutcome = PassOutcome.OBSERVED, error: str = "") -> Snapshot:
    collector = CollectorStatus(name="pods", outcome=outcome, error=error)
    return replace(snapshot(2), pods=on_gpus, collectors=(collector,))


def series(shown: Snapshot, name: str) -> list[str]:
    page = Renderer().render(shown).text.decode()
    return [line.removeprefix(name) for line in page.splitlines() if line.startswith(f"{name}{{")]


def test_series_of_a_gpu_name_its_pod_and_those_of_a_free_one_none() -> None:
    node_snapshot = shown(PodsOnGpus(containers={(slot(0), None): (container("a", "x"),)}))
    used, free = series(node_snapshot, "DCGM_FI_DEV_GPU_TEMP")
    assert ',pod="a",namespace="team-a",container="main"}' in used
    assert ',pod="",namespace="",container=""}' in free, "else it would have the target's own, by honor_labels"
    assert "pod=" not in series(snapshot(2), "DCGM_FI_DEV_GPU_TEMP")[0]
    assert series(node_snapshot, "gpuwarden_gpu_job_info") == [
        f'{{gpu="0",uuid="GPU-0000",pci_bus_id="{slot(0)}",user="",job_name="",pod="a",namespace="team-a",container="main"}} 1'
    ]


def test_a_shared_gpu_has_a_copy_for_each_pod_and_each_instance_has_its_own() -> None:
    mig = (MigInstance(gpu_instance=3, compute_instance=0), MigInstance(gpu_instance=5, compute_instance=0))
    facts = (replace(gpu_facts(0, h100_readings()), mig=mig), gpu_facts(1, h100_readings()))
    many = tuple(container(f"p{n}", "x") for n in range(3))
    on_gpus = PodsOnGpus(containers={(slot(0), 5): (container("mig", "x"),), (slot(1), None): many})
    node_snapshot = replace(
        shown(on_gpus), nvml=NvmlFacts(gpus=facts), hpc_jobs=JobLabels(jobs={"1": tuple(str(n) for n in range(4))})
    )
    lines = series(node_snapshot, "DCGM_FI_DEV_GPU_TEMP")
    assert [line.partition('pod="')[2].partition('"')[0] for line in lines[:2]] == ["", "mig"]
    copies = [line for line in lines if 'gpu="1"' in line]
    assert len(copies) == 8
    assert 'pod="p0",namespace="team-a",container="main",hpc_job="0"' in copies[0]


@pytest.mark.parametrize(
    ("pods_seen", "outcome", "state"),
    [
        (PodsOnGpus(containers={(slot(0), None): (container("a", "x"),)}, matched=1), PassOutcome.OBSERVED, "labelled"),
        (PodsOnGpus(), PassOutcome.OBSERVED, "no_gpu_given"),
        (PodsOnGpus(unmatched=("nvidia9",)), PassOutcome.OBSERVED, "unmatched"),
        (None, PassOutcome.ABSENT, "no_socket"),
        (None, PassOutcome.TIMED_OUT, "no_answer"),
        (PodsOnGpus(), PassOutcome.FAILED, "failed"),
    ],
)
def test_why_a_label_is_missing_is_a_metric_and_in_the_status(
    pods_seen: PodsOnGpus | None, outcome: PassOutcome, state: str
) -> None:
    node_snapshot = shown(pods_seen, outcome, "the reason")
    assert [labels for labels, value in pods.states(node_snapshot) if value] == [(state,)]
    assert len(list(pods.states(node_snapshot))) == len(pods.State)
    document = status(node_snapshot, at(UPTIME))
    assert document["pods"]["state"] == state
    assert any("fit no GPU here: nvidia9" in line for line in document["errors"]) is (state == "unmatched")
    assert len(series(node_snapshot, "gpuwarden_pod_devices")) == (0 if pods_seen is None else 2)


def test_where_kubelet_is_not_asked_there_is_no_series_of_it() -> None:
    page = Renderer().render(snapshot(2)).text.decode()
    assert "pod_labels{" not in page
    assert "pod_devices{" not in page
    assert status(snapshot(2), at(UPTIME))["pods"] is None
