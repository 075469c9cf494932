"""`gpuwarden fleet`: the fleet as Prometheus knows it, and what comes of a Prometheus that answers badly."""

from __future__ import annotations

import json
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.fleet.queries import QUERIES
from prometheus_rules.model import Pace, Settings
from rules import write
from support.commands import COMMAND, environment, gpuwarden
from support.prometheus import Server, prometheus, wait
from support.prometheus_script import Answer, api_server, drip, endless, plain, series, vector
from support.quick import first_quick
from support.simulated_nodes import SimulatedNode, simulated_node
from support.terminal import on_a_terminal
from support.web_certificates import authority

Json = dict[str, Any]
NOW = 1_800_000_000.0
"""The clock of the server that answers from a script."""

# --- a real Prometheus and real daemons

PROMETHEUS = """\
global: {scrape_interval: 1s, scrape_timeout: 1s}
rule_files: [recording.rules.yml]
scrape_configs:
  - job_name: gpuwarden
    file_sd_configs: [{files: [targets.yml]}]
"""


def targets(folder: Path, *nodes: SimulatedNode) -> None:
    """Replace the targets at once, as service discovery does."""
    listed = [{"targets": [f"127.0.0.1:{node.port}" for node in nodes], "labels": {"rack": "7", "cluster": "east"}}]
    (folder / "targets.new").write_text(json.dumps(listed))
    (folder / "targets.new").replace(folder / "targets.yml")


