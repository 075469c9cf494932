"""A real daemon whose ledger knows how jobs ended: what each of its pages and commands says of them, and to whom."""

from __future__ import annotations

import http.client
import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.features.why.fleet import headline, lines, nodes_of
from gpuwarden.features.why.model import Cause, Certainty
from gpuwarden.prometheus.client import Sample
from support.commands import answered, gpuwarden
from support.jobs_ended import job_ended
from support.prometheus import prometheus, wait
from support.prometheus_script import Answer, api_server, series, vector
from support.quick import first_quick
from support.simulated_nodes import SimulatedNode, simulated_node

FULL = 'series = "full"\n'
PAST = (
    job_ended("slurm/4710", Cause.NONE, since=900, touched=None),
    job_ended("slurm/4711", Cause.HARDWARE, since=300, touched=320),
    job_ended("pod/team-a/secret-0", Cause.NOT_SEEN, since=250, touched=None, user="", uid=None),
    job_ended("slurm/4712", Cause.NOT_SEEN, since=200, touched=None, user="", uid=None),
)


def page(node: SimulatedNode, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=60)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def why(node: SimulatedNode, *words: str) -> subprocess.CompletedProcess[str]:
    return answered("why", "--run-dir", node.folder / "run", *words, temporary=node.folder)


@pytest.fixture(scope="module", params=[False, True], ids=["names kept", "names published"])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedNode]:
    more = f"publish_jobs = {str(request.param).lower()}\n" + FULL
    with simulated_node("n1", tmp_path_factory.mktemp("why") / "n1", past=PAST, publish=more) as started:
        wait(lambda: "gpuwarden_job_ended_info{" in page(started, "/metrics"), "the jobs of the ledger")
        yield started


def published(node: SimulatedNode) -> bool:
    return "publish_jobs = true" in (node.folder / "gpuwarden.toml").read_text()


@pytest.mark.slow
def test_the_command_shows_what_the_ledger_knows(node: SimulatedNode) -> None:
    done = why(node, "4711")
    assert done.returncode == 0, done.stderr
    head, cause, _, job, *rest = done.stdout.splitlines()
    assert head == "slurm/4711: What ended slurm/4711 of alice."
    assert cause == "cause: hardware, likely, xid.79"
    assert job == "job     slurm/4711 train-70b of alice (uid 1000) on n1"
    assert any("FAILED, exit code 1; known from Slurm's epilog" in line for line in rest)
    assert any("Xid 79: GPU has fallen off the bus, process 77" in line for line in rest)
    assert why(node, "4799").returncode == 3


def test_metrics_have_the_cause_and_no_names_unless_they_are_published(node: SimulatedNode) -> None:
    names = 'user="alice",job_name="train-70b"' if published(node) else 'user="",job_name=""'
    of = {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in page(node, "/metrics").splitlines()}
    labels = f'cause="hardware",certainty="likely",code="xid.79",pci_bus_id="0000:4e:00.0",{names}'
    assert of[f'gpuwarden_job_ended_info{{job="slurm/4711",{labels}}}'] == "1"
    assert sum(key.startswith("gpuwarden_job_ended_info{") for key in of) == len(PAST)
    end, begin = (
        float(of[f'gpuwarden_job_{moment}_timestamp_seconds{{job="slurm/4711"}}']) for moment in ("ended", "cause")
    )
    assert 19 < end - begin < 21
    assert 'gpuwarden_job_cause_timestamp_seconds{job="slurm/4710"}' not in of, "it ended well"
    assert of['gpuwarden_jobs_ended_total{cause="hardware"}'] == "0", "of this daemon's time"


def test_open_pages_have_neither_users_nor_names_unless_they_are_published(node: SimulatedNode) -> None:
    events = [event for event in json.loads(page(node, "/v1/events?since=0"))["events"] if event["kind"] == "job_ended"]
    assert [event["data"]["cause"] for event in events] == ["none", "hardware", "not_seen", "not_seen"]
    text = page(node, "/v1/status") + page(node, "/v1/events?since=0") + page(node, "/metrics") + page(node, "/")
    assert [name in text for name in ("alice", "train-70b", "team-a", "secret-0")] == [published(node)] * 4
    operator = gpuwarden("events", "--json", "--since", "1d", "--run-dir", node.folder / "run", temporary=node.folder)
    assert "alice" in operator.stdout, "who may use the control socket sees all"


