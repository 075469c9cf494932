"""A real daemon whose machine is about to end, and real processes on its GPUs: which are signalled, and what they acknowledge."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.cli.client import Daemon as Client
from gpuwarden.cli.parser import TRY_AGAIN, CommandError
from gpuwarden.config.model import ConfigError, load
from gpuwarden.config.sources import Sources
from gpuwarden.control.rate_limit import BURST, EVERY
from support import job_world
from support.daemons import FakeHost, RunningDaemon
from support.ranks import Rank, rank
from support.scrape import Scrape, parse_openmetrics
from support.whole_lines import whole_lines

GIB = 1 << 30
SAVING_RANK = Path(__file__).parents[1] / "support/saving_rank.py"


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    host = FakeHost(tmp_path, gpus=2)
    host.seclude()
    return host


@contextmanager
def acting(host: FakeHost, mode: str = "enforce") -> Iterator[RunningDaemon]:
    with host.daemon(more={"GPUWARDEN_MODE": mode}) as daemon:
        yield daemon


@contextmanager
def training(host: FakeHost, caught: str = "TERM", gpus: tuple[int, ...] = (0,), **variables: str) -> Iterator[Rank]:
    """Run a process that has these GPUs open."""
    with rank(caught, env={**os.environ, **variables}) as trainer:
        occupy(host, trainer.pid, gpus)
        yield trainer


def occupy(host: FakeHost, pid: int, gpus: tuple[int, ...] = (0,)) -> None:
    host.admit(pid)
    for gpu in gpus:
        host.fake.process(gpu, pid, GIB)


ENDS = ("notify-termination", "--reason", "spot", "--in")


def ends(host: FakeHost, within: str = "500s") -> str:
    return command(host, *ENDS, within)


def command(host: FakeHost, *words: str) -> str:
    """Its output; `status` ends with 2 where something has failed."""
    done = host.order(*words)
    assert done.returncode in (0, 1, 2), done.stderr
    return done.stdout


def jobs(daemon: RunningDaemon) -> dict[str, dict[str, Any]]:
    """Return the jobs of the evacuations in progress, else of the last one, by key."""
    return {job["job"]: job for departure in daemon.status()["jobs"]["departures"] for job in departure["jobs"]}


def wait_job(daemon: RunningDaemon, pid: int, **expected: object) -> dict[str, Any]:
    key = f"process/{pid}"

    def is_so() -> bool:
        job = jobs(daemon).get(key, {})
        return all(job.get(name, "nothing") == value for name, value in expected.items())

    daemon.wait(is_so, f"{key}: {expected}; {jobs(daemon)}")
    return jobs(daemon)[key]


def wait_passes(daemon: RunningDaemon, passes: int = 15) -> None:
    """Some more, in which whatever would be done is done."""
    before = daemon.heartbeat()["sequence"]
    daemon.wait(lambda: daemon.heartbeat()["sequence"] > before + passes, "some passes")


def events(daemon: RunningDaemon) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(daemon.get("/v1/events")[1])["events"]
    return rows


def kinds(daemon: RunningDaemon) -> list[str]:
    return [event["kind"] for event in events(daemon)]


def current_notice(host: FakeHost) -> str:
    return str(json.loads((host.run_dir / "notice.json").read_text())["id"])


# --- signalled


@pytest.mark.slow
def test_a_process_on_a_gpu_is_signalled_once_and_its_end_is_its_acknowledgement(host: FakeHost) -> None:
    with training(host) as trainer, acting(host) as daemon:
        daemon.wait_status("healthy")
        ends(host)
        assert trainer.received() == "TERM"
        job = wait_job(daemon, trainer.pid, result="sent")
        assert (job["way"], job["signal"], job["signalled"], job["acknowledged_by"]) == ("local", "TERM", 1, "")
        wait_passes(daemon)
        assert trainer.received_all() == []
        wait_job(daemon, trainer.pid, acknowledged_by="exit", saved=False)
        shown = command(host, "status")
        assert f"job process/{trainer.pid}: sent: SIGTERM to 1 rank here; is done (acknowledged by exit)" in shown
        daemon.wait(lambda: "saved" in kinds(daemon), "the answer to be on disk")
        steps = [kind for kind in kinds(daemon) if kind in ("noticed", "departing", "signalling", "signalled", "saved")]
        assert sorted(steps) == ["departing", "noticed", "saved", "signalled", "signalling"]


@pytest.mark.slow
def test_the_evacuation_begins_with_its_notice_and_the_exclusion_is_decided_after_it(host: FakeHost) -> None:
    host.configure(f'[breaker]\nuncounted = "allow"\n[file]\npath = "{host.folder}/out"\n')
    with training(host) as trainer, acting(host) as daemon:
        daemon.wait_status("healthy")
        ends(host)
        assert trainer.received() == "TERM"
        daemon.wait(lambda: {"excluded", "signalled"} <= set(kinds(daemon)), "both to be on disk")
        order = kinds(daemon)
        assert order[order.index("noticed") + 1] == "departing"
        assert order.index("departing") < order.index("intended")


@pytest.mark.slow
def test_on_a_gpu_that_is_cut_into_instances_each_process_is_signalled_once(host: FakeHost) -> None:
    host.fake.mig(0, 9, 0, "1g.10gb", 9_728).mig(0, 5, 0, "3g.40gb", 40_320)
    with rank() as first, rank() as second:
        for process, instance in ((first, (9, 0)), (second, (5, 0))):
            host.admit(process.pid)
            host.fake.process(0, process.pid, GIB, instance)
        with acting(host) as daemon:
            daemon.wait_status("healthy")
            ends(host)
            assert (first.received(), second.received()) == ("TERM", "TERM")
            for process in (first, second):
                wait_job(daemon, process.pid, result="sent", signalled=1)
            wait_passes(daemon)
            assert first.received_all() + second.received_all() == []


def test_the_metrics_count_the_signalled_jobs_and_their_latency(host: FakeHost) -> None:
    with training(host) as trainer, acting(host) as daemon:
        daemon.wait_status("healthy")
        before = Scrape(daemon.get("/metrics")[1])
        assert before.value("gpuwarden_jobs_signalled_total", outcome="sent") == 0
        assert (
            before.value("gpuwarden_notice_to_signal_seconds_count") is None
        )  # no source of notices, and no job signalled yet
        ends(host)
        wait_job(daemon, trainer.pid, result="sent")
        scrape = Scrape(daemon.get("/metrics")[1])
        assert scrape.value("gpuwarden_jobs_signalled_total", outcome="sent") == 1
        assert scrape.value("gpuwarden_jobs_acknowledged_total", answer="saved") == 0
        assert scrape.value("gpuwarden_notice_to_signal_seconds_count") == 1
        assert scrape.value("gpuwarden_notice_to_signal_seconds_bucket", le="+Inf") == 1
        seconds = scrape.value("gpuwarden_notice_to_signal_seconds_sum")
        assert seconds is not None
        assert 0 < seconds < 60
        families = {family.name: family for family in parse_openmetrics(openmetrics(daemon))}
        assert families["gpuwarden_notice_to_signal_seconds"].type == "histogram"


def openmetrics(daemon: RunningDaemon) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=60.0)
    try:
        connection.request("GET", "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        return connection.getresponse().read()
    finally:
        connection.close()


@pytest.mark.slow
def test_a_process_that_does_not_catch_the_signal_gets_none_and_that_is_shown(host: FakeHost) -> None:
    with training(host, "") as trainer, acting(host) as daemon:
        daemon.wait_status("healthy")
        ends(host)
        job = wait_job(daemon, trainer.pid, result="")
        assert "no rank of it here catches SIGTERM" in job["text"]
        assert f"job process/{trainer.pid}: not signalled: {job['text']}" in command(host, "status")
        wait_passes(daemon)
        assert trainer.process.poll() is None
        assert trainer.received_all() == []


@pytest.mark.slow
def test_a_process_gets_the_signal_that_it_asks_for(host: FakeHost) -> None:
    with training(host, "TERM,USR1", GPUWARDEN_SIGNAL="SIGUSR1") as trainer, acting(host) as daemon:
        daemon.wait_status("healthy")
        ends(host)
        assert trainer.received() == "USR1"
        assert wait_job(daemon, trainer.pid, result="sent")["signal"] == "USR1"


@pytest.mark.slow
def test_in_mode_observe_the_plan_is_shown_and_nobody_is_signalled_nor_named(host: FakeHost) -> None:
    with training(host, GPUWARDEN_JOB="secret-model") as trainer, acting(host, "observe") as daemon:
        daemon.wait_status("healthy")
        ends(host)
        daemon.wait(lambda: len(daemon.status()["jobs"]["plan"]) > 1, "the plan")
        assert f"process/{trainer.pid}: SIGTERM to 1 rank here" in daemon.status()["jobs"]["plan"]
        assert "jobs, if the mode were enforce:\n" in (shown := command(host, "status"))
        assert f"  process/{trainer.pid}: SIGTERM to 1 rank here\n" in shown
        wait_passes(daemon, 30)
        assert daemon.status()["jobs"]["departures"] == []
        assert b"secret-model" not in daemon.get("/v1/status")[1]
        assert trainer.received_all() == []
        assert not {"departing", "signalling"} & set(kinds(daemon))


# --- answers


@contextmanager
def saving(host: FakeHost, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A training with the library of the job side, which connects to the daemon of `host`."""
    process = job_world.start(
        SAVING_RANK, host.folder, run_dir=host.run_dir,
        more={"SLURM_PROCID": "0", "SLURMD_NODENAME": "node7", "POLL": "60", **variables},
    )  # fmt: skip
    try:
        occupy(host, process.pid)
        yield process
    finally:
        process.kill()
        process.wait()


