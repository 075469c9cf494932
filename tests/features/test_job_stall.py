"""Jobs that stall: found by their own past within five minutes, and never where something else explains it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.features.job_stall.past import LEARNED_AFTER, MINUTES_KEPT
from gpuwarden.features.job_stall.tracking import pasts_of, watches_of
from gpuwarden.health.model import EventKind, Health, Severity
from gpuwarden.health.view import CheckRule
from gpuwarden_collectors.base import PassOutcome
from gpuwarden_collectors.facts import GpuProcess, MigInstance
from gpuwarden_collectors.receivers.watched_facts import ContainersFacts, WatchedContainer
from gpuwarden_collectors.slurm.jobs_facts import Job, JobProcess
from support.job_hosts import HANGS, JOB, STALLED, TRAINS, UID, WITHOUT_GPM, JobHost
from support.quick import first_quick

LEARN = LEARNED_AFTER + 2.0


@pytest.fixture
def host() -> JobHost:
    """Return a healthy host whose job was watched for long enough to be judged."""
    host = JobHost()
    host.minutes(LEARN)
    assert host.health is Health.HEALTHY
    return host


# --- what is found


def test_a_stalled_job_is_found_within_five_minutes_of_its_fall_and_ends_when_it_goes_on(host: JobHost) -> None:
    trains = {name: getattr(host.gpus[0].readings, name) for name in HANGS}
    host.minutes(3.9, **HANGS)
    assert not host.stalled
    host.minutes(0.5)
    (finding,) = host.findings
    assert (finding.key, finding.severity, host.health) == (STALLED, Severity.WARNING, Health.WARNING)
    host.minutes(60)
    assert host.stalled, "a stall does not become the custom"
    host.minutes(1.2, **trains)
    assert host.health is Health.HEALTHY


def test_it_names_the_job_since_when_and_what_it_did_before(host: JobHost) -> None:
    fell = host.uptime
    host.minutes(4.5, **HANGS)
    assert host.findings[0].first_seen.boottime == pytest.approx(fell, abs=5)
    assert host.evidence == {
        "job": str(JOB), "uid": str(UID), "gpus": "0 1 2 3", "seconds": 265,
        "power_w": 118.0, "power_w_before": 640.0, "tensor_percent": 0.0, "tensor_percent_before": 48.0,
        "dram_percent": 0.1, "dram_percent_before": 30.0, "differs": "no GPU and no rank here",
    }  # fmt: skip


def test_it_names_the_gpu_and_the_rank_that_differ(host: JobHost) -> None:
    host.cores = {100: 1.0, 101: 1.0, 102: 0.0, 103: 1.0}
    host.all(**HANGS)
    host.change(1, power_usage_mw=71_000)
    host.minutes(4.5)
    assert host.evidence["differs"] == (
        "GPU 1 draws 71 W, the others 118; rank 2 (process 102) uses 0.0 cores, the others 1.0"
    )


def test_without_profiling_fields_power_and_nvlink_traffic_show_it() -> None:
    host = JobHost()
    host.nvlink_mib = 900.0
    host.minutes(LEARN, **WITHOUT_GPM)
    host.nvlink_mib = 1e-9
    host.minutes(4.5, **{**HANGS, **WITHOUT_GPM})
    assert host.stalled
    assert host.evidence["nvlink_mib_before"] == pytest.approx(900.0, abs=1)


def over_rdma(*, rdma_mib: float = 3200.0) -> JobHost:
    """A job over several nodes, on GPUs without NVLink and profiling fields."""
    host = JobHost()
    host.rdma_mib = rdma_mib
    host.minutes(LEARN, **WITHOUT_GPM)
    return host


SILENT = {**HANGS, **WITHOUT_GPM}


def test_without_profiling_fields_and_nvlink_power_and_rdma_traffic_show_it() -> None:
    host = over_rdma()
    host.rdma_mib = 0.2
    host.minutes(4.9, **SILENT)
    assert host.stalled
    assert host.evidence["rdma_mib_before"] == pytest.approx(800.0, abs=1)
    assert host.evidence["rdma_mib"] == pytest.approx(0.05, abs=0.06)
    host.rdma_mib = 3200.0
    host.minutes(1.5, **{**TRAINS, **WITHOUT_GPM})
    assert host.health is Health.HEALTHY


def test_it_is_found_over_rdma_after_a_restart_and_of_a_container() -> None:
    for host in (over_rdma(), in_a_container(JobHost(), 100, 101, 102, 103)):
        host.rdma_mib = 3200.0
        host.minutes(LEARN, **WITHOUT_GPM)
        host.restart_daemon()
        host.rdma_mib = 0.0
        host.minutes(5.2, **SILENT)
        assert [finding.key.code for finding in host.findings] == ["job_stalled"]


def still_sends(host: JobHost) -> None:
    """Let the job send: it saves over the network, or has not stopped as a whole."""
    host.rdma_mib = 400.0


def gets_a_job_beside_it(host: JobHost) -> None:
    """Add a job without GPUs, so that it is unknown which job sends."""
    assert host.job_facts is not None
    beside = Job(id=4712, uid=1002, started=host.uptime)
    host.job_facts = replace(host.job_facts, jobs=(*host.job_facts.jobs, beside))
    host.rdma_mib = 0.0


def loses_a_port(host: JobHost) -> None:
    """The counter of the other one goes on, or not."""
    for _ in range(40):
        gone = host.sent_bytes.pop("mlx5_1")
        host.minutes(1 / 5, **SILENT)
        host.sent_bytes["mlx5_1"] = gone
        host.minutes(1 / 5, **SILENT)


def has_ports_that_nobody_reads_any_more(host: JobHost) -> None:
    host.rdma_mib = 0.0
    host.minutes(1, **SILENT)
    host.rdma_mib = None


def has_counters_that_begin_again(host: JobHost) -> None:
    host.sent_bytes = dict.fromkeys(host.sent_bytes, 0)
    host.rdma_mib = 400.0


@pytest.mark.parametrize(
    "happens",
    first_quick(2, [
        still_sends, gets_a_job_beside_it, loses_a_port, has_ports_that_nobody_reads_any_more, has_counters_that_begin_again,
    ]),
    ids=lambda function: function.__name__,
)  # fmt: skip
def test_over_rdma_it_is_silent_about_a_job_that(happens: Callable[[JobHost], None]) -> None:
    host = over_rdma()
    happens(host)
    host.minutes(15, **SILENT)
    assert not host.raised


def test_over_rdma_it_is_silent_about_what_sent_little_before_and_what_keeps_its_power() -> None:
    host = over_rdma(rdma_mib=30.0)
    host.rdma_mib = 0.0
    host.minutes(15, **SILENT)
    assert not host.raised
    reads_its_data_once = over_rdma()
    reads_its_data_once.rdma_mib = 0.0
    reads_its_data_once.minutes(60, utilization_gpu=100, power_usage_mw=600_000)
    reads_its_data_once.minutes(15, power_usage_mw=250_000)
    assert not reads_its_data_once.raised


def test_what_goes_over_rdma_contradicts_nvlink() -> None:
    """The job saves over the network, behind a barrier."""
    host = JobHost()
    host.nvlink_mib, host.rdma_mib = 900.0, 3200.0
    host.minutes(LEARN, **WITHOUT_GPM)
    host.nvlink_mib, host.rdma_mib = 1e-9, 2000.0
    host.minutes(15, **SILENT)
    assert not host.raised
    host.rdma_mib = 0.0
    host.minutes(4.9, **SILENT)
    assert host.stalled


def test_before_hopper_the_fields_of_dcgm_show_it() -> None:
    host = JobHost()
    host.back()
    for n in host.gpus:
        host.field(n, graphics_active=0.99, tensor_active=0.48, dram_active=0.3)
    host.minutes(LEARN, **WITHOUT_GPM)
    for n in host.gpus:
        host.field(n, graphics_active=1.0, tensor_active=0.0, dram_active=0.001)
    host.minutes(4.5, **{**HANGS, **WITHOUT_GPM})
    assert host.stalled


def test_the_time_is_the_site_s_choice(host: JobHost) -> None:
    host.rules = replace(host.rules, stalled_after=60.0)
    host.minutes(1.2, **HANGS)
    assert host.stalled


def test_a_job_that_ends_is_stalled_no_longer_and_its_past_is_forgotten(host: JobHost) -> None:
    host.minutes(5, **HANGS)
    assert str(JOB) in pasts_of(host.state)
    host.job(ended=host.uptime)
    host.minutes(1.2)
    assert host.health is Health.HEALTHY
    assert pasts_of(host.state) == {}


def test_in_the_shadow_as_it_is_by_default_it_is_seen_and_nothing_follows() -> None:
    host = JobHost()
    host.rules = replace(host.rules, checks={})
    host.minutes(LEARN)
    host.minutes(5, **HANGS)
    (finding,) = host.findings
    assert (finding.key, finding.shadow, host.health) == (STALLED, True, Health.HEALTHY)
    assert host.last is not None
    assert host.last.verdict.reasons == ()


# --- containers


def in_a_container(host: JobHost, *pids: int) -> JobHost:
    """The processes of the job are those of a container, outside of Slurm."""
    owned = tuple(JobProcess(pid=pid, uid=UID, known_from="cgroup") for pid in pids)
    host.job_facts = None
    host.containers = ContainersFacts(containers=(WatchedContainer(id="ab12cd34ef56", processes=owned),))
    return host


def test_a_container_that_has_opted_in_is_found_too() -> None:
    host = in_a_container(JobHost(), 100, 101, 102, 103)
    host.minutes(LEARN)
    host.minutes(4.5, **HANGS)
    (finding,) = host.findings
    assert str(finding.key) == "job_stalled@job/container-ab12cd34ef56"
    assert finding.evidence["job"] == "container-ab12cd34ef56"
    host.containers = ContainersFacts()
    host.minutes(1.2)
    assert host.health is Health.HEALTHY
    assert pasts_of(host.state) == {}


@pytest.mark.parametrize(
    "pids", [(100,), (100, 101, 102), ()], ids=["one GPU", "two GPUs and one of another's", "not opted in"]
)
def test_a_container_needs_two_gpus_for_itself(pids: tuple[int, ...]) -> None:
    host = in_a_container(JobHost(), *pids)
    if len(pids) == 3:
        host.gpus[2] = replace(host.gpus[2], processes=(*host.gpus[2].processes, GpuProcess(pid=999)))
    host.minutes(LEARN)
    host.minutes(15, **HANGS)
    assert host.findings == ()


def test_jobs_that_are_no_longer_read_are_left_as_they_are(host: JobHost) -> None:
    """Slurm's jobs are away, containers are not."""
    host.minutes(5, **HANGS)
    host.job_facts, host.containers = None, ContainersFacts()
    host.minutes(10)
    assert host.stalled