def fleet(folder: Path, port: int, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return gpuwarden("fleet", "--prometheus", f"http://127.0.0.1:{port}", *words, temporary=folder)


def nodes_of(done: subprocess.CompletedProcess[str]) -> dict[str, Json]:
    assert done.stdout, done.stderr
    return {node["node"]: node for node in json.loads(done.stdout)["nodes"]}


@dataclass(frozen=True, slots=True)
class Site:
    """Three daemons that nobody scrapes yet, and a Prometheus with our recording rules at sixty times their pace."""

    folder: Path
    server: Server
    nodes: tuple[SimulatedNode, ...]

    def fleet(self, *words: str) -> subprocess.CompletedProcess[str]:
        return fleet(self.folder, self.server.port, *words)

    def known(self, description: str, condition: Callable[[dict[str, Json]], bool], *words: str) -> dict[str, Json]:
        """The fleet, as soon as this is known of it."""
        last: list[dict[str, Json]] = []

        def holds() -> bool:
            done = self.fleet("--json", *words)
            last[:] = [nodes_of(done) if done.stdout else {}]
            return condition(last[0])

        try:
            wait(holds, description, self.server.log)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{json.dumps(last, indent=1)}") from error
        return last[0]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        write(tmp_path, Settings(pace=Pace(60)))
        (tmp_path / "prometheus.yml").write_text(PROMETHEUS)
        (tmp_path / "targets.yml").write_text("[]")
        server = stack.enter_context(prometheus(tmp_path / "prometheus.yml", tmp_path))
        nodes = tuple(stack.enter_context(simulated_node(name, tmp_path / name)) for name in ("n1", "n2", "n3"))
        yield Site(tmp_path, server, nodes)


@pytest.mark.slow
@pytest.mark.xdist_group("prometheus")
def test_failed_dead_and_vanished_nodes_are_listed_worst_first(site: Site) -> None:
    assert "has no series of gpuwarden" in site.fleet().stderr
    well, broken, dead = site.nodes
    targets(site.folder, *site.nodes)
    broken.order("inject", "--gpu", "3", "xid", "95")
    well.order("exclude", "--reason", "new fans")
    well.order("notify-termination", "--in", "3600")

    by_name = site.known(
        "all that was done to n1 and n2",
        lambda nodes: (
            nodes.keys() == {"n1", "n2", "n3"}
            and (nodes["n2"]["status"], nodes["n3"]["status"]) == ("failure", "healthy")
            and nodes["n1"]["excluded_by"] == ["operator"]
            and nodes["n1"]["notice"] is not None
        ),
    )
    assert list(by_name) == ["n2", "n3", "n1"]
    assert by_name["n1"]["gpus"] == {"expected": 8, "present": 8}
    assert by_name["n1"]["mode"] == "observe"
    assert 0 < by_name["n1"]["notice"]["seconds_left"] <= 3600
    assert [(finding["check"], finding["detail"], finding["gpu"]) for finding in by_name["n2"]["findings"]] == [
        ("xid", "95", "3")
    ]
    assert all(node["seconds_left"] is None for node in by_name.values())

    site.server.wait_query('gpuwarden:node:last_seen_timestamp_seconds{node="n3"}')
    dead.kill()
    silent = site.known("n3 to fall silent", lambda nodes: nodes["n3"]["status"] == "unreachable")["n3"]
    assert silent["reasons"] == ["does not answer"]
    assert 0 < silent["seconds_left"] <= 1200
    assert silent["cluster"] == "east"

    targets(site.folder, well, broken)
    gone = "its target is gone from service discovery"
    site.known("the target of n3 to be gone", lambda nodes: nodes["n3"]["reasons"] == [gone])
    overdue = ("--termination-deadline", "1s")
    site.known(
        "n3 to be overdue, behind what has failed",
        lambda nodes: nodes["n3"]["seconds_left"] < 0 and list(nodes) == ["n2", "n3", "n1"],
        *overdue,
    )
    shown_as_a_table(site)


def shown_as_a_table(site: Site) -> None:
    shown = site.fleet()
    assert shown.returncode == 2
    head, _, columns, first, second, third = shown.stdout.splitlines()
    assert head == "3 nodes: 1 failure, 1 unreachable, 1 healthy; 1 kept out of scheduling"
    assert columns.split()[:3] == ["NODE", "CLUSTER", "GPUS"]
    assert first.split()[:3] == ["n2", "east", "8/8"]
    assert "(failure)" in first  # busy or idle: the simulation goes by the clock
    assert "xid 95 on GPU 3" in first
    assert second.split()[:4] == ["n3", "east", "-", "unreachable"]
    assert "until its termination deadline" in second
    assert "an operator" in third
    assert "operator termination, 5" in third

    assert nodes_of(site.fleet("--json", "--node", "[mn]3")).keys() == {"n3"}
    assert site.fleet("--node", "n3").returncode == 3
    assert site.fleet("--node", "n1", "--cluster", "east").returncode == 0
    assert list(nodes_of(site.fleet("--json", "--status", "healthy,unreachable"))) == ["n3", "n1"]


# --- a server that answers from a script


class Script:
    """Answers each query of gpuwarden from `samples`, by its name in QUERIES, and anything from `instead` if that is given."""

    def __init__(self) -> None:
        self.samples: dict[str, list[Json]] = {}
        self.instead: Answer | None = None
        self.asked: list[dict[str, str]] = []

    def __call__(self, path: str, query: str, headers: dict[str, str]) -> Answer:
        self.asked.append({"path": path, "query": query, **headers})
        names = {text: name for name, text in QUERIES.items()}
        return self.instead or vector(self.samples.get(names[query], []))

    def node(self, name: str, instance: str, state: str = "healthy", **labels: str) -> None:
        """A node that responds and is healthy, unless `state` is another."""
        of = {"job": "gpuwarden", "instance": instance, **labels}
        self.add("nodes", 1, of | {"node": name})
        self.add("states", 1, of | {"__name__": "gpuwarden_node_health", "state": state})
        self.add("heartbeats", NOW - 7, of)

    def add(self, query: str, value: float | str, labels: dict[str, str]) -> None:
        self.samples.setdefault(query, []).append(series(NOW, value, labels))


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def port(script: Script) -> Iterator[int]:
    with api_server(script) as port:
        yield port


BAD_ANSWERS: dict[str, tuple[Answer, str]] = {
    "a login page": (plain(200, b"<html>log in</html>"), "is not Prometheus"),
    "no password": (plain(401, b"no"), "answers 401 Unauthorized; give --token-file or --basic-file"),
    "an error": (plain(500, b'{"status":"error","error":"out of \\u001b[2J memory"}'), r"answers 500: out of \x1b[2J memory"),
    "a redirect": (plain(302, b"", Location="http://169.254.169.254/"), "which is not followed"),
    "truncated": (Answer(200, (b'{"status":',), {"Content-Length": "5000"}), "closed the connection in mid-response"),
    "too large by its header": (Answer(200, endless(), {"Content-Length": str(1 << 30)}), "more than 64 MiB"),
    "too large without a header": (Answer(200, endless(), {}), "more than 64 MiB"),
    "nothing": (Answer(0, (), {}), "cannot query http"),
    "no HTTP": (Answer(0, (b"SSH-2.0-OpenSSH_9.2\r\n",), {}), "cannot query http"),
    "other JSON": (plain(200, b'{"status":"success","data":{"resultType":"scalar","result":[1,"1"]}}'), "is not Prometheus"),
    "odd samples": (plain(200, b'{"status":"success","data":{"resultType":"vector","result":[{"value":7}]}}'), "is not Prometheus"),
    "deep JSON": (plain(200, b"[" * 200_000), "is not Prometheus"),
    "empty": (vector([]), "has no series of gpuwarden"),
}  # fmt: skip


@pytest.mark.parametrize("name", first_quick(4, BAD_ANSWERS))
def test_a_bad_response_is_one_line_of_error_without_any_health(
    name: str, tmp_path: Path, script: Script, port: int
) -> None:
    script.instead, message = BAD_ANSWERS[name]
    done = fleet(tmp_path, port, "--json")
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("answer", [drip(b"HTTP/1.1 200 OK\r\n"), drip(b"")], ids=["a byte at a time", "silence"])
def test_a_server_that_never_ends_its_answer_is_given_up(
    answer: Answer, tmp_path: Path, script: Script, port: int
) -> None:
    script.instead = answer
    done = fleet(tmp_path, port, "--timeout", "1s")
    assert done.returncode == 3
    assert "has not answered within 1 s" in done.stderr


def test_nobody_who_listens_is_an_unknown_fleet(tmp_path: Path) -> None:
    done = fleet(tmp_path, 1)
    assert done.returncode == 3
    assert done.stderr.startswith("gpuwarden fleet: cannot query http://127.0.0.1:1: Connection refused;")


def test_odd_series_make_no_node_better_and_hide_none(tmp_path: Path, script: Script, port: int) -> None:
    """The series have values that are no numbers, duplicates, unknown labels and states, and a node without a name."""
    script.node("n1", "a:1", rack="7", state="healthy", replica="0")
    script.node("n1", "a:1", state="failure", replica="1")
    script.node("n2", "b:1", state="melted\x1b[2J")
    script.node("n3", "c:1")
    script.samples["heartbeats"].pop()
    script.add("heartbeats", "NaN", {"job": "gpuwarden", "instance": "c:1"})
    script.add("numbers", "+Inf", {"__name__": "gpuwarden_gpus_present", "job": "gpuwarden", "instance": "c:1"})
    script.node("", "d:1")
    script.add("nodes", 1, {})
    script.add("findings", 1, {"job": "gpuwarden", "instance": "d:1", "severity": "odd", "check": "\x1b[31m"})
    nodes = nodes_of(fleet(tmp_path, port, "--json"))
    assert {name: node["status"] for name, node in nodes.items()} == {
        "n1": "failure", "n2": "unknown", "n3": "unknown", "d:1": "healthy", "": "unknown",
    }  # fmt: skip
    assert nodes["n3"]["age_seconds"] is None
    assert "\x1b" not in fleet(tmp_path, port).stdout


def test_two_daemons_with_one_name_are_both_shown_and_marked(tmp_path: Path, script: Script, port: int) -> None:
    script.node("n1", "a:1")
    script.node("n1", "b:1", state="warning")
    done = fleet(tmp_path, port)
    assert done.returncode == 1
    assert [line.split()[:2] for line in done.stdout.splitlines()[3:]] == [["n1", "[b:1]"], ["n1", "[a:1]"]]
    assert "shares its name with a:1" in done.stdout


def test_a_silent_node_is_found_through_what_the_rules_recorded_unless_it_answers_elsewhere(
    tmp_path: Path, script: Script, port: int
) -> None:
    def recorded(name: str, instance: str, node: str, value: float) -> None:
        labels = {"__name__": f"gpuwarden:node:{name}", "job": "gpuwarden", "instance": instance, "node": node}
        script.add("recorded", value, {key: text for key, text in labels.items() if text})

    script.node("moved", "new:1")
    recorded("last_seen_timestamp_seconds", "old:1", "moved", NOW - 600)
    recorded("last_seen_timestamp_seconds", "b:1", "gone", NOW - 4000)
    recorded("last_seen_timestamp_seconds", "a:1", "gone", NOW - 5000)
    recorded("exclusion", "b:1", "", 2)
    script.add("down", 0, {"job": "gpuwarden", "instance": "c:1", "cluster": "east"})
    script.add("down", 0, {"job": "node_exporter", "instance": "d:1"})
    nodes = nodes_of(fleet(tmp_path, port, "--json"))
    assert list(nodes) == ["c:1", "gone", "moved"]
    assert (nodes["gone"]["age_seconds"], nodes["gone"]["seconds_left"]) == (4000, 1200 - 4000)
    assert nodes["gone"]["last_known_out"] == "planned"
    assert nodes["c:1"]["reasons"] == ["does not answer and has no recorded answer"]
    assert (nodes["moved"]["instance"], nodes["moved"]["status"]) == ("new:1", "healthy")


def test_a_silent_node_is_not_hidden_by_one_of_its_name_in_another_cluster(
    tmp_path: Path, script: Script, port: int
) -> None:
    script.node("n1", "west:1", cluster="west")
    script.node("n2", "east:2", cluster="east")
    labels = {"__name__": "gpuwarden:node:last_seen_timestamp_seconds", "job": "gpuwarden", "node": "n1"}
    script.add("recorded", NOW - 600, {**labels, "instance": "east:1", "cluster": "east"})
    script.add("down", 0, {"job": "gpuwarden", "instance": "east:1", "cluster": "east"})
    done = fleet(tmp_path, port, "--json")
    statuses = {(node["cluster"], node["node"]): node["status"] for node in json.loads(done.stdout)["nodes"]}
    assert statuses == {("west", "n1"): "healthy", ("east", "n2"): "healthy", ("east", "n1"): "unreachable"}


def test_a_daemon_that_answers_and_sees_no_gpu_any_more_is_unreachable_but_a_failure_stays_one(
    tmp_path: Path, script: Script, port: int
) -> None:
    script.node("n1", "a:1")
    script.node("n2", "b:1", state="failure")
    script.samples["heartbeats"] = []
    for instance in ("a:1", "b:1"):
        script.add("heartbeats", NOW - 300, {"job": "gpuwarden", "instance": instance})
    nodes = nodes_of(fleet(tmp_path, port, "--json"))
    assert {name: node["status"] for name, node in nodes.items()} == {"n1": "unreachable", "n2": "failure"}
    assert nodes["n1"]["seconds_left"] == 900


def test_work_is_shown_where_daemons_publish_it(tmp_path: Path, script: Script, port: int) -> None:
    for name, state, busy in (("n1", "warning", 0), ("n2", "failure", 1), ("n3", "healthy", 0)):
        script.node(name, name, state=state)
        script.add("numbers", busy, {"__name__": "gpuwarden_node_busy", "job": "gpuwarden", "instance": name})
    shown = fleet(tmp_path, port, "--all").stdout
    assert all(words in shown for words in ("busy (failure)", "idle (warning)", "  idle  "))


def test_the_summary_is_followed_by_the_nodes_that_are_not_healthy_and_in_service(
    tmp_path: Path, script: Script, port: int
) -> None:
    for name, state in (("n1", "healthy"), ("n2", "warning"), ("n3", "healthy"), ("n4", "healthy")):
        script.node(name, name, state=state)
    excluded = {"__name__": "gpuwarden_excluded", "job": "gpuwarden", "instance": "n3", "cause": "operator"}
    script.add("states", 1, excluded)
    lines = fleet(tmp_path, port).stdout.splitlines()
    assert lines[:2] == [
        "4 nodes: 1 warning, 3 healthy; 1 kept out of scheduling",
        "shown: 2; --all shows every node",
    ]
    assert [line.split()[0] for line in lines[4:]] == ["n2", "n3"]
    assert len(fleet(tmp_path, port, "--all").stdout.splitlines()) == 3 + 4
    assert len(nodes_of(fleet(tmp_path, port, "--json"))) == 4
    assert "n1" in fleet(tmp_path, port, "--node", "n1").stdout


def test_nodes_are_grouped_by_nvlink_domain_and_clique_0_is_one(tmp_path: Path, script: Script, port: int) -> None:
    uuid = "8f3c6a1e-5b1d-4d6e-9c55-0d2f7a0be111"
    for name, clique, state in (
        ("n1", "0", "failure"),
        ("n2", "1", "healthy"),
        ("n3", "0", "healthy"),
        ("n4", "", "warning"),
    ):
        script.node(name, name, state=state)
        labels = {"cluster_uuid": uuid, "clique": clique} if clique else {}
        script.add("machines", 1, {"job": "gpuwarden", "instance": name, **labels})
    script.add("down", 0, {"job": "gpuwarden", "instance": "n5"})
    script.add("domains", 1, {"job": "gpuwarden", "instance": "n5", "cluster_uuid": uuid, "clique": "0+1"})
    lines = fleet(tmp_path, port).stdout.splitlines()
    assert (
        lines[1] == "NVLink domain 8f3c6a1e.0: 3 nodes: 1 failure, 1 unreachable, 1 healthy; 0 kept out of scheduling"
    )
    assert "DOMAIN" in lines[4]
    assert [line.split()[:2] for line in lines[5:]] == [["n1", "8f3c6a1e.0"], ["n5", "8f3c6a1e.0"], ["n4", "-"]]
    nodes = nodes_of(fleet(tmp_path, port, "--json"))
    assert {name: node["domain"] for name, node in nodes.items()} == {
        "n1": "8f3c6a1e.0", "n5": "8f3c6a1e.0", "n4": "", "n2": "8f3c6a1e.1", "n3": "8f3c6a1e.0",
    }  # fmt: skip


def test_secrets_come_from_files_and_a_partial_response_is_marked(tmp_path: Path, script: Script, port: int) -> None:
    script.node("n1", "a:1")
    (tmp_path / "token").write_text("s3cret\n")
    (tmp_path / "basic").write_text("me:pass word\n")
    assert fleet(tmp_path, port, "--token-file", tmp_path / "token").returncode == 0
    assert {asked.get("authorization") for asked in script.asked} == {"Bearer s3cret"}
    assert len(script.asked) <= 9
    script.asked.clear()
    more = {"PROMETHEUS_BASIC_FILE": str(tmp_path / "basic"), "PROMETHEUS_URL": f"http://127.0.0.1:{port}/prom/"}
    assert gpuwarden("fleet", temporary=tmp_path, more=more).returncode == 0
    assert {(asked.get("authorization"), asked["path"]) for asked in script.asked} == {
        ("Basic bWU6cGFzcyB3b3Jk", "/prom/api/v1/query")
    }
    script.instead = vector([series(NOW, 1, {"node": "n1"})], warnings=["store s2 is away"])
    assert "Prometheus warns: store s2 is away" in fleet(tmp_path, port).stderr


@pytest.mark.slow
def test_a_certificate_is_believed_only_from_the_authority_that_was_given(tmp_path: Path, script: Script) -> None:
    script.node("n1", "a:1")
    (tmp_path / "token").write_text("s3cret\n")
    (tmp_path / "ca.crt").write_bytes(authority("servers").cert_pem.bytes())
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority("servers").issue_cert("localhost").configure_cert(tls)
    with api_server(script, tls) as port:
        words = ("fleet", "--prometheus", f"https://localhost:{port}", "--token-file", tmp_path / "token")
        refused = gpuwarden(*words, temporary=tmp_path)
        assert refused.returncode == 3
        assert "certificate verify failed" in refused.stderr
        assert script.asked == []
        assert gpuwarden(*words, "--ca-file", tmp_path / "ca.crt", temporary=tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("words", "message"),
    first_quick(
        4,
        [
            (
                ("--prometheus", "http://me:pw@h:9090"),
                "without user and password, which every user of the host could read",
            ),
            (("--prometheus", "ftp://h"), "expected an address such as"),
            (("--prometheus", "http://h:99999"), "Port out of range"),
            (("--token-file", "/nowhere"), "cannot read /nowhere: No such file or directory"),
            (("--token-file", "/dev/null"), "does not hold a bearer token"),
            (("--basic-file", "/dev/null"), "expected one line USER:PASSWORD"),
            (("--ca-file", "/dev/null", "--prometheus", "https://h"), "no certificates"),
            (("--token-file", "/a", "--basic-file", "/b"), "both given"),
            (("--status", "ill"), "expected some of healthy,warning"),
            (("--termination-deadline", "soon"), "expected a duration"),
            (("--html", "f"), "--until, --by and --html need --report"),
            (("--by", "rack"), "--until, --by and --html need --report"),
            (("--report", "--termination-deadline", "1h"), "--termination-deadline: not allowed with --report"),
            (("--drift", "--termination-deadline", "1h"), "--termination-deadline: not allowed with --drift"),
            (("--report", "--why"), "--why: not allowed with --report"),
            (("--report", "--drift"), "--drift: not allowed with --report"),
            (("--drift", "--status", "healthy"), "--status: not allowed with --drift"),
            (("--report", "--until", "soon"), "expected a date or a time"),
        ],
    ),
)
def test_bad_usage_exits_with_64_and_asks_nobody(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = gpuwarden("fleet", *words, temporary=tmp_path)
    assert (done.returncode, done.stdout) == (64, "")
    assert message in done.stderr


def test_an_unknown_cluster_is_reported_and_a_lost_node_belongs_to_any(
    tmp_path: Path, script: Script, port: int
) -> None:
    script.node("n1", "a:1", cluster="east")
    script.node("n2", "a:1", cluster="west", state="failure")
    script.add("down", 0, {"job": "gpuwarden", "instance": "c:1"})
    east = fleet(tmp_path, port, "--cluster", "east", "--json")
    assert (east.returncode, list(nodes_of(east))) == (3, ["c:1", "n1"])
    none = fleet(tmp_path, port, "--cluster", "north")
    assert none.returncode == 3
    assert "there are east, west" in none.stderr


def test_a_terminal_keeps_the_worst_nodes_and_why_they_are_bad(tmp_path: Path, script: Script, port: int) -> None:
    """Notes and the nodes below do not push the first lines off the screen. On 80 columns each reason is visible."""
    for n in range(20):
        script.node(f"gpu-{n:02}.east.example.com", f"gpu-{n:02}:9839", cluster="east", state="failure")
        of = {"job": "gpuwarden", "instance": f"gpu-{n:02}:9839", "cluster": "east"}
        script.add("findings", 1, of | {"check": "disk_full", "severity": "failure", "gpu": ""})
    columns, rows = 80, 24
    words = ("fleet", "--prometheus", f"http://127.0.0.1:{port}", "--watch", "100ms")
    with on_a_terminal(*words, temporary=tmp_path, columns=columns, rows=rows) as terminal:
        wait(lambda: terminal.printed().count("\x1b[H\x1b[2J") > 1, "the second screen")
        lines = terminal.printed().split("\x1b[H\x1b[2J")[1].split("\r\n")
    assert sum(max(1, -(-len(line) // columns)) for line in lines) <= rows
    assert lines[1].startswith("20 nodes: 20 failure")
    first = next(n for n, line in enumerate(lines) if line.startswith("gpu-00.east"))
    assert "disk_full" in lines[first + 1]
    assert any(line.startswith("… ") and line.endswith("more lines") for line in lines)
    assert lines[-2].endswith("disappears after minutes")


def test_watching_goes_on_over_a_bad_answer(tmp_path: Path, script: Script, port: int) -> None:
    script.node("n1", "a:1")
    words = ("fleet", "--prometheus", f"http://127.0.0.1:{port}", "--watch", "100ms", "--json")
    with subprocess.Popen(
        [*COMMAND, *words], env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        first = watching.stdout.readline()
        script.instead = plain(503, b"")
        bad = iter(watching.stderr.readline, "")
        assert any("answers 503" in line for line in bad)
        script.instead = None
        while watching.stdout.readline() != first:
            pass
        watching.kill()