@pytest.mark.slow
def test_status_names_the_last_jobs_that_ended_with_a_cause(node: SimulatedNode) -> None:
    status: dict[str, Any] = json.loads(page(node, "/v1/status"))
    assert status["why"]["running"] == []
    first, pod, last = [(job["job"], job["cause"], job["code"]) for job in status["why"]["ended"]]
    assert (first, last) == (("slurm/4711", "hardware", "xid.79"), ("slurm/4712", "not_seen", ""))
    assert (pod[0] == "pod/team-a/secret-0", pod[0].startswith("pod/")) == (published(node), True)
    text = answered("status", "--run-dir", node.folder / "run", temporary=node.folder).stdout
    assert "gpuwarden why JOB" in text
    assert any("slurm/4711 ended" in line and "hardware, xid.79, likely" in line for line in text.splitlines())


# --- all nodes of a job, from Prometheus

PROMETHEUS = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: gpuwarden
    honor_labels: {honor}
    static_configs: [{{targets: [{targets}], labels: {{cluster: east}}}}]
"""


@pytest.mark.xdist_group("prometheus")
@pytest.mark.parametrize("honor", first_quick(1, ["false", "true"]))
def test_of_all_nodes_of_a_job_the_one_where_its_end_began_is_first(tmp_path: Path, honor: str) -> None:
    past = {
        "n1": job_ended(cause=Cause.OTHER_NODE, since=290, touched=None),
        "n2": job_ended(cause=Cause.HARDWARE, since=300, touched=330),
        "n3": job_ended("slurm/1", cause=Cause.HARDWARE, since=100),
        "n4": job_ended(cause=Cause.HOST, certainty=Certainty.POSSIBLE, since=300, touched=3000),
    }
    with ExitStack() as stack:
        nodes = {
            name: stack.enter_context(simulated_node(name, tmp_path / name, past=[event]))
            for name, event in past.items()
        }
        targets = ",".join(f"'127.0.0.1:{node.port}'" for node in nodes.values())
        (tmp_path / "prometheus.yml").write_text(PROMETHEUS.format(targets=targets, honor=honor))
        server = stack.enter_context(prometheus(tmp_path / "prometheus.yml", tmp_path))
        url = f"http://127.0.0.1:{server.port}"

        def asked(*words: str) -> subprocess.CompletedProcess[str]:
            return gpuwarden("why", "--prometheus", url, *words, temporary=tmp_path)

        def nodes_shown() -> list[str]:
            done = asked("4711", "--json")
            return [row["node"] for row in json.loads(done.stdout)["nodes"]] if done.returncode == 0 else []

        wait(lambda: nodes_shown() == ["n4", "n2", "n1"], "all nodes of the job", server.log)
        answer = json.loads(asked("4711", "--json").stdout)
        assert answer["first"] == "n2"
        assert [(row["cause"], row["state"], row["cluster"]) for row in answer["nodes"]] == [
            ("host", "ended", "east"),
            ("hardware", "ended", "east"),
            ("other_node", "ended", "east"),
        ]
        text = asked("slurm/4711").stdout.splitlines()
        assert text[0] == "slurm/4711: of 3 nodes n2 was first: hardware, likely, xid.79, 0000:4e:00.0"
        assert [line.split()[3:5] for line in text[3:]] == [["-2670s", "n4"], ["+0s", "n2"], ["+40s", "n1"]]
        assert asked("4711", "--cluster", "west").returncode == 3
        none = asked("99")
        assert (none.returncode, "no node that has slurm/99" in none.stderr) == (3, True)
        assert asked().returncode == 64
        assert asked("4711", "--state-dir", "/x").returncode == 64
        nodes["n2"].kill()
        gone = f'up{{instance="127.0.0.1:{nodes["n2"].port}"}} == 0'
        wait(lambda: server.query(gone), "n2 to be silent", server.log)
        assert nodes_shown() == ["n4", "n2", "n1"], "a node that has died since is not forgotten"


def sample(value: float = 1.0, *, at: float = 1000.0, **labels: str) -> Sample:
    return Sample({"cluster": "", **labels}, at, value)


def test_a_node_that_was_lost_with_the_job_is_named_and_one_that_runs_it_is_last() -> None:
    """The node that does not answer any more has no record: that it had the job and is gone is all that is known."""
    samples = {
        "nodes": [sample(instance="a", node="n1"), sample(instance="c", node="n3"), sample(instance="d", node="n4")],
        "named": [],
        "ended": [sample(instance="a", cause="other_node", certainty="likely", code="", pci_bus_id="")],
        "ended_now": [],
        "ended_until": [],
        "ended_at": [sample(900.0, instance="a")],
        "cause_at": [sample(890.0, instance="a")],
        "seen": [
            sample(850.0, instance="b", node="n2"),
            sample(999.0, instance="a", node="n1"),
            sample(998.0, instance="c", node="n3"),
        ],
        "had": [sample(instance=instance) for instance in ("a", "b", "c", "d", "e")],
        "has": [sample(instance="c")],
    }
    nodes = nodes_of(samples)
    assert [(node.node, node.state) for node in nodes] == [
        ("n2", "silent"), ("n1", "ended"), ("e", "silent"), ("n3", "running"), ("n4", "unrecorded"),
    ]  # fmt: skip
    assert (
        headline("slurm/7", nodes) == "slurm/7: of 5 nodes n2 was first: it had the job, and does not answer any more"
    )
    assert [line.split()[2:5] for line in list(lines("slurm/7", nodes))[3:5]] == [
        ["UTC", "+0s", "n2"],
        ["UTC", "+40s", "n1"],
    ]
    assert list(lines("slurm/7", nodes))[-1].endswith(
        "publishes no end of it, as for jobs that ended well within minutes"
    )
    running = [node for node in nodes if node.state == "running"]
    assert headline("slurm/7", running) == "slurm/7 is running on 1 node"


def test_a_lost_node_is_first_also_where_its_cluster_is_a_label_of_targets_which_rules_drop() -> None:
    samples = {
        **{key: [] for key in ("named", "ended_now", "ended_until")},
        "nodes": [sample(instance="a", node="n1", cluster="east")],
        "ended": [sample(instance="a", cluster="east", cause="other_node", certainty="likely", code="", pci_bus_id="")],
        "ended_at": [sample(900.0, instance="a", cluster="east")],
        "cause_at": [sample(890.0, instance="a", cluster="east")],
        "seen": [sample(850.0, instance="b", node="n2"), sample(999.0, instance="a", node="n1")],
        "had": [sample(instance=instance, cluster="east") for instance in ("a", "b")],
    }
    assert headline("slurm/7", nodes_of(samples)).startswith("slurm/7: of 2 nodes n2 was first")


@pytest.mark.parametrize(
    ("certainty", "reached", "first"), [("possible", 5_000.0, "n1"), ("possible", 880.0, "n2"), ("likely", 880.0, "n2")]
)
def test_a_node_that_went_away_after_the_job_was_over_does_not_precede_what_was_possible(
    certainty: str, reached: float, first: str
) -> None:
    samples = {
        **{key: [] for key in ("named", "ended_now", "ended_until", "cause_at")},
        "nodes": [sample(instance="a", node="n1")],
        "ended": [sample(instance="a", cause="job", certainty=certainty, code="FAILED", pci_bus_id="")],
        "ended_at": [sample(900.0, instance="a")],
        "seen": [sample(reached, instance="b", node="n2")],
        "had": [sample(instance=instance) for instance in ("a", "b")],
    }
    assert headline("slurm/7", nodes_of(samples)).startswith(f"slurm/7: of 2 nodes {first} was first")


def test_an_answer_in_part_is_said(tmp_path: Path) -> None:
    ended = {"instance": "a", "exported_job": "slurm/7", "cause": "hardware", "certainty": "likely"}

    def respond(_: str, query: str, __: dict[str, str]) -> Answer:
        return vector([series(1000.0, 1, ended)] if "gpuwarden_job_ended_info" in query else [], ["store s2 is away"])

    with api_server(respond) as port:
        done = gpuwarden("why", "7", "--prometheus", f"http://127.0.0.1:{port}", temporary=tmp_path)
    assert "was first: hardware" in done.stdout
    assert "Prometheus warns: store s2 is away" in done.stdout


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("backwards", [False, True])
def test_of_a_job_that_a_node_had_twice_the_newest_end_is_shown(silent: bool, backwards: bool) -> None:
    def end(cause: str, value: float = 1.0) -> Sample:
        return sample(value, instance="a", cause=cause, certainty="certain", code="", pci_bus_id="")

    ends = [end("hardware"), end("scheduler")]
    samples = {
        **{key: [] for key in ("nodes", "named", "seen", "ended_at", "cause_at", "had")},
        "ended": ends[::-1] if backwards else ends,
        "ended_now": [] if silent else [end("hardware")],
        "ended_until": [end("scheduler", 880.0), *([end("hardware", 940.0)] if silent else [])],
    }
    assert [node.cause for node in nodes_of(samples)] == ["hardware"]


def test_labels_of_prometheus_cannot_move_the_cursor() -> None:
    evil = "\x1b[2J\n"
    samples: dict[str, list[Sample]] = {
        **{key: [] for key in ("nodes", "named", "seen", "ended_now", "ended_until", "ended_at", "cause_at", "had")},
        "ended": [
            sample(instance=evil, cluster=cluster, cause=evil, certainty=evil, code=evil, pci_bus_id=evil)
            for cluster in (evil, "b")
        ],
    }
    assert all(line.isprintable() for line in lines("slurm/7", nodes_of(samples)))