# --- what is silent


def saves(host: JobHost) -> None:
    """Let one rank write with its GPU idle, while the others wait in a barrier."""
    host.all(**HANGS)
    host.change(0, utilization_gpu=0, power_usage_mw=92_000)
    host.minutes(12)


def copies_to_the_host(host: JobHost) -> None:
    host.minutes(12, **{**HANGS, "gpm_pcie_tx_mib": 9000.0})


def evaluates(host: JobHost) -> None:
    """Forward alone: less power, as many tensors; text is generated: few tensors, all of the memory."""
    host.minutes(15, power_usage_mw=380_000, gpm_tensor_active=22.0, gpm_dram_active=18.0)
    host.minutes(15, power_usage_mw=260_000, gpm_tensor_active=1.2, gpm_dram_active=45.0)


def is_profiled(host: JobHost) -> None:
    """The profiler has the counters: they are 0, blank or beyond 1, and it slows the job down."""
    zero = dict.fromkeys(WITHOUT_GPM, 0.0)
    host.minutes(10, **zero, utilization_gpu=100, power_usage_mw=300_000)
    host.minutes(10, **WITHOUT_GPM)
    host.minutes(10, gpm_graphics_active=130.0, gpm_tensor_active=130.0, gpm_dram_active=130.0)


def has_a_low_clock(host: JobHost) -> None:
    host.minutes(15, **{**HANGS, "clock_sm_mhz": 650})