def lived(host: FakeHost, event: str) -> list[dict[str, Any]]:
    records = map(json.loads, whole_lines(host.folder / "log.0").splitlines())
    return [record for record in records if record["what"] == event]


def test_a_training_saves_and_acknowledges_on_the_socket(host: FakeHost) -> None:
    with saving(host) as process, acting(host) as daemon:
        daemon.wait(lambda: lived(host, "begins"), "the training to begin")
        daemon.wait_status("healthy")
        ends(host)
        job = wait_job(daemon, process.pid, acknowledged_by="socket", saved=True)
        daemon.wait(lambda: lived(host, "saved"), "the training to know")
        [saved] = lived(host, "saved")
        assert (job["step"], saved["accepted"], saved["notice"]) == (saved["step"], True, current_notice(host))
        assert f"saved step {saved['step']} (acknowledged by socket)" in command(host, "status")


@pytest.mark.slow
def test_a_killed_daemon_continues_signals_nobody_again_and_reads_acknowledgements_left_meanwhile(
    host: FakeHost,
) -> None:
    folder = host.run_dir / "ack" / "llama"
    with training(host, GPUWARDEN_JOB="llama") as trainer:
        with acting(host) as daemon:
            daemon.wait_status("healthy")
            ends(host)
            assert trainer.received() == "TERM"
            daemon.wait(lambda: "signalled" in kinds(daemon), "it to be on disk")
            notice = current_notice(host)
            daemon.kill()
        (host.run_dir / "ack" / "of-nobody").mkdir()
        answer = {"notice": notice, "rank": 0, "saved": True, "step": 41}
        (folder / "0.json").write_text(json.dumps(answer))
        occupy_again(host, trainer)
        with acting(host) as daemon:
            job = wait_job(daemon, trainer.pid, acknowledged_by="file", saved=True, step=41)
            assert (job["result"], job["signalled"]) == ("sent", 1)
            daemon.wait(lambda: answered(daemon, "saved") == 1, "it to be counted")
            wait_passes(daemon)
            assert trainer.received_all() == []
            command(host, "notify-termination", "--cancel")
            daemon.wait(lambda: not list(folder.parent.iterdir()), "the folders to go with the notice")


