"""What Slurm's commands wrote on two releases of Debian, and what no command should ever write, read the same way."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden_collectors.slurm.errors import OddAnswer, Refused, SlurmError, UnknownNode, Unreachable, failure
from gpuwarden_collectors.slurm.facts import NodeFacts
from gpuwarden_collectors.slurm.parse import NODE_FORMAT, ROW_FORMAT, TEXTS_FORMAT, shown_node, sinfo_nodes, sinfo_rows
from gpuwarden_collectors.slurm.settings import parse_partitions

DATA = Path(__file__).parents[1] / "data/slurm"
RELEASES = ("debian-12-22.05.8", "debian-13-24.11.5")
OWN_REASON = "gpuwarden: failure gpu=3 xid=79"
ODD = "a \"b\" 'c' |d; e=f [g@h] ü\n   State=IDLE\nline"

CASES: dict[str, tuple[set[str], str]] = {
    "idle": (set(), ""),
    "with a comment and an extra": (set(), ""),
    "drained by gpuwarden": ({"drain"}, OWN_REASON),
    "drained with an odd reason": ({"drain"}, ODD),
    "drained with a reason of 5000 characters": ({"drain"}, ("long " * 1000).strip()),
    "fail": ({"fail"}, "failing"),
    "down": (set(), "gpuwarden: termination boot=1b4e28ba instance=i-1"),
    "draining": ({"drain"}, OWN_REASON),
    "drained by gpuwarden and to be rebooted": ({"drain", "reboot_requested"}, OWN_REASON),
    "registered with too few GPUs": (
        {"drain", "invalid_reg"},
        "gres/gpu count reported lower than configured (2 < 4)",
    ),
    "phantom": ({"not_responding"}, ""),
}
"""By case: flags and reason. A reason may outlive what it was given for."""


def recorded(release: str) -> Any:
    return json.loads((DATA / f"{release}.json").read_text())


@pytest.fixture(params=RELEASES)
def recording(request: pytest.FixtureRequest) -> Any:
    return recorded(request.param)


def from_sinfo(case: Any) -> NodeFacts:
    first, *others = sinfo_nodes(case["sinfo"])
    return replace(first, partitions=tuple(node.partitions[0] for node in (first, *others)))


@pytest.mark.parametrize("case", CASES)
def test_state_and_reason_are_read_whole_from_both_commands(recording: Any, case: str) -> None:
    flags, reason = CASES[case]
    seen, shown = from_sinfo(recording["nodes"][case]), shown_node(recording["nodes"][case]["scontrol"])
    assert seen.flags == flags
    assert seen.reason == reason
    # the two commands have different terms for a node that runs a job
    assert replace(shown, base=seen.base) == seen
    assert (seen.reason_at is not None) is bool(reason)


def test_releases_give_the_same_result() -> None:
    old, new = (recorded(release) for release in RELEASES)
    for case in CASES:
        a, b = from_sinfo(old["nodes"][case]), from_sinfo(new["nodes"][case])
        assert replace(b, base=a.base, reason_at=a.reason_at) == a, case


def test_maintenance_is_a_flag_beside_others(recording: Any) -> None:
    assert from_sinfo(recording["nodes"]["maintenance"]).flags == {"maintenance", "reserved"}


def test_partitions_gpus_comment_and_extra_are_read(recording: Any) -> None:
    node = from_sinfo(recording["nodes"]["with a comment and an extra"])
    assert (node.partitions, node.has_gpu) == (("gpu", "all", "secret"), True)
    assert (node.comment, node.extra) == ("ticket 12", "rack=4")
    assert not from_sinfo(recording["nodes"]["phantom"]).has_gpu


def test_a_node_that_there_is_not_is_nothing_to_sinfo(recording: Any) -> None:
    assert sinfo_nodes(recording["nodes"]["no such node"]["sinfo"]) == []


def test_a_partition_is_a_row_for_each_node_and_partition(recording: Any) -> None:
    rows = sinfo_rows(recording["rows"])
    assert sorted((row.name, row.partitions[0]) for row in rows) == [
        ("f1", "all"), *((f"n{n}", part) for n in (1, 2, 3) for part in ("all", "gpu")),
    ]  # fmt: skip
    assert {row.name for row in rows if "drain" in row.flags} == {"n1"}


def test_sizes_of_partitions_are_read(recording: Any) -> None:
    partitions = parse_partitions(recording["partitions"])
    assert {partition.name: partition.total_nodes for partition in partitions} == {"gpu": 3, "all": 4, "secret": 1}


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        ("munged is down", Unreachable),
        ("controller is down", Unreachable),
        ("no right", Refused),
        ("no such node", UnknownNode),
        ("state does not allow it", SlurmError),
    ],
)
def test_an_error_message_shows_whether_a_person_must_act(recording: Any, case: str, kind: type[SlurmError]) -> None:
    error = failure("cannot drain n1", "scontrol update", recording["complaints"][case])
    assert type(error) is kind
    assert str(error).startswith("cannot drain n1: scontrol update reports ")
    assert "\n" not in str(error)


def test_a_warning_before_the_answer_does_no_harm(recording: Any) -> None:
    text = "sinfo: warning: something is deprecated\n" + recording["nodes"]["drained by gpuwarden"]["sinfo"]
    assert [node.name for node in sinfo_nodes(text)] == ["n1"] * 3


@pytest.mark.parametrize("text", ["slurm_load_node error: Access/permission denied", "n1\x1fgpu\x1e", "\x1e"])
def test_an_answer_that_makes_no_sense_is_called_so(text: str) -> None:
    with pytest.raises(OddAnswer):
        sinfo_nodes(text)


@pytest.mark.parametrize("text", ["", "Node n9 not found", "NodeName=n1 State=?!"])
def test_a_node_that_is_not_shown_as_one_is_no_answer(text: str) -> None:
    with pytest.raises(OddAnswer):
        shown_node(text)


# A reason is the last field, so that it may hold whatever it likes but the mark of its end.
REASONS = st.text(st.characters(codec="utf-8", exclude_characters="\x1e\0"), min_size=1, max_size=200)


@settings(max_examples=200, deadline=None)
@given(reason=REASONS)
def test_no_reason_can_pretend_to_be_another_field(reason: str) -> None:
    fields = ["n1", "gpu", "idle+drain", "1700000000", "gpu:4", "(null)", "(null)", reason]
    (node,) = sinfo_nodes("\x1f".join(fields) + "\x1e\n")
    assert (node.name, node.state) == ("n1", "idle+drain")
    assert node.reason == ("" if reason in ("none", "(null)", "Unknown") else reason)


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=300))
def test_any_text_is_nodes_or_odd(text: str) -> None:
    for parse in (sinfo_nodes, sinfo_rows, shown_node):
        with suppress(OddAnswer):  # any other exception fails the test
            assert parse(text) is not None


def test_the_format_asks_for_fields_of_no_fixed_width() -> None:
    """A width cuts; without one Slurm takes 20."""
    assert all(":0" in field for field in NODE_FORMAT.split(","))


def test_no_format_asks_for_the_name_of_a_user() -> None:
    """A name would make sinfo look up the author of a reason, who may be in a directory that hangs."""
    assert not any("User" in text for text in (NODE_FORMAT, ROW_FORMAT, TEXTS_FORMAT))
