"""The health of a node that clients of dstack's agent get."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.features.dstack.health_body import merged
from gpuwarden.features.dstack.node_health import PASSING, Level, NodeHealth, node_health
from gpuwarden.integrations.published import Marker, Published, Verdict

FAILED = Marker("failure", "gpuwarden: failure gpu=3 xid=79", "xid")
PERSON = Marker("person", "gpuwarden: operator mending")
LEVELS = (0, 10, 20)
NUMBERS = ("system", "error_code", "entity_group_id", "entity_id")
BEFORE = NodeHealth(Level.FAIL, FAILED.reason)


def published(state: str = "healthy", mode: str = "enforce", marker: Marker | None = None, **more: object) -> Published:
    return Published(Verdict(mode=mode, state=state, **more), marker)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "level"),
    [
        (published(), 0),
        (published("warning", reason="thermal_slowdown"), 10),
        (published("failure", marker=FAILED), 20),
        (published("healthy", marker=FAILED), 20),
        (published("unknown", marker=FAILED), 20),
        (published("healthy", marker=FAILED, stale="old"), 20),
        (Published(None, FAILED, "there is none"), 20),
        (published("failure", reason="gpu_missing", breaker=True), 10),
        (published("unknown"), 10),
        (published(stale="the verdict is old"), 10),
        (Published(None, None, "there is none"), 10),
        (published("healthy", marker=None), 0),
        (published(marker=PERSON), 20),
        (published("failure", mode="observe"), None),
        (published("failure", mode="observe", marker=FAILED), None),
        (published("healthy", mode="observe", marker=PERSON), 20),
        (published("failure", marker=FAILED, simulated=True), None),
    ],
)
def test_a_node_that_is_excluded_fails_and_what_is_not_acted_upon_warns(seen: Published, level: int | None) -> None:
    reported = node_health(seen, before=None, mode="enforce")
    assert (None if reported is None else reported.level) == level


def test_until_there_is_a_verdict_the_configured_mode_counts() -> None:
    assert node_health(Published(None, None, "none"), before=None, mode="observe") is None
    assert node_health(Published(None, FAILED, "none"), before=None, mode="observe") is None


@pytest.mark.parametrize(
    "seen",
    [
        published("unknown"), published(stale="old"), Published(None, None, "none"),
        published("healthy", excluded_by=("dstack:failure",)), Published(published().verdict, None, "", "no marker of ours"),
    ],
)  # fmt: skip
def test_a_reported_failure_ends_by_knowledge_only(seen: Published) -> None:
    assert node_health(seen, before=BEFORE, mode="enforce") == BEFORE
    assert seen.verdict is not None or node_health(seen, before=BEFORE, mode="observe") == BEFORE


def test_a_reported_failure_ends_when_the_exclusion_is_lifted() -> None:
    assert node_health(published(), before=BEFORE, mode="enforce") == PASSING
    assert node_health(published(excluded_by=("slurm:foreign",)), before=BEFORE, mode="enforce") == PASSING
    lifted_by_hand = node_health(published("failure", reason="gpu_missing"), before=BEFORE, mode="enforce")
    assert lifted_by_hand == NodeHealth(Level.WARN, "gpuwarden: failure gpu_missing")


def test_a_failure_that_the_breaker_holds_back_is_marked() -> None:
    reported = node_health(published("failure", reason="gpu_missing", breaker=True), before=None, mode="enforce")
    assert "not excluded: the exclusion budget is used up" in (reported or pytest.fail("none")).message


# --- merged with the shim's response


def incident(level: object = 10, **more: object) -> dict[str, object]:
    return {
        "system": 1, "health": level, "error_message": "theirs", "error_code": 3, "entity_group_id": 1, "entity_id": 0, **more,
    }  # fmt: skip


def theirs(level: object, *incidents: object) -> bytes:
    return json.dumps({"dcgm": {"overall_health": level, "incidents": list(incidents)}}).encode()


def sound(body: bytes) -> dict[str, object]:
    """Return the response parsed as dstack's server does; its own code checks it in the test of the contract."""
    dcgm = json.loads(body)["dcgm"]
    assert type(dcgm["overall_health"]) is int
    assert dcgm["overall_health"] in LEVELS
    for each in dcgm["incidents"]:
        assert all(type(each[key]) is int for key in NUMBERS)
        assert each["health"] in LEVELS
        assert isinstance(each["error_message"], str)
    health: dict[str, object] = dcgm
    return health