def answered(daemon: RunningDaemon, answer: str) -> float | None:
    return Scrape(daemon.get("/metrics")[1]).value("gpuwarden_jobs_acknowledged_total", answer=answer)


def occupy_again(host: FakeHost, trainer: Rank) -> None:
    """A daemon's end clears the faults that the library was set to."""
    host.fake.process(0, trainer.pid, GIB)


@pytest.mark.slow
def test_once_the_notice_is_withdrawn_nobody_is_signalled_any_more(host: FakeHost) -> None:
    with training(host) as trainer, acting(host) as daemon:
        daemon.wait_status("healthy")
        ends(host)
        assert trainer.received() == "TERM"
        wait_job(daemon, trainer.pid, result="sent")
        command(host, "notify-termination", "--cancel")
        daemon.wait(lambda: "departed" in kinds(daemon), "it to be over")
        with training(host, gpus=(1,)) as late:
            wait_passes(daemon)
            assert late.received_all() == []
        assert trainer.received_all() == []
        [evacuation] = daemon.status()["jobs"]["departures"]
        assert evacuation["over"] is not None
        assert daemon.status()["jobs"]["plan"] == []
        assert "ended " in command(host, "status")


# --- the response to an announcement


def wait_announced(daemon: RunningDaemon, *words: str) -> None:
    """The announcement returns this, at once or when it is repeated: a busy host may not be scanned in time, and may not commit
    it in time.
    """

    def complete() -> bool:
        output = daemon.host.command(*ENDS, "120s", "--run-dir", daemon.host.run_dir).stdout
        return all(word in output for word in words)

    daemon.wait(complete, f"an announcement with {words}")


