"""The boards by which a renamed node is recognized: read in batches, and without them there is still a report."""

from __future__ import annotations

import re
import time

import pytest

from gpuwarden.fleet.report.boards import boards_of
from gpuwarden.fleet.report.history import Node
from gpuwarden.prometheus.access import access
from support.prometheus_script import Answer, api_server, plain, series, vector

NOW = 1_800_000_000.0
NODES = [
    Node(
        names=(f"n{n}",),
        keys=(("", "gpuwarden", f"n{n}"),),
        known=((NOW, NOW + 60),),
        excluded={},
        findings={},
        labels={},
    )
    for n in range(60)
]


def board(query: str) -> Answer:
    match = re.search(r'instance="(\w+)"', query)
    assert match is not None
    return vector([series(NOW, 1, {"job": "gpuwarden", "instance": match[1], "uuid": f"GPU-{match[1]}"})])


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuwarden.fleet.report.boards.BATCH", 5)


@pytest.mark.slow
def test_each_batch_has_a_deadline_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them take longer than that, one after the other."""
    monkeypatch.setattr("gpuwarden.fleet.report.boards.BATCH", 1)
    deadline = 4.0

    def respond(_: str, query: str, __: dict[str, str]) -> Answer:
        time.sleep(1.1 * deadline / len(NODES))
        return board(query)

    with api_server(respond) as port:
        boards, notes = boards_of(access(f"http://127.0.0.1:{port}"), NODES, deadline)
    assert boards == {node.place: {f"GPU-{node.name}"} for node in NODES}
    assert notes == []


def test_boards_that_cannot_be_read_are_a_note_of_the_report() -> None:
    asked: list[str] = []

    def respond(_: str, query: str, __: dict[str, str]) -> Answer:
        asked.append(query)
        return board(query) if len(asked) <= 5 else plain(503, b"no")

    with api_server(respond) as port:
        boards, notes = boards_of(access(f"http://127.0.0.1:{port}"), NODES, 5.0)
    assert boards == {}
    assert len(notes) == 1
    assert notes[0].startswith("the GPUs of 60 nodes that came or went cannot be read")
    assert "answers 503" in notes[0]
    assert len(asked) <= 5 + 3  # nothing is read after a failure
