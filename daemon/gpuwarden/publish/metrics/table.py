"""The table of gpuwarden's own metrics, one row each, followed by those of features. Names are defined only here.

GPU labels are `gpu` (NVML index; of a GPU that NVML does not list, see `exposition.py`), `uuid` and `pci_bus_id` (the
slot in the kernel's form). A counter whose increase an alert or a dashboard reads exists from the start with value 0,
since Prometheus misses the increase of a series that first appears with value 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from gpuwarden.features import parts
from gpuwarden.health.components import Component
from gpuwarden.health.conditions import CONDITIONS
from gpuwarden.health.gpu.jobs import on_gpus
from gpuwarden.health.lemons.memory import What
from gpuwarden.health.model import Finding, GpuVerdict, Health, Key, Severity
from gpuwarden.health.to_do import first_sentence, to_do
from gpuwarden.health.xid.catalogue import XIDS, XidClass
from gpuwarden.publish import notices
from gpuwarden.publish.metrics import enforcement, pods, ports
from gpuwarden.publish.metrics.lines import COUNTER, GAUGE, Number
from gpuwarden.publish.metrics.machine import MACHINE_LABELS
from gpuwarden.publish.metrics.pods import POD
from gpuwarden.publish.metrics.process import PROCESS
from gpuwarden.publish.metrics.row import GPU, Labels, Metric, Sample, gpu_labels
from gpuwarden.publish.snapshot import CollectorStatus, Snapshot, XidCount
from gpuwarden.publish.status import DISBELIEVED, detail
from gpuwarden_collectors.base import PassOutcome

_LOOKED_AT = [feature.looked_at for feature in parts("snapshot").values() if hasattr(feature, "looked_at")]
NO_GPU: Labels = ("", "", "")
SHADOW = "shadow"
INFOS_MOST = 32
"""Maximum number of findings that are described, to limit the page of a host with many faults."""
INCIDENTS_MOST = 16
"""Maximum number of incidents of several findings that are described, worst first."""
CONSEQUENCES_LONGEST = 200  # characters
XIDS_MOST = 32
"""Maximum number of pairs of GPU and Xid, latest first, with a time, and a count unless it starts at 0."""
LEMONS_MOST = 16
"""Maximum number of pairs of GPU and kind of event, worst first."""
FAILURE_XIDS = tuple(str(row.xid) for row in XIDS.values() if row.klass is XidClass.FAILURE)


def _labels_of_slot(snapshot: Snapshot) -> Callable[[str], Labels]:
    """Return a function from slot to GPU labels. A slot without a GPU (a switch) has only the address."""
    by_slot = {gpu.slot: gpu_labels(gpu) for gpu in snapshot.verdict.gpus}
    return lambda slot: by_slot.get(slot, ("", "", slot))


def _one(value: Number | None) -> Iterator[Sample]:
    if value is not None:
        yield (), value


def _expected(snapshot: Snapshot) -> list[GpuVerdict]:
    return [gpu for gpu in snapshot.verdict.gpus if gpu.expected]


def _node_health(snapshot: Snapshot) -> Iterator[Sample]:
    health = snapshot.health(snapshot.made)
    return (((state.value,), int(state is health)) for state in Health)


def _gpu_health(snapshot: Snapshot) -> Iterator[Sample]:
    for gpu in snapshot.verdict.gpus:
        labels = gpu_labels(gpu)
        for state in Health:
            yield (*labels, state.value), int(state is gpu.health)


def _findings(snapshot: Snapshot) -> Iterator[Sample]:
    gpus = [gpu_labels(gpu) for gpu in _expected(snapshot)]
    only = {code: slots for looked_at in _LOOKED_AT for code, slots in looked_at(snapshot).items()}
    for row in (row for row in CONDITIONS.values() if not row.shadow):
        slots = only.get(row.code)
        for labels in gpus if row.scope in ("gpu", "link") else (NO_GPU,):
            if slots is None or labels[-1] in slots:
                yield (row.code, row.severity.value, *labels), 0
    labels_of = _labels_of_slot(snapshot)
    for finding in snapshot.verdict.findings:
        yield (finding.key.code, _severity(finding), *labels_of(finding.key.subject.slot)), 1


def _severity(finding: Finding) -> str:
    return SHADOW if finding.shadow else finding.severity.value


def _finding_texts(snapshot: Snapshot) -> Iterator[Sample]:
    labels_of = _labels_of_slot(snapshot)
    for finding in _described(snapshot.verdict.findings):
        texts = (detail(finding), finding.title, first_sentence(to_do(finding.key, finding.advice, finding.evidence)))
        yield (finding.key.code, _severity(finding), *labels_of(finding.key.subject.slot), *texts), 1


def _described(findings: Sequence[Finding]) -> list[Finding]:
    """Return the INFOS_MOST findings to describe, in their order.

    The first finding of each check, severity and GPU precedes any second one, because alerts use these labels: 144
    links that are down must not hide a missing GPU.
    """
    first = {(f.key.code, _severity(f), f.key.subject.slot): f.key for f in reversed(findings)}
    chosen = sorted(findings, key=lambda f: f.key not in first.values())[:INFOS_MOST]
    return [f for f in findings if f in chosen]


def _incidents(snapshot: Snapshot) -> Iterator[Sample]:
    severity_of = {finding.key: finding.severity for finding in snapshot.verdict.findings}
    counts = Counter(severity_of.get(incident.cause) for incident in snapshot.verdict.incidents)
    return (((severity.value,), counts[severity]) for severity in Severity)


def _incident_infos(snapshot: Snapshot) -> Iterator[Sample]:
    labels_of = _labels_of_slot(snapshot)
    for incident in [incident for incident in snapshot.verdict.incidents if incident.consequences][:INCIDENTS_MOST]:
        key, counts = incident.cause, Counter(map(_code, incident.consequences))
        text = ", ".join(code if count == 1 else f"{code} x{count}" for code, count in sorted(counts.items()))
        yield (key.code, key.detail or key.subject.part, *labels_of(key.subject.slot), text[:CONSEQUENCES_LONGEST]), 1


def _code(key: Key) -> str:
    return f"{key.code}.{key.detail}" if key.detail else key.code


def _lemons(snapshot: Snapshot) -> Iterator[Sample]:
    for kind in What:
        yield (*NO_GPU, kind.value), 0
    labels_of = _labels_of_slot(snapshot)
    rows = snapshot.verdict.lemons
    boards = sorted((row for row in rows if row.slot), key=lambda row: -row.days)[:LEMONS_MOST]
    for row in (*(row for row in rows if not row.slot), *boards):
        yield (*labels_of(row.slot), row.what), row.days


def _missing(snapshot: Snapshot) -> Iterator[Sample]:
    def is_missing(finding: Finding) -> bool:
        return finding.key.code == "gpu_missing"

    gone = {finding.key.subject.slot for finding in filter(is_missing, snapshot.verdict.findings)}
    return (((gpu.uuid, gpu.slot), int(gpu.slot in gone)) for gpu in _expected(snapshot))


def _xids(snapshot: Snapshot) -> Iterator[Sample]:
    failures = (*FAILURE_XIDS, *snapshot.site_failures)
    expected = _expected(snapshot)
    for gpu in expected:
        labels = gpu_labels(gpu)
        for number in failures:
            yield (*labels, number), 0
    labels_of, slots, latest = _labels_of_slot(snapshot), {gpu.slot for gpu in expected}, set(_latest_xids(snapshot))
    for xid in snapshot.xids:
        if xid in latest or (str(xid.xid) in failures and xid.slot in slots):
            yield (*labels_of(xid.slot), str(xid.xid)), xid.count


def _last_xids(snapshot: Snapshot) -> Iterator[Sample]:
    labels_of = _labels_of_slot(snapshot)
    return (((*labels_of(x.slot), str(x.xid)), x.last) for x in _latest_xids(snapshot) if x.last is not None)


def _latest_xids(snapshot: Snapshot) -> list[XidCount]:
    return sorted(snapshot.xids, key=lambda xid: -math.inf if xid.last is None else xid.last)[-XIDS_MOST:]


def _up(collector: CollectorStatus) -> Number | None:
    if collector.outcome in (None, PassOutcome.ABSENT):
        return None
    return int(collector.outcome is PassOutcome.OBSERVED)


def _last_success(collector: CollectorStatus) -> Number | None:
    return None if collector.last_success is None else collector.last_success.wall


def _restarts(collector: CollectorStatus) -> Number | None:
    return None if collector.worker is None else collector.worker.restarts


def _each_collector(value: Callable[[CollectorStatus], Number | None]) -> Callable[[Snapshot], Iterator[Sample]]:
    def samples(snapshot: Snapshot) -> Iterator[Sample]:
        for collector in snapshot.collectors:
            if (number := value(collector)) is not None:
                yield (collector.name,), number

    return samples


def _busy(snapshot: Snapshot) -> Iterator[Sample]:
    gpus = {} if snapshot.nvml is None else {gpu.slot: gpu for gpu in snapshot.nvml.gpus}
    slots = {*gpus, *(gpu.slot for gpu in snapshot.verdict.gpus)}
    jobs_by_slot = {} if snapshot.jobs is None else on_gpus(snapshot.jobs, slots, gpus)
    busy = any(gpu.processes for gpu in gpus.values()) or any(
        not job.ended for jobs in jobs_by_slot.values() for job in jobs
    )
    if busy or snapshot.nvml is not None:
        yield (), int(busy)


def _refused(snapshot: Snapshot) -> Iterator[Sample]:
    return (((why,), n) for why, n in {**dict.fromkeys(REFUSALS, 0), **snapshot.clients.refused}.items())


def _disbelieved(snapshot: Snapshot) -> Iterator[Sample]:
    return (((why,), n) for why, n in {**dict.fromkeys(DISBELIEVED, 0), **snapshot.disbelieved}.items())


def _gpu_jobs(snapshot: Snapshot) -> Iterator[Sample]:
    yield from pods.on_gpus(snapshot, _labels_of_slot(snapshot))
    if snapshot.jobs is None:
        return
    slots = [gpu.slot for gpu in snapshot.verdict.gpus]
    listed = () if snapshot.nvml is None else snapshot.nvml.gpus
    labels_of = _labels_of_slot(snapshot)
    for slot, jobs in on_gpus(snapshot.jobs, slots, {facts.slot: facts for facts in listed}).items():
        for job in jobs:
            names = (job.user, job.job_name) if snapshot.service.publish_jobs else ("", "")
            yield (*labels_of(slot), str(job.job), *names, "", "", ""), 1


PER_COLLECTOR = ("collector",)
REFUSALS = ("handshake", "name", "login", "rate_limit")
"""Reasons for which the web server refuses a client."""

_ROWS: tuple[Metric, ...] = (
    # --- this daemon
    Metric("gpuwarden_build_info", GAUGE, ("version",), lambda s: [((s.service.version,), 1)],
           "Always 1. The label is the running version."),
    Metric("gpuwarden_node_info", GAUGE, ("node", "boot_id"), lambda s: [((s.service.node, s.service.boot_id), 1)],
           "Always 1. The labels are the name of this node and the id of its boot."),
    Metric("gpuwarden_machine_info", GAUGE, MACHINE_LABELS, lambda s: [(s.machine, 1)] if s.machine else (),
           "Always 1. The labels are what nodes may have in common: the machine's type by its firmware, GPU model, driver, VBIOS; NVLink domain and "
           "clique where NVLink spans nodes; chassis, slot and tray from Blackwell on; leaf switch or block by the configuration or Slurm's topology; "
           "kernel, InfoROM, firmware of RDMA adapters with their board. "
           "While the driver does not respond they keep their last values."),
    Metric("gpuwarden_simulated", GAUGE, (), lambda s: _one(int(s.service.simulated)),
           "1 while every GPU on this page is simulated."),
    Metric("gpuwarden_enforcing", GAUGE, (), lambda s: _one(int(s.service.mode == "enforce")),
           "1 in mode enforce; 0 in mode observe, in which gpuwarden only shows what it would do."),
    Metric("gpuwarden_heartbeat_timestamp_seconds", GAUGE, (), lambda s: _one(s.observed.wall if s.observed else None),
           "Time of the last observation of the GPUs, Unix time. No series before the first."),
    Metric("gpuwarden_component_up", GAUGE, ("component",), lambda s: (((c.value,), int(not s.errors.get(c))) for c in Component),
           "1 while this part of the daemon works, 0 while it fails; a failure is a finding too.", default=False),
    Metric("gpuwarden_feature_errors_total", COUNTER, ("feature",), lambda s: (((name,), n) for name, n in s.feature_errors.items()),
           "Internal errors of this feature, since the daemon started. The daemon, its other features and the health of the node are not affected.", default=False),
    Metric("gpuwarden_dropped_total", COUNTER, ("what",), lambda s: (((kind,), n) for kind, n in s.dropped.items()),
           "Log lines, ledger events and host events that were dropped because they came too fast or could not be written in time."),
    Metric("gpuwarden_http_turned_away_total", COUNTER, (), lambda s: _one(s.clients.turned_away),
           "HTTP connections closed to make room for new ones; at most 128 are open at once.", default=False),
    Metric("gpuwarden_http_refused_total", COUNTER, ("why",), _refused,
           "HTTP clients refused, by reason: handshake (TLS), name (in the client certificate), login, rate_limit.", default=False),
    Metric("gpuwarden_hpc_job_mapping_up", GAUGE, (), lambda s: _one(None if s.hpc_jobs is None else int(not s.hpc_jobs.error)),
           "1 while the job files of the label hpc_job can be read. No series without that label.", default=False),
    Metric("gpuwarden_kernel_log_gaps_total", COUNTER, (), lambda s: _one(s.log_gaps),
           "Number of times that kernel log records were overwritten before gpuwarden had read them.", default=False),
    Metric("gpuwarden_kernel_log_lost_records_total", COUNTER, (), lambda s: _one(s.log_lost),
           "Number of kernel log records that were overwritten before gpuwarden had read them."),
    Metric("gpuwarden_kernel_log_disbelieved_total", COUNTER, ("reason",), _disbelieved,
           "Kernel log lines that look like a fault and were ignored, since the daemon started. Reason facility: a process wrote the line; "
           "packet_filter: a log rule of the packet filter wrote it; unknown_slot: it names a PCI slot without a device.", default=False),
    # --- the node
    Metric("gpuwarden_node_health", GAUGE, ("state",), _node_health,
           "1 for the current health state of the node, 0 for the others."),
    Metric("gpuwarden_node_busy", GAUGE, (), _busy,
           "1 while a process has a GPU open or a Slurm job has been given one, else 0. No series while that is unknown."),
    Metric("gpuwarden_schedulable", GAUGE, (), lambda s: _one(int(s.schedulable(s.made))),
           "1 while the node may take work: it is healthy or has a warning, its readings are fresh, it is not excluded, and no termination notice is imminent."),
    Metric("gpuwarden_excluded", GAUGE, ("actuator", "owner", "cause"), enforcement.exclusions,
           "1 while this actuator has the node excluded: by gpuwarden (cause failure, termination or operator) or by another party (owner other, "
           "cause foreign, or maintenance: a reservation of Slurm). The series without an actuator is 1 while an operator excludes the node, with or without a scheduler."),
    Metric("gpuwarden_excluded_since_timestamp_seconds", GAUGE, ("actuator", "owner", "cause"), enforcement.exclusions_since,
           "Time since which gpuwarden has the node excluded there, Unix time. No series while it is not excluded."),
    Metric("gpuwarden_actuator_up", GAUGE, ("actuator",), enforcement.answering,
           "1 while this actuator (the scheduler, file or program that excludes the node) can be read. No series before the first read.", default=False),
    Metric("gpuwarden_intents_total", COUNTER, ("kind", "outcome"), enforcement.intents,
           "Intents to exclude or restore this node, by outcome, since the ledger began. Outcome observed: only shown, in mode observe. "
           "Outcomes retry and refused count attempts since the daemon started."),
    Metric("gpuwarden_intents_pending", GAUGE, (), lambda s: _one(len(s.enforced.pending)),
           "Intents that are not done yet: the scheduler is unreachable or refuses, or the breaker is open."),
    Metric("gpuwarden_breaker_open", GAUGE, (), lambda s: _one(int(bool(s.enforced.breaker))),
           "1 while this node has a failure but is not excluded for it, because too many nodes are excluded or their number is unknown."),
    Metric("gpuwarden_failures_overridden", GAUGE, (), lambda s: _one(len(s.enforced.overridden)),
           "Number of active failures that do not exclude the node, because an operator overrode them (gpuwarden restore --force)."),
    Metric("gpuwarden_notifications_queued", GAUGE, ("target",), enforcement.queued,
           "Notifications that are waiting for delivery.", default=False),
    Metric("gpuwarden_notifications_total", COUNTER, ("target", "outcome"), enforcement.notified,
           "Attempts to deliver a notification, by outcome: delivered; refused (not tried again); barred (tried again, but an operator must correct "
           "something); later (tried again); dropped (undelivered, for a newer one of its subject or for room).", default=False),
    Metric("gpuwarden_termination_notice", GAUGE, ("source", "kind"), notices.announced,
           "1 while a termination notice for this machine is in force and not cancelled by an operator: imminent, further away, or only a hint."),
    Metric("gpuwarden_termination_deadline_timestamp_seconds", GAUGE, (), notices.deadline,
           "Earliest announced end of this machine, Unix time; hints do not count. No series while no notice gives a time."),
    Metric("gpuwarden_termination_source_up", GAUGE, ("source",), notices.sources_up,
           "1 while this source of termination notices answers."),
    Metric("gpuwarden_gpus_expected", GAUGE, (), lambda s: _one(s.verdict.expected),
           "Number of GPUs expected here: as configured, by the type of the machine, or as learned. No series while the number is unknown."),
    Metric("gpuwarden_gpus_present", GAUGE, (), lambda s: _one(s.verdict.present),
           "Number of GPUs that are present."),
    # --- GPUs
    Metric("gpuwarden_gpu_health", GAUGE, (*GPU, "state"), _gpu_health,
           "1 for the current health state of the GPU, 0 for the others.", zeros=False),
    Metric("gpuwarden_gpu_missing", GAUGE, ("uuid", "pci_bus_id"), _missing,
           "1 while an expected GPU is missing.", default=False),
    Metric("gpuwarden_finding", GAUGE, ("check", "severity", *GPU), _findings,
           "1 while the finding is active. Each check has a series with its worst severity and the value 0 from the start, checks of active tests "
           "from the first test of the GPU on. A finding in shadow has the severity shadow, and no series with 0. "
           "Checks of the node have empty GPU labels; all links of a GPU share one series.", default=False),
    Metric("gpuwarden_finding_info", GAUGE, ("check", "severity", *GPU, "detail", "title", "advice"), _finding_texts,
           "Always 1, while the finding is active. The labels have its title and what to do, as text; detail is the number of the Xid, "
           f"the link or the mount. For {INFOS_MOST} findings at most, the worst, and of each check and GPU one before any second one."),
    Metric("gpuwarden_incidents", GAUGE, ("severity",), _incidents,
           "Number of faults, by severity. A finding and all findings that follow from it count as one.", default=False),
    Metric("gpuwarden_incident_info", GAUGE, ("check", "detail", *GPU, "consequences"), _incident_infos,
           "Always 1, while other findings follow from a finding. The labels are its check and, as consequences, theirs. Only for the 16 worst.", default=False),
    Metric("gpuwarden_xid_total", COUNTER, (*GPU, "xid"), _xids,
           "Xids since the ledger began or another board came into the slot: only the 32 most recent, and with publish.series = full those that are failures, with 0 from the start. Without "
           "that 0 a rate does not show the first one: use gpuwarden_xid_last_timestamp_seconds.", zeros=False),
    Metric("gpuwarden_xid_last_timestamp_seconds", GAUGE, (*GPU, "xid"), _last_xids,
           "Time of the last occurrence of this Xid, Unix time. Only for the 32 most recent."),
    Metric("gpuwarden_gpu_job_info", GAUGE, (*GPU, "job", "user", "job_name", *POD), _gpu_jobs,
           "Always 1, for each Slurm job that was given this GPU or has processes on it (user and job_name are empty unless publish.publish_jobs is set), and, "
           "with kubernetes.pod_labels, for each container that was given it or one of its instances (at most 8 of each).", omitted=("job", *POD)),
    Metric("gpuwarden_pod_labels", GAUGE, ("state",), pods.states,
           "1 for the result of the last request to kubelet for the pods with GPUs, 0 for the others: labelled; no_gpu_given (to any pod); unmatched (an id "
           "matches no GPU here); no_socket; no_answer (in time); failed. No series unless kubernetes.pod_labels is set.", default=False),
    Metric("gpuwarden_pod_devices", GAUGE, ("matched",), pods.devices,
           "Number of ids of GPUs and MIG instances that kubelet has given to pods, by whether a device here matches the id. gpuwarden doctor shows ids without a match. "
           "No series while there is no valid answer from kubelet.", default=False),
    Metric("gpuwarden_lemon", GAUGE, (*GPU, "what"), _lemons,
           "Number of the last 28 days with such an event, on the node (empty GPU labels) or on a board; only the 16 worst boards. "
           "Three or more make the finding lemon_node.", zeros=False),
    # --- ports
    Metric("gpuwarden_port_errors_total", COUNTER, ("device", "port", "counter"), ports.errors,
           "Error counters of InfiniBand, RoCE and EFA ports, as the device counts; InfiniBand counters stop at their maximum. Only for the first "
           "32 ports that are active or have counted an error.", default=False),
    Metric("gpuwarden_port_blind", GAUGE, ("device", "port", "counter"), ports.blind,
           "Always 1, while this counter of the port is at its maximum and no longer counts.", default=False),
    # --- collectors
    Metric("gpuwarden_collector_up", GAUGE, PER_COLLECTOR, _each_collector(_up),
           "1 if the last pass of this collector succeeded, 0 if it failed or timed out. No series if the source does not exist."),
    Metric("gpuwarden_collector_duration_seconds", GAUGE, PER_COLLECTOR, _each_collector(lambda c: c.duration),
           "Duration of the last pass.", default=False),
    Metric("gpuwarden_collector_last_success_timestamp_seconds", GAUGE, PER_COLLECTOR, _each_collector(_last_success),
           "Time of the last successful pass, Unix time.", default=False),
    Metric("gpuwarden_collector_timeouts_total", COUNTER, PER_COLLECTOR, _each_collector(lambda c: c.timeouts),
           "Passes that missed their deadline."),
    Metric("gpuwarden_collector_restarts_total", COUNTER, PER_COLLECTOR, _each_collector(_restarts),
           "Number of times that the collector's worker process was restarted."),
)  # fmt: skip

METRICS = (*_ROWS, *PROCESS, *(row for feature in parts("metrics").values() for row in feature.METRICS))