def test_the_announcement_of_an_end_returns_how_many_jobs_are_signalled_and_why_not(host: FakeHost) -> None:
    with training(host) as trainer, training(host, "", gpus=(1,)) as deaf, acting(host) as daemon:
        daemon.wait_status("healthy")
        assert ends(host, "2h").endswith("the heartbeat shows it 600 s before it\n")
        why = f"not signalled: process/{deaf.pid}: no rank of it here catches SIGTERM, which would kill it"
        wait_announced(daemon, "this machine ends in 120 s", "; 1 job is signalled to save; ", why)
        assert trainer.received() == "TERM"


def test_in_mode_observe_the_announcement_of_an_end_returns_what_would_be_done(host: FakeHost) -> None:
    with training(host) as trainer, acting(host, "observe") as daemon:
        daemon.wait_status("healthy")
        would = f"; process/{trainer.pid}: SIGTERM to 1 rank here"
        wait_announced(
            daemon, "; mode is observe: no job is signalled; in mode enforce: ", ": this machine ends in ", would
        )
        assert trainer.received_all() == []


@pytest.mark.slow
def test_a_flood_of_announcements_fills_no_ledger_and_holds_up_none_that_counts(host: FakeHost) -> None:
    with acting(host) as daemon:
        daemon.wait_status("healthy")
        client, begun = Client(host.run_dir, host.run_dir), time.monotonic()
        refused = []

        def allowed() -> float:
            """Return how many may be taken by now, those among them that halve the time that is left."""
            return BURST + (time.monotonic() - begun) / EVERY + 4

        for n in range(300):
            try:
                client.call("notify-termination", within=3_000.0 + 10.0 * n, reason="flood")
            except CommandError as error:
                if "not yet on disk" not in str(error):  # which is taken
                    refused.append(error)
        taken = 300 - len(refused)
        assert BURST <= taken <= allowed()
        assert {error.code for error in refused} == {TRY_AGAIN}
        assert "this one is refused; try again in" in str(refused[0])
        ends(host)
        assert daemon.heartbeat()["notice"]["reason"].endswith(": spot")
        wait_announced(daemon, "; there is no job here to signal")
        daemon.wait(
            lambda: taken < kinds(daemon).count("noticed") <= allowed(), "the ledger to have those that were taken"
        )


# --- a failing GPU


@pytest.mark.slow
def test_on_two_gpus_that_fail_at_once_each_job_is_signalled_once_and_nobody_else_is(tmp_path: Path) -> None:
    host = FakeHost(tmp_path, gpus=4)
    host.seclude()
    host.configure('[jobs]\nfailing_gpu = "signal"\n')
    with training(host, gpus=(0, 1)) as there, training(host, gpus=(2,)) as elsewhere, acting(host) as daemon:
        daemon.wait_status("healthy")
        wait_passes(daemon)
        host.fake.lost(0)
        host.fake.lost(1)
        host.xid(0, 95)
        host.xid(1, 95)
        assert there.received() == "TERM"
        daemon.wait(lambda: len(daemon.status()["jobs"]["departures"]) == 2, "both to be acted on")
        wait_passes(daemon)
        assert there.received_all() == []
        assert elsewhere.received_all() == []
        scrape = Scrape(daemon.get("/metrics")[1])
        assert scrape.value("gpuwarden_jobs_signalled_total", outcome="sent") == 1
        assert scrape.value("gpuwarden_notice_to_signal_seconds_count") is None  # nothing was announced


