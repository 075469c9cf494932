"""`gpuwarden fleet --report` on a real Prometheus that promtool filled: every figure within 1 % of what was planted."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from support.commands import gpuwarden
from support.planted import PlantedNode, planted, prometheus_of
from support.prometheus import Server

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("prometheus")]
Json = dict[str, Any]
HOURS = 96.0
WHOLE = (0.0, HOURS)
BAD_BOARD = "GPU-bad"
XID_95 = {"check": "xid", "detail": "95", "uuid": BAD_BOARD, "gpu": "3"}
OLD, NEW = {"model": "NVIDIA H100 80GB HBM3"}, {"model": "NVIDIA B200"}
R1, R2 = {"rack": "r1"}, {"rack": "<r2>"}
RESTARTS = [(20 + 10 * n, 20 + 10 * n + 20 / 3600) for n in range(5)]


def boards(name: str) -> list[str]:
    return [f"GPU-{name}-{number}" for number in range(8)]


def node(name: str, **more: Any) -> PlantedNode:
    fields = {"seen": WHOLE, "boards": boards(name), "machine": OLD, "target": R1, **more}
    return PlantedNode(instance=f"{name}:9839", node=name, **fields)


NODES = [
    node("quiet", silent=[(40, 46)]),
    node("repaired", failed=[(10, 14)], excluded={"failure": [(10 + 1 / 60, 14.5)]}, findings=[((10, 14), {"check": "xid", "detail": "79"})]),
    # it is silent while it is repaired, and fails before and after: one outage of five hours, of which three are known
    node("rebooted", failed=[(20, 21), (23, 25)], silent=[(21, 23)], findings=[((20, 21), {"check": "gpu_missing"}), ((23, 25), {"check": "gpu_missing"})]),
    # it comes back healthy: an outage of four hours, of which one is known
    node("replaced", failed=[(30, 31)], silent=[(31, 34)], findings=[((30, 31), {"check": "gpu_missing"})]),
    node("restarted", silent=RESTARTS, unschedulable=[(end, end + 15 / 3600) for _, end in RESTARTS]),
    node("old-name", seen=(0, 50), failed=[(5, 8)], findings=[((5, 8), {"check": "gpu_missing"})], boards=boards("moved")),
    node("new-name", seen=(52, HOURS), boards=[*boards("moved")[:7], "GPU-spare"]),
    node("serviced", excluded={"operator": [(60, 68)], "foreign": [(70, 75)]}, target=R2),
    node(
        "lemon", failed=[(50, 52), (70, 76), (94, HOURS)], machine=NEW, target=R2,
        findings=[((50, 52), XID_95), ((70, 76), XID_95), ((94, HOURS), XID_95), ((77, HOURS), {"check": "lemon_node", "severity": "warning"})],
    ),
    node("before", failed=[(0, 2)], gpus=4, findings=[((0, 2), {"check": "ecc_uncorrectable"}), ((0, 2), {"check": "xid", "detail": "48"})]),
    node("first-half", seen=(0, 48), boards=()),
    node("second-half", seen=(48.5, HOURS), boards=()),
]  # fmt: skip


@pytest.fixture(scope="module")
def start() -> float:
    return time.time() // 3600 * 3600 - (HOURS + 3) * 3600


@pytest.fixture(scope="module")
def server(start: float, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with planted(tmp_path_factory.mktemp("planted"), start, NODES) as server:
        yield server


@pytest.fixture(scope="module")
def words(start: float, server: Server) -> list[str]:
    until = datetime.fromtimestamp(start + HOURS * 3600, UTC).isoformat()
    return ["fleet", "--prometheus", f"http://127.0.0.1:{server.port}", "--report", f"{HOURS:.0f}h", "--until", until]


@pytest.fixture(scope="module")
def made(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> Json:
    done = gpuwarden(*words, "--json", temporary=tmp_path_factory.mktemp("made"))
    assert done.returncode == 0, done.stderr
    document: Json = json.loads(done.stdout)
    return document


def near(value: float) -> Any:
    return pytest.approx(value, rel=0.01)


SILENT = 6 + 2 + 3 + 2  # and two hours between two names; a restart is shorter than a step
KNOWN = 8 * HOURS + 96 + 48 + 47.5 - SILENT  # eight machines and the renamed one, and two of unknown boards
LOST = {
    "xid 79": 4.5, "gpu_missing": 3 + 1 + 3, "an operator (gpuwarden exclude)": 8, "another party": 5, "xid 95": 2 + 6 + 2,
}  # fmt: skip
DOWN = sum(LOST.values()) + 2


def test_the_figures_of_the_fleet_are_those_that_were_planted(made: Json) -> None:
    fleet = made["fleet"]
    assert (fleet["nodes"], fleet["gpus"]) == (12 - 1, 10 * 8 + 4)
    assert fleet["known_hours"] == near(KNOWN)
    assert fleet["unknown_hours"] == near(SILENT)
    assert fleet["available_hours"] == near(KNOWN - DOWN)
    assert 1 - fleet["availability"] == near(DOWN / KNOWN)
    assert 1 - fleet["availability_least"] == near((DOWN + SILENT) / (KNOWN + SILENT))
    assert fleet["failures"] == 7
    assert fleet["still_out"] == 1
    assert fleet["gone"] == 1
    assert fleet["mtbf_hours"] == near((KNOWN - DOWN) / 7)
    assert fleet["mtbf_low"] < fleet["mtbf_hours"] / 1.5 < 1.5 * fleet["mtbf_hours"] < fleet["mtbf_high"]
    assert fleet["gpu_hours_lost"] == near(8 * sum(LOST.values()) + 4 * 2)
    assert fleet["gpu_hours"] == near(8 * (KNOWN - HOURS) + 4 * HOURS)


def test_times_to_repair_go_over_a_silence_and_leave_out_what_the_period_cuts(made: Json) -> None:
    hours = [4.5, 5, 4, 3, 2, 6]
    repair = made["fleet"]["repair"]
    assert repair["count"] == len(hours)
    assert repair["mean"] == near(3600 * sum(hours) / len(hours))
    assert repair["median"] == near(3600 * (4 + 4.5) / 2)
    assert (repair["shortest"], repair["longest"]) == (near(2 * 3600), near(6 * 3600))


def test_each_cause_has_its_hours_and_the_root_of_two_findings_is_named(made: Json) -> None:
    causes = {row["cause"]: row for row in made["causes"]}
    for cause, hours in LOST.items():
        assert causes[cause]["gpu_hours_lost"] == near(8 * hours), cause
    assert {cause: row["outages"] for cause, row in causes.items() if row["outages"]} == {
        "xid 79": 1, "gpu_missing": 3, "xid 95": 3, "ecc_uncorrectable": 1,
    }  # fmt: skip
    repair = causes["xid 79"]["repair"]
    assert (repair["count"], repair["mean"], repair["median"]) == (1, None, None)
    assert repair["longest"] == near(4.5 * 3600)


def test_groups_boards_and_lemons(made: Json) -> None:
    groups = made["groups"]
    assert set(groups["model"]) == {OLD["model"], NEW["model"]}
    assert groups["model"][NEW["model"]]["gpu_hours_lost"] == near(8 * 10)
    assert groups["rack"]["<r2>"]["nodes"] == 2
    assert groups["rack"]["<r2>"]["gpu_hours_lost"] == near(8 * (10 + 13))
    assert groups["lemon"]["lemons"]["failures"] == 3
    (board,) = made["boards"]
    assert (board["uuid"], board["outages"], board["nodes"]) == (BAD_BOARD, 3, ["lemon"])


def test_who_excluded_what_and_how_long(made: Json) -> None:
    by = {row["by"]: row for row in made["exclusions_by"]}
    assert by["gpuwarden, for a failure"]["node_hours"] == near(4.5 - 1 / 60)
    assert by["an operator (gpuwarden exclude)"]["lasted"]["longest"] == near(8 * 3600)
    assert by["another party"]["node_hours"] == near(5)
    assert [(exclusion["node"], exclusion["actuators"]) for exclusion in made["exclusions"]] == [
        ("serviced", ["slurm"]), ("serviced", ["slurm"]), ("repaired", ["slurm"]),
    ]  # fmt: skip


def test_a_renamed_node_is_one_by_its_boards_and_without_boards_two_with_a_note(made: Json) -> None:
    assert made["renamed"] == [["new-name", "old-name"]]
    (note,) = made["notes"]
    assert "first-half, second-half" in note
    assert "shown as two" in note


def test_gaps_are_listed_as_unknown_and_restarts_are_not(made: Json, start: float) -> None:
    unknown = {gap["node"]: gap for gap in made["unknown"]}
    assert set(unknown) == {"quiet", "rebooted", "replaced", "new-name"}
    begin = datetime.fromisoformat(unknown["quiet"]["start"]).timestamp()
    assert abs(begin - start - 40 * 3600) <= made["step_seconds"]


def test_the_text_is_read_by_a_stranger(words: list[str], tmp_path: Path) -> None:
    done = gpuwarden(*words, temporary=tmp_path)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[1] == "11 nodes, 1 of them last seen before the end; 84 GPUs"
    named = {line[:16].strip(): line[16:] for line in lines[3:8]}
    assert named["failures"].startswith("7 (and 1 when a node was first seen); MTBF of a node 1")
    assert re.fullmatch(r"4h1[456]m \(median of 6; [12]h\d\dm to [56]h\d\dm\); 1 still out", named["time to repair"])
    assert "by rack" in lines
    assert "note: no GPU of first-half" in done.stdout


def test_the_page_stands_alone_and_no_value_is_markup(words: list[str], tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    assert gpuwarden(*words, "--html", file, temporary=tmp_path).returncode == 0
    text = file.read_text()
    assert "&lt;r2&gt;" in text
    assert "<r2>" not in text
    assert "<script" not in text
    assert "http" not in text.replace("http-equiv", "")
    plots = text.split("<svg ")[1:]
    assert len(plots) == 3
    for plot in plots:
        ET.fromstring(f"<svg {plot.partition('</svg>')[0]}</svg>")


def test_a_prometheus_that_refuses_large_queries_is_read_in_smaller_ones(
    start: float, tmp_path: Path, words: list[str], made: Json, server: Server
) -> None:
    """The same data, of a Prometheus that holds a fraction of the samples of one chunk at most."""
    with prometheus_of(server.log.parent / "data", tmp_path, "--query.max-samples=3000") as small:
        address = f"http://127.0.0.1:{small.port}"
        done = gpuwarden(*words[:2], address, *words[3:], "--json", temporary=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["fleet"] == made["fleet"]


def test_a_prometheus_that_allows_too_little_for_any_query_is_an_error_with_what_to_raise(
    tmp_path: Path, words: list[str], server: Server
) -> None:
    with prometheus_of(server.log.parent / "data", tmp_path, "--query.max-samples=15") as small:
        done = gpuwarden(*words[:2], f"http://127.0.0.1:{small.port}", *words[3:], temporary=tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    assert "too many samples" in done.stderr
    assert "raise its --query.max-samples" in done.stderr


def test_a_period_that_begins_before_the_data_and_ends_in_the_future_is_cut_and_says_so(
    words: list[str], tmp_path: Path
) -> None:
    done = gpuwarden(*words[:3], "--report", "8d", "--until", "2100-01-01", "--json", temporary=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert datetime.fromisoformat(document["end"]).timestamp() <= time.time()
    assert document["fleet"]["failures"] == 7
    assert document["fleet"]["gone"] == 11
    first, last = document["notes"][:2]
    assert first.startswith("Prometheus has no data before 20")
    assert last.startswith("Prometheus has no data after 20")


def test_nothing_in_the_period_is_an_error_with_what_to_do(words: list[str], tmp_path: Path) -> None:
    done = gpuwarden(*words[:-1], "2020-01-01", temporary=tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    assert "has no series of gpuwarden in this period" in done.stderr


def test_a_job_of_which_there_are_only_some_scrapes_makes_no_step_longer(start: float, tmp_path: Path) -> None:
    nodes = [node("quiet", seen=(0, 4)), replace(node("new", seen=(4 - 1 / 60, 4)), job="of-today")]
    until = datetime.fromtimestamp(start + 4 * 3600, UTC).isoformat()
    with planted(tmp_path, start, nodes) as server:
        words = (
            "fleet",
            "--prometheus",
            f"http://127.0.0.1:{server.port}",
            "--report",
            "3h",
            "--until",
            until,
            "--json",
        )
        done = gpuwarden(*words, temporary=tmp_path)
    assert json.loads(done.stdout)["step_seconds"] == 60
    assert json.loads(done.stdout)["fleet"]["nodes"] == 2