def goes_on_one_gpu_alone(host: JobHost) -> None:
    host.all(**HANGS)
    host.change(2, gpm_tensor_active=40.0, power_usage_mw=600_000)
    host.minutes(15)


def is_divided(host: JobHost) -> None:
    instance = MigInstance(gpu_instance=1, compute_instance=0, profile="1g.10gb")
    host.gpus[1] = replace(host.gpus[1], mig=(instance,))
    host.change(1, mig_mode=1)
    host.minutes(15, **HANGS)


def loses_its_processes(host: JobHost) -> None:
    """Utilisation that is left over, of nobody."""
    for n in host.gpus:
        host.gpus[n] = replace(host.gpus[n], processes=())
    host.minutes(15, **HANGS)


def gets_a_neighbour(host: JobHost) -> None:
    assert host.job_facts is not None
    host.job_facts = replace(
        host.job_facts, jobs=(*host.job_facts.jobs, Job(id=4712, uid=1002, gpus=(3,), started=host.uptime))
    )
    host.minutes(15, **HANGS)


def gets_a_guest(host: JobHost) -> None:
    """A process of another user, which is of no job."""
    assert host.job_facts is not None
    host.gpus[3] = replace(host.gpus[3], processes=(*host.gpus[3].processes, GpuProcess(pid=999)))
    host.processes(*host.job_facts.processes, JobProcess(pid=999, uid=2002))
    host.minutes(15, **HANGS)