@pytest.mark.slow
def test_a_daemon_that_starts_on_a_failing_gpu_goes_on_with_its_jobs_and_signals_none_again(host: FakeHost) -> None:
    """Were it over for a moment, a rank that has not acknowledged would be signalled again 30 s after its signal."""
    host.configure('[jobs]\nfailing_gpu = "signal"\n')
    with training(host) as trainer:
        with acting(host) as daemon:
            daemon.wait_status("healthy")
            host.xid(0, 95)
            assert trainer.received() == "TERM"
            daemon.wait(lambda: "signalled" in kinds(daemon), "it to be on disk")
            assert daemon.stop() == 0
        host.fake.process(0, trainer.pid, GIB)
        with acting(host) as daemon:
            daemon.wait_status("failure")
            daemon.wait(lambda: daemon.status()["findings"][0]["confirmed"], "it to be found again")
            wait_passes(daemon)
            assert (kinds(daemon).count("departing"), kinds(daemon).count("departed")) == (1, 0)
            assert trainer.received_all() == []


@pytest.mark.slow
def test_while_the_breaker_keeps_the_node_in_nobody_is_signalled_for_a_failing_gpu(
    host: FakeHost, tmp_path: Path
) -> None:
    """A fault of the whole fleet at once may be none, with Slurm or without it."""
    host.configure(
        f'[jobs]\nfailing_gpu = "signal"\n[file]\npath = "{tmp_path}/out"\n[breaker]\nprometheus = "http://127.0.0.1:9"\n'
    )
    with training(host) as trainer, acting(host) as daemon:
        daemon.wait_status("healthy")
        host.xid(0, 95)
        daemon.wait_status("failure")
        daemon.wait(lambda: daemon.status()["actions"]["breaker"], "the breaker to defer the exclusion")
        wait_passes(daemon)
        assert "departing" not in kinds(daemon)
        assert trainer.received_all() == []


@pytest.mark.slow
def test_by_default_nobody_is_signalled_for_a_failing_gpu(host: FakeHost) -> None:
    with training(host) as trainer, acting(host) as daemon:
        daemon.wait_status("healthy")
        host.xid(0, 95)
        daemon.wait_status("failure")
        daemon.wait(
            lambda: "no job is signalled: jobs.failing_gpu is ignore" in command(host, "status"), "it to be shown"
        )
        wait_passes(daemon)
        assert trainer.received_all() == []


# --- what is in the way


@pytest.mark.slow
def test_a_socket_that_cannot_be_created_is_reported_and_keeps_nobody_from_being_signalled(host: FakeHost) -> None:
    (host.run_dir / "job.sock").mkdir(parents=True)
    with training(host) as trainer, acting(host) as daemon:
        daemon.wait_status("warning", "output_failed.notice")
        assert "job.sock exists and is not a socket; move it away" in command(host, "status")
        ends(host)
        assert trainer.received() == "TERM"
        assert daemon.stop() == 0


@pytest.mark.slow
def test_a_ledger_that_cannot_be_written_keeps_nobody_from_being_signalled(host: FakeHost) -> None:
    host.state_dir.write_text("no folder")
    with training(host) as trainer, acting(host) as daemon:
        daemon.wait(lambda: daemon.status()["gpus"], "the GPUs")
        announced = host.command(*ENDS, "120s", "--run-dir", host.run_dir)
        assert (announced.returncode, "not yet on disk" in announced.stderr) == (TRY_AGAIN, True)
        assert trainer.received() == "TERM"
        wait_job(daemon, trainer.pid, result="sent")
        wait_passes(daemon)
        assert trainer.received_all() == []


# --- configuration


def test_all_faults_of_the_configuration_are_reported_at_once(tmp_path: Path) -> None:
    file = tmp_path / "gpuwarden.toml"
    file.write_text(
        '[jobs]\nsignal = "KILL"\nrequeue = "yes"\nfinal_node_state = "reboot"\nfailing_gpu = "drain"\nsignals = "TERM"\n'
        '[jobs.rules.a]\nname = "x"\n[jobs.rules.b]\nsignal = "INT"\npartition = "p"\n'
    )
    with pytest.raises(ConfigError) as error:
        load(Sources(file=file, environment={}))
    for key in ("signal", "requeue", "final_node_state", "failing_gpu", "signals", "rules.a.signal", "rules.b.signal"):
        assert f"jobs.{key}:" in str(error.value)


def test_a_rule_for_every_job_is_none(tmp_path: Path) -> None:
    file = tmp_path / "gpuwarden.toml"
    file.write_text('[jobs.rules.all]\nsignal = "USR1"\n')
    with pytest.raises(ConfigError, match=r"jobs\.rules\.all: expected partition or name"):
        load(Sources(file=file, environment={}))