@pytest.mark.parametrize(
    "shim_body", [b'{"dcgm":null}\n', b"{}", theirs(0), theirs(20, incident(20)), theirs(10, incident())]
)
def test_without_a_finding_the_shims_response_stays_as_it_is(shim_body: bytes) -> None:
    assert merged(shim_body, PASSING) is None


@pytest.mark.parametrize(
    ("shim_body", "own", "level", "first"),
    [
        (b'{"dcgm":null}', Level.FAIL, 20, "ours"),
        (b"{}", Level.WARN, 10, "ours"),
        (None, Level.WARN, 10, "ours"),
        (theirs(0), Level.FAIL, 20, "ours"),
        (theirs(20, incident(20)), Level.WARN, 20, "theirs"),
        (theirs(20, incident(20)), Level.FAIL, 20, "ours"),
        (theirs(10, incident(10)), Level.FAIL, 20, "ours"),
    ],
)
def test_the_worse_level_counts_and_is_listed_first(
    shim_body: bytes | None, own: Level, level: int, first: str
) -> None:
    health = sound(merged(shim_body, NodeHealth(own, "ours")) or pytest.fail("none"))
    incidents: list[dict[str, object]] = health["incidents"]  # type: ignore[assignment]
    assert health["overall_health"] == level
    assert incidents[0]["error_message"] == first
    assert "ours" in [each["error_message"] for each in incidents]


def test_half_a_character_does_not_go_out() -> None:
    body = merged(theirs(10, incident(error_message="\ud800 x \u00e9")), NodeHealth(Level.FAIL, "\udfff"))
    assert [each["error_message"] for each in json.loads(body or b"")["dcgm"]["incidents"]] == ["?", "? x \u00e9"]


@pytest.mark.parametrize(
    ("shim_body", "level"),
    [
        (theirs(15), 10), (theirs("20"), 10), (theirs(True), 10), (b'{"dcgm":{"overall_health":20,"incidents":null}}', 20),
        (b'{"dcgm":{"incidents":[]}}', 10), (b'{"dcgm":{"overall_health":10}}', 10), (theirs(0, incident(99)), 10), (b'{"dcgm":{"incidents":[{"health":20}]}}', 20),
        (theirs(20, {"health": 20}, "no incident", 7), 20), (b'{"dcgm":[]}', 0), (b"[]", 0), (b"not json", 0), (b"", 0),
        (b'{"dcgm":null,"more":NaN}', None), (b'{"dcgm":{"overall_health":NaN,"incidents":[]},"x":NaN}', 10),
    ],
)  # fmt: skip
def test_no_answer_goes_out_that_dstack_would_take_for_an_unreachable_host(shim_body: bytes, level: int | None) -> None:
    body = merged(shim_body, PASSING)
    assert (None if body is None else sound(body)["overall_health"]) == level


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(LEVELS),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from((*NUMBERS, "health", "x")), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries(
        {}, optional={"overall_health": json_values, "incidents": json_values | st.lists(json_values)}
    )
    | json_values,
    st.sampled_from(Level),
)
def test_the_response_is_valid_and_no_milder_than_gpuwardens_level_whatever_the_shim_sends(
    dcgm: object, level: Level
) -> None:
    body = merged(json.dumps({"dcgm": dcgm}).encode(), NodeHealth(level, "" if level is Level.PASS else "ours"))
    if body is None:
        assert level is Level.PASS
        if dcgm is not None:
            sound(json.dumps({"dcgm": dcgm}).encode())
    else:
        assert sound(body)["overall_health"] >= level  # type: ignore[operator]