def opts_out(host: JobHost) -> None:
    host.job(watched=False)
    host.minutes(15, **HANGS)


def comes_and_goes(host: JobHost) -> None:
    """Long steps: three minutes of waiting, ten seconds of work."""
    trains = {name: getattr(host.gpus[0].readings, name) for name in HANGS}
    for _ in range(10):
        host.minutes(3, **HANGS)
        host.minutes(1 / 6, **trains)


def is_read_no_more(host: JobHost) -> None:
    """The driver gives no utilisation, then no power."""
    host.minutes(10, **{**HANGS, "utilization_gpu": None})
    host.minutes(10, **{**HANGS, "power_usage_mw": None})


@pytest.mark.parametrize(
    "happens",
    first_quick(4, [
        saves, copies_to_the_host, evaluates, is_profiled, has_a_low_clock, goes_on_one_gpu_alone, is_divided,
        loses_its_processes, gets_a_neighbour, gets_a_guest, opts_out, comes_and_goes, is_read_no_more,
    ]),
    ids=lambda function: function.__name__,
)  # fmt: skip
def test_it_is_silent_about_a_job_that(happens: Callable[[JobHost], None], host: JobHost) -> None:
    happens(host)
    assert not host.raised


@pytest.mark.slow
def test_it_is_silent_about_what_never_had_a_better_past() -> None:
    inefficient = JobHost()
    inefficient.minutes(90, **HANGS)
    assert not inefficient.raised
    for minutes in range(1, LEARNED_AFTER - 1):
        short = JobHost()
        short.minutes(minutes, every=15)
        short.minutes(60, every=15, **HANGS)
        assert not short.raised, "it stalled before its past was long enough"
    alone = JobHost(1)
    alone.minutes(LEARN)
    alone.minutes(15, **HANGS)
    assert not alone.raised, "one GPU waits for nobody"


@pytest.mark.slow
@pytest.mark.parametrize("gpm", [True, False])
def test_it_is_silent_about_a_server_in_the_night(*, gpm: bool) -> None:
    """Power, traffic and activity fall with the load; so does utilisation, mostly."""
    host = JobHost()
    if not gpm:
        host.all(**WITHOUT_GPM)
        host.nvlink_mib = 400.0
    host.minutes(30, power_usage_mw=560_000, utilization_gpu=99)
    host.nvlink_mib = 0.0 if gpm else 30.0
    night = {"power_usage_mw": 250_000, "gpm_tensor_active": 2.0, "gpm_dram_active": 9.0}
    host.minutes(60, **night if gpm else {"power_usage_mw": 250_000})
    host.minutes(60, utilization_gpu=40)
    assert not host.raised


def test_without_any_witness_beside_power_nothing_is_guessed() -> None:
    host = JobHost()
    host.minutes(LEARN, **WITHOUT_GPM)
    host.minutes(30, **{**HANGS, **WITHOUT_GPM})
    assert not host.raised


def test_a_barrier_that_took_long_once_is_waited_for_the_next_time() -> None:
    """Other nodes of a job wait while its first rank saves: the first time nobody can know."""
    host = JobHost()
    trains = {name: getattr(host.gpus[0].readings, name) for name in HANGS}
    for _ in range(4):
        host.minutes(LEARN, **trains)
        host.minutes(6, **HANGS)
    host.minutes(LEARN, **trains)
    assert [event.kind for event in host.ledger if event.key == STALLED] == [EventKind.RAISED, EventKind.CLEARED]
    host.minutes(9.5, **HANGS)
    assert host.stalled, "and not for ever"


def test_switched_off_it_costs_nothing() -> None:
    host = JobHost()
    host.rules = replace(host.rules, checks=dict.fromkeys(("job_stalled", "job_hung"), CheckRule(enabled=False)))
    host.minutes(LEARN)
    assert watches_of(host.state) == {}
    assert pasts_of(host.state) == {}


def test_a_job_that_waits_at_its_start_has_a_past_ten_minutes_later() -> None:
    host = JobHost()
    trains = {name: getattr(host.gpus[0].readings, name) for name in HANGS}
    host.minutes(4, **HANGS)
    host.minutes(LEARN + 1, **trains)
    host.minutes(4.5, **HANGS)
    assert host.stalled


# --- the past


