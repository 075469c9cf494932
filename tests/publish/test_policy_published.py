"""What enforcement does is shown everywhere: heartbeat, status, metrics, verdict file, command line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwarden.cli.status_text import status_text
from gpuwarden.health.model import Health, gpu
from gpuwarden.policy.model import Act, Flag, Intent, NodeState, Notice, Owner, Why
from gpuwarden.policy.situation import excluded
from gpuwarden.policy.state import Override, PolicyState
from gpuwarden.publish.files.verdict import verdict_text
from gpuwarden.publish.snapshot import Enforced, Snapshot, Wanted
from gpuwarden.publish.status import heartbeat, status
from support.scrape import scrape
from support.snapshots import UPTIME, at, finding, slot, snapshot

NOW = at(UPTIME)
FAILED = "gpuwarden: failure gpu=3 xid=79"
OWN_STATE = NodeState(
    at=NOW, owner=Owner.OURS, why=Why.FAILURE, reason=FAILED, since=1_800_000_500.0, state="IDLE+DRAIN"
)
FOREIGN = NodeState(at=NOW, owner=Owner.FOREIGN, reason="rack move\x1b[31m", state="DOWN")
FAILING = snapshot(health=Health.FAILURE, findings=[finding("xid", gpu(slot(3)), detail="79")])


def enforced(base: Snapshot, **more: object) -> Snapshot:
    return replace(base, enforced=Enforced(actuators=("slurm",), **more))  # type: ignore[arg-type]


def wanted(text: str) -> Wanted:
    intent = Intent(act=Act.EXCLUDE, actuator="slurm", why=Why.FAILURE, reason=FAILED, key="1", at=NOW)
    return Wanted(intent=intent, text=text)


def text_of(shown: Snapshot) -> str:
    return "\n".join(status_text(status(shown, NOW)))


def file_of(shown: Snapshot) -> dict[str, str]:
    return dict(line.split("=", 1) for line in verdict_text(shown, NOW).splitlines())


@pytest.mark.parametrize(("node_state", "owner"), [(OWN_STATE, "failure"), (FOREIGN, "foreign")])
def test_an_excluded_node_takes_no_work_whatever_the_owner(node_state: NodeState, owner: str) -> None:
    shown = enforced(snapshot(), excluded=(("slurm", owner),), node_states={"slurm": node_state})
    code, beat = heartbeat(shown, NOW)
    assert (code, beat["status"], beat["excluded_by"]) == (503, "healthy", [f"slurm:{owner}"])
    assert (file_of(shown)["excluded"], file_of(shown)["schedulable"]) == ("1", "0")
    page = scrape(shown)
    kind = "other" if owner == "foreign" else "gpuwarden"
    assert page.value("gpuwarden_excluded", actuator="slurm", owner=kind, cause=owner) == 1
    assert sum(page.values("gpuwarden_excluded")) == 1
    assert page.value("gpuwarden_schedulable") == 0
    text = text_of(shown)
    assert node_state.reason.partition("\x1b")[0] in text
    assert "\x1b" not in text


def test_every_series_of_enforcement_is_there_from_the_start() -> None:
    page = scrape(enforced(snapshot()))
    assert page.values("gpuwarden_excluded") == [0] * 5
    assert page.values("gpuwarden_intents_total") == [0] * 12
    assert (page.value("gpuwarden_intents_pending"), page.value("gpuwarden_breaker_open")) == (0, 0)


def test_an_open_breaker_is_shown_everywhere_and_the_heartbeat_is_still_failure() -> None:
    why = "2 of 8 nodes are excluded for failures (limit 2)"
    counts = {"exclude_retry": 4}
    shown = enforced(FAILING, pending=(wanted(f"the breaker is open: {why}"),), breaker=why, counts=counts)
    code, beat = heartbeat(shown, NOW)
    assert (code, beat["status"], beat["excluded_by"]) == (503, "failure", [])
    assert (file_of(shown)["breaker"], file_of(shown)["excluded"], file_of(shown)["state"]) == ("1", "0", "failure")
    page = scrape(shown)
    assert (page.value("gpuwarden_breaker_open"), page.value("gpuwarden_intents_pending")) == (1, 1)
    assert page.value("gpuwarden_intents_total", kind="exclude", outcome="retry") == 4
    assert why in text_of(shown)


def test_a_restoration_that_waits_for_the_scheduler_is_shown_without_the_reason_that_it_has_not() -> None:
    ordered = Intent(act=Act.RESTORE, actuator="slurm", why=Why.OPERATOR, reason="", key="1", at=NOW)
    shown = enforced(snapshot(), pending=(Wanted(intent=ordered, text="no answer"),))
    assert "slurm: restore is pending: no answer" in text_of(shown)


def test_what_mode_observe_would_do_is_shown_and_excludes_nobody() -> None:
    shown = enforced(FAILING, would=(wanted("mode is observe"),), counts={"exclude_observed": 1})
    assert heartbeat(shown, NOW)[1]["excluded_by"] == []
    assert file_of(shown)["excluded"] == "0"
    assert scrape(shown).value("gpuwarden_intents_total", kind="exclude", outcome="observed") == 1
    assert f"would exclude ({FAILED})" in text_of(shown)


def test_a_notice_is_published_with_its_source_reason_and_end() -> None:
    notice = Notice(
        source="operator",
        kind="termination",
        at=NOW,
        boot_id="b",
        reason="root: host maintenance",
        deadline=at(UPTIME + 120),
    )
    code, beat = heartbeat(enforced(snapshot(), notice=notice), NOW)
    assert (code, beat["schedulable"], beat["status"]) == (503, False, "healthy")
    assert (beat["notice"]["source"], beat["notice"]["kind"]) == ("operator", "termination")
    assert beat["notice"]["deadline"] > beat["notice"]["announced_at"]
    assert "host maintenance" in text_of(enforced(snapshot(), notice=replace(notice, deadline=None)))


def test_an_operators_exclusion_is_shown_with_author_and_reason_where_there_is_no_scheduler() -> None:
    text = text_of(
        enforced(snapshot(), excluded=(("", "operator"),), order="gpuwarden: operator by=alice replacing a fan")
    )
    assert "excluded by an operator (gpuwarden: operator by=alice replacing a fan)" in text


def test_what_blocks_an_action_is_shown() -> None:
    away = NodeState(at=NOW, reachable=False, error="slurmctld does not answer")
    text = text_of(
        enforced(FAILING, node_states={"slurm": away}, blocked={"slurm": "reboot"}, person=("xid.79@gpu/0000:51:00.0",))
    )
    for expected in (
        "slurmctld does not answer",
        "no action: reboot",
        "an operator runs `gpuwarden restore` after a repair, because of ",
        "xid.79@gpu/0000:51:00.0",
    ):
        assert expected in text


def test_a_maintenance_reservation_is_an_exclusion_by_another_party_and_has_a_series_while_it_lasts() -> None:
    state = NodeState(at=NOW, flags=frozenset({Flag.MAINTENANCE}), schedulable=False, state="idle+maintenance")
    reserved = tuple(excluded(PolicyState(), ("slurm",), {"slurm": state}, {"slurm": state}))
    assert reserved == (("slurm", "maintenance"),)
    shown = enforced(snapshot(), excluded=reserved, node_states={"slurm": state})
    assert "slurm: idle+maintenance, kept for maintenance" in text_of(shown)
    page = scrape(shown)
    assert page.value("gpuwarden_excluded", actuator="slurm", owner="other", cause="maintenance") == 1
    assert page.value("gpuwarden_schedulable") == 0
    assert heartbeat(shown, NOW)[1]["excluded_by"] == ["slurm:maintenance"]


def test_a_failure_that_an_operator_overrode_is_shown_in_status_and_counted_until_it_ends() -> None:
    keys = [failure.key for failure in FAILING.verdict.findings]
    override = Override(keys=frozenset(keys), by="alice\x1b[31m", at=NOW)
    shown = enforced(FAILING, overridden=tuple(map(str, keys)), override=override)
    document = status(shown, NOW)["actions"]["overridden"]
    assert (document["findings"], document["by"]) == ([f"xid.79@gpu/{slot(3)}"], override.by)
    assert scrape(shown).value("gpuwarden_failures_overridden") == 1
    text = text_of(shown)
    assert f"OVERRIDDEN since {document['since'][:10]}" in text
    assert f"(gpuwarden restore --force): jobs start despite xid.79@gpu/{slot(3)}" in text
    assert "\x1b" not in text
    ended = enforced(snapshot(), override=override)
    assert status(ended, NOW)["actions"]["overridden"] is None
    assert scrape(ended).value("gpuwarden_failures_overridden") == 0
    assert "OVERRIDDEN" not in text_of(ended)