@pytest.mark.slow
def test_the_past_is_learned_with_few_events_and_within_bounds(host: JobHost) -> None:
    for power in range(40):
        host.minutes(5, every=15, power_usage_mw=600_000 + 1000 * power)
    learned = [e for e in host.ledger if e.kind == EventKind.HOST_LEARNED and e.key and e.key.subject.kind == "job"]
    assert len(learned) == 1
    assert len(watches_of(host.state)[str(JOB)].minutes) == MINUTES_KEPT


def test_the_past_follows_a_job_that_changes(host: JobHost) -> None:
    host.minutes(25, power_usage_mw=400_000, gpm_tensor_active=20.0)
    assert pasts_of(host.state)[str(JOB)].power_w == 400.0


def test_other_gpus_are_another_past(host: JobHost) -> None:
    host.job(gpus=(0, 1))
    assert host.job_facts is not None
    host.processes(*host.job_facts.processes[:2])
    for n in (2, 3):
        host.gpus[n] = replace(host.gpus[n], processes=())
    host.minutes(LEARNED_AFTER - 2)
    host.minutes(15, **HANGS)
    assert not host.raised


def test_what_is_not_read_begins_the_wait_again(host: JobHost) -> None:
    host.minutes(3, **HANGS)
    host.uptime += 300
    host.minutes(3.5)
    assert not host.raised
    host.minutes(1)
    assert host.stalled


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    cuts=st.lists(st.tuples(st.integers(0, 30 * 12), st.sampled_from(["restart", "checkpoint"])), max_size=4),
    falls=st.booleans(),
)
def test_cut_anywhere_the_past_is_kept_and_only_the_wait_begins_again(
    cuts: list[tuple[int, str]], *, falls: bool
) -> None:
    """Half an hour after the past was learned, with a fall at its twentieth minute or none: passes of 5 s, cut by restarts."""
    host = JobHost()
    host.minutes(LEARN)
    past = dict(pasts_of(host.state))
    last_cut = 0
    for n in range(30 * 12):
        for _, how in (cut for cut in cuts if cut[0] == n):
            (host.restart_daemon if how == "restart" else host.checkpointed)()
            last_cut = n
        if falls and n == 20 * 12:
            host.all(**HANGS)
        host.uptime += 5
        host.step()
        waited = n - max(20 * 12, last_cut)
        assert not host.stalled or (falls and n >= 20 * 12)
        if falls and waited >= 4 * 12 + 3:
            assert host.stalled
    assert pasts_of(host.state) == past


def test_passes_without_an_answer_of_nvml_leave_a_finding_as_it_is(host: JobHost) -> None:
    host.minutes(5, **HANGS)
    assert host.stalled
    for _ in range(12):
        host.uptime += 5
        host.step(nvml=host.nvml(PassOutcome.FAILED))
    assert host.stalled


# --- what is out of shadow


def hung(host: JobHost) -> bool:
    return "job_hung" in [finding.key.code for finding in host.findings]


def test_a_job_with_the_whole_node_that_does_nothing_for_half_an_hour_warns_without_shadow() -> None:
    host = JobHost(shadow=True)
    host.minutes(LEARN)
    host.minutes(29, **HANGS)
    assert (hung(host), host.health) == (False, Health.HEALTHY)
    host.minutes(2)
    assert (hung(host), host.health) == (True, Health.WARNING)
    host.restart_daemon()
    host.minutes(5)
    assert hung(host)
    host.minutes(1.5, **TRAINS)
    assert host.health is Health.HEALTHY


@pytest.mark.parametrize(
    "values",
    first_quick(3, [
        {"gpm_dram_active": 3.0}, {"power_usage_mw": 170_000}, {"utilization_gpu": 97}, {"clock_sm_mhz": 650},
        {"gpm_pcie_rx_mib": 400.0}, {"gpm_graphics_active": 0.0}, {"gpm_dram_active": None},
    ]),
    ids=" ".join,
)  # fmt: skip
def test_what_one_gpu_still_does_is_no_such_job(values: dict[str, float | None]) -> None:
    host = JobHost(shadow=True)
    host.minutes(LEARN)
    host.all(**HANGS)
    host.change(2, **values)
    host.minutes(45)
    assert not hung(host)


def test_a_job_with_a_part_of_the_node_is_no_such_job() -> None:
    host = JobHost(shadow=True)
    job, processes = host.job_facts, () if host.job_facts is None else host.job_facts.processes
    assert job is not None
    host.gpus[3] = replace(host.gpus[3], processes=())
    host.job(gpus=(0, 1, 2))
    host.processes(*processes[:3])
    host.minutes(LEARN)
    host.minutes(45, **HANGS)
    assert not hung(host)
