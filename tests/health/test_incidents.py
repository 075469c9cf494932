"""One fault, one incident: what follows from what, what ends with its cause, and what stands for itself."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from gpuwarden.health.conditions import CONDITIONS, condition
from gpuwarden.health.incident_rules import RULES
from gpuwarden.health.model import Health, Severity
from gpuwarden.health.view import CheckRule, Rules
from gpuwarden_collectors.event_facts import GpuResetEvent, SxidEvent, XidEvent
from gpuwarden_collectors.facts import GpuAnswer, Placement
from support.hosts import SWITCHES, Host, slot

LOST = f"xid.79@gpu/{slot(3)}"


def complaint(host: Host, switch: int = 0, sxid: int = 20034) -> SxidEvent:
    at = SWITCHES[switch]
    return SxidEvent(
        at=host.now, slot=at, sxid=sxid, fatal=True, link=48, text=f"SXid {sxid}, Fatal, Link 48 LTSSM Fault Up"
    )


def of_switch(switch: int = 0, sxid: int = 20034) -> str:
    return f"sxid.{sxid}@switch/{SWITCHES[switch]}"


def incidents(host: Host) -> dict[str, list[str]]:
    assert host.last is not None
    return {
        str(incident.cause): [str(key) for key in incident.consequences] for incident in host.last.verdict.incidents
    }


def loses(host: Host, index: int = 3) -> XidEvent:
    del host.gpus[index], host.devices[index]
    return host.xid(index, 79)


@pytest.fixture
def host() -> Host:
    host = Host(8)
    host.run(60)
    return host


# --- a lost GPU


def test_a_lost_gpu_and_the_switches_that_complain_of_it_are_one_incident(host: Host) -> None:
    host.step(loses(host))
    host.run(12, every=4)
    host.step(complaint(host, 0), complaint(host, 1), complaint(host, 2))
    missing = f"gpu_missing@gpu/{slot(3)}"
    assert incidents(host) == {LOST: [missing, of_switch(0), of_switch(1), of_switch(2)]}
    by_id = {str(finding.key): finding for finding in host.findings}
    assert {key: str(finding.caused_by) for key, finding in by_id.items() if key != LOST} == dict.fromkeys(
        (missing, of_switch(0), of_switch(1), of_switch(2)), LOST
    )
    assert by_id[LOST].caused_by is None
    assert by_id[missing].severity is Severity.FAILURE
    assert host.last is not None
    assert "gpu_missing" in host.last.verdict.reasons


@pytest.mark.parametrize("first", ["gpu", "switch"])
def test_no_switch_stays_latched_once_the_gpu_was_replaced(host: Host, first: str) -> None:
    gone = host.gpus[3], host.devices[3]
    if first == "switch":
        host.step(complaint(host))
        assert host.health is Health.FAILURE
        host.run(5)
        host.step(loses(host))
    else:
        host.step(loses(host))
        host.run(5)
        host.step(complaint(host))
    assert list(incidents(host)) == [LOST]
    host.run(900, every=15)
    assert list(incidents(host)) == [LOST]
    host.gpus[3], host.devices[3] = replace(gone[0], uuid="GPU-new"), gone[1]
    host.run(30)
    assert host.health is Health.HEALTHY, host.findings
    by = [event.data["by"] for event in host.ledger if event.kind == "cleared" and str(event.key) == of_switch()]
    assert [str(text).partition("@")[0] for text in by] == ["its cause ended: gpu_missing"]  # which takes 10 s longer


def test_a_line_of_the_switch_after_the_repair_is_an_incident_of_its_own(host: Host) -> None:
    gone = host.gpus[3], host.devices[3]
    host.step(loses(host))
    host.step(complaint(host))
    host.run(300, every=15)
    host.gpus[3], host.devices[3] = replace(gone[0], uuid="GPU-new"), gone[1]
    host.run(120)
    host.step(complaint(host))
    assert incidents(host) == {of_switch(): []}
    assert host.health is Health.FAILURE
    host.run(3 * 3600, every=60)
    assert host.findings[0].latched


def test_a_line_that_comes_an_hour_after_the_loss_is_no_consequence(host: Host) -> None:
    host.step(loses(host))
    host.step(complaint(host))
    host.run(3600, every=15)
    host.step(complaint(host))
    assert incidents(host).keys() == {LOST, of_switch()}


def test_acknowledging_the_cause_ends_what_ends_with_it(host: Host) -> None:
    gone = host.gpus[3], host.devices[3]
    host.step(complaint(host))
    host.step(loses(host))
    host.run(60)
    host.gpus[3], host.devices[3] = gone
    host.run(200, every=15)
    host.acknowledge(LOST)
    host.run(30)
    assert host.health is Health.HEALTHY, host.findings


def test_restart_of_the_machine_ends_the_whole_incident(host: Host) -> None:
    gone = host.gpus[3], host.devices[3]
    host.step(complaint(host))
    host.step(loses(host))
    host.run(60)
    host.gpus[3], host.devices[3] = gone
    host.reboot()
    host.run(30)
    assert host.health is Health.HEALTHY, host.findings


def test_an_incident_is_the_same_after_a_restart_of_the_daemon(host: Host) -> None:
    host.step(complaint(host))
    host.step(loses(host))
    host.step(complaint(host, 1))
    before = incidents(host)
    host.restart_daemon()
    host.step()
    assert incidents(host) == before
    assert list(before) == [LOST]


# --- what must not be taken for a consequence


def test_switch_without_a_lost_gpu_is_its_own_incident_and_leads_its_other_errors_and_links(host: Host) -> None:
    host.step(complaint(host, 0, 20034))
    host.run(5)
    host.step(complaint(host, 0, 19084), complaint(host, 1))
    facts = host.gpus[2]
    host.gpus[2] = replace(facts, links=tuple(replace(link, active=link.link not in (4, 5)) for link in facts.links))
    host.run(90)
    links = [f"nvlink_down@link/{slot(2)}/{number}" for number in (4, 5)]
    assert incidents(host) == {of_switch(0): [*links, of_switch(0, 19084)], of_switch(1): []}


def test_links_of_one_gpu_that_go_down_together_are_one_incident_and_those_of_another_gpu_another(host: Host) -> None:
    for n in (2, 5):
        facts = host.gpus[n]
        host.gpus[n] = replace(facts, links=tuple(replace(link, active=link.link > 2) for link in facts.links))
    host.run(90)
    assert incidents(host) == {
        f"nvlink_down@link/{slot(n)}/0": [f"nvlink_down@link/{slot(n)}/{number}" for number in (1, 2)] for n in (2, 5)
    }


def test_a_contradicted_79_and_a_shadow_check_cause_nothing() -> None:
    host = Host(8)
    host.run(60)
    host.step(host.xid(3, 79))
    host.run(10)
    host.step(complaint(host))
    assert incidents(host).keys() == {LOST, of_switch()}

    host = Host(8, rules=Rules(checks={"xid": CheckRule(shadow=True), "gpu_missing": CheckRule(shadow=True)}))
    host.run(60)
    host.step(complaint(host))
    host.step(loses(host))
    assert incidents(host) == {of_switch(): []}


def test_a_warning_is_no_cause_of_a_failure(host: Host) -> None:
    host.step(host.xid(1, 63))
    host.change(1, recovery_action=1)
    host.run(30)
    assert incidents(host) == {f"gpu_recovery_action@gpu/{slot(1)}": [], f"xid.63@gpu/{slot(1)}": []}


# --- one GPU's memory


def test_four_xids_of_a_bad_row_and_the_counters_after_them_are_one_incident_until_the_reset(host: Host) -> None:
    host.step(*(host.xid(1, number) for number in (48, 171, 63)), replace(host.xid(1, 154), text=ASKS_FOR_RESET))
    host.change(1, ecc_uncorrected_volatile=2, remapped_rows_pending=1, recovery_action=4)
    host.run(30)
    at = f"@gpu/{slot(1)}"
    followed = (f"{code}{at}" for code in ("ecc_uncorrectable", "gpu_recovery_action", "row_remap_pending"))
    assert incidents(host) == {f"xid.48{at}": [*followed, *(f"xid.{n}{at}" for n in (154, 171, 63))]}
    host.change(1, ecc_uncorrected_volatile=0, remapped_rows_pending=0, recovery_action=0)
    for _ in range(12):  # they end one after the other
        assert len(incidents(host)) <= 1
        host.run(5)
    assert host.health is Health.HEALTHY, host.findings


ASKS_FOR_RESET = "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)"


def test_what_is_still_true_when_its_cause_is_over_is_an_incident_of_its_own(host: Host) -> None:
    host.step(host.xid(1, 48))
    host.change(1, ecc_uncorrected_volatile=2, remapped_rows_pending=1)
    host.run(300, every=15)
    at = f"@gpu/{slot(1)}"
    host.acknowledge(f"xid.48{at}")
    host.run(30)
    assert incidents(host) == {f"ecc_uncorrectable{at}": [], f"row_remap_pending{at}": []}
    assert host.health is Health.FAILURE


# --- the whole


def test_silenced_findings_belong_to_the_incident_of_their_root(host: Host) -> None:
    host.answer(4, GpuAnswer.RESET_REQUIRED)
    host.run(30)
    host.step(loses(host, 4))
    assert [finding.key.code for finding in host.last.verdict.silenced] == ["gpu_reset_required"]  # type: ignore[union-attr]
    lost = f"xid.79@gpu/{slot(4)}"
    assert incidents(host) == {lost: [f"gpu_missing@gpu/{slot(4)}", f"gpu_reset_required@gpu/{slot(4)}"]}


def test_no_rule_leads_back_to_its_cause() -> None:
    """`depends_on` counts as a rule. If two are alike, the earlier is the cause: a rule without time before it."""
    names = {rule.cause for rule in RULES} | {name for rule in RULES for name in rule.consequences}
    edges: dict[str, set[str]] = {name: set() for name in names | set(CONDITIONS)}
    for rule in RULES:
        for cause, name in product(_alike(rule.cause, names), rule.consequences):
            if cause != name:
                edges[cause].add(name)
            elif rule.cause == name:
                assert rule.before == 0.0
    for code, row in CONDITIONS.items():
        for cause in row.depends_on:
            edges[cause].add(code)
    for name, nearest in edges.items():
        ahead, seen = set(nearest), set[str]()
        while ahead:
            seen |= ahead
            ahead = {n for follower in ahead for n in edges[follower]} - seen
        assert name not in seen


def _alike(cause: str, names: set[str]) -> set[str]:
    return {name for name in names if name == cause or name.startswith(f"{cause}.")}


def test_every_code_of_a_rule_is_known() -> None:
    codes = {name.partition(".")[0] for rule in RULES for name in (rule.cause, *rule.consequences)}
    assert [code for code in codes if condition(code) is None] == []


@pytest.mark.parametrize("minutes", [1, 5, 15])
def test_a_gpu_that_is_back_makes_no_warning_of_a_switch_worse(host: Host, minutes: int) -> None:
    gone = host.gpus[3], host.devices[3]
    host.step(loses(host))
    host.step(complaint(host))
    host.run(60.0 * minutes, every=15)
    host.gpus[3], host.devices[3] = gone
    host.step(GpuResetEvent(at=host.now, slot=slot(3), ok=True))
    host.run(60)
    assert host.health is Health.HEALTHY, host.findings
    assert not [
        e for e in host.ledger if e.kind == "raised" and str(e.key) == of_switch() and e.data["severity"] == "failure"
    ]


# --- a cause is in the same NVLink fabric


def wired(host: Host, index: int, *ends: str) -> None:
    """The links of a GPU lead to these."""
    links = tuple(replace(link, remote=ends[link.link % len(ends)]) for link in host.gpus[index].links)
    host.gpus[index] = replace(host.gpus[index], links=links)


def complain(host: Host, cause: int, other: int) -> None:
    host.step(host.xid(cause, 149))
    host.step(host.xid(other, 145))


def test_a_fabric_fault_explains_nothing_on_a_gpu_of_another_board() -> None:
    host = Host(8)
    for n in range(8):
        wired(host, n, SWITCHES[0] if n < 4 else SWITCHES[2], SWITCHES[1] if n < 4 else SWITCHES[3])
    host.run(60)
    complain(host, 1, 3)
    complain(host, 1, 6)
    of = {cause: set(consequences) for cause, consequences in incidents(host).items()}
    assert of == {f"xid.149@gpu/{slot(1)}": {f"xid.145@gpu/{slot(3)}"}, f"xid.145@gpu/{slot(6)}": set()}


def test_a_gpu_that_is_lost_is_remembered_in_its_fabric() -> None:
    host = Host(8)
    for n in range(8):
        wired(host, n, SWITCHES[0] if n < 4 else SWITCHES[2])
    host.run(60)
    host.step(loses(host, 1))
    host.step(host.xid(6, 145))
    assert f"xid.145@gpu/{slot(6)}" in incidents(host)


def test_on_a_host_with_more_gpus_than_a_fabric_has_nothing_is_assumed() -> None:
    host = Host(48)
    host.run(60)
    complain(host, 17, 27)
    assert f"xid.145@gpu/{slot(27)}" in incidents(host)


def of_clique(host: Host, index: int, cluster: str, clique: int) -> None:
    """The GPU belongs to this NVLink domain of several nodes."""
    host.change(index, fabric_in_cluster=1, fabric_clique=clique)
    host.gpus[index] = replace(host.gpus[index], placement=Placement(cluster_uuid=cluster))


RACK, OTHER_RACK = "9c6f5af3-53bf-49b5-a436-b66766c413c3", "1f0e2d4c-0000-4000-8000-000000000001"


@pytest.mark.parametrize("clique", [0, 1])
@pytest.mark.parametrize("count", [4, 24])
def test_gpus_of_one_clique_are_in_one_fabric_however_many_there_are(clique: int, count: int) -> None:
    host = Host(count)
    for n in range(count):
        of_clique(host, n, RACK, clique)
    host.run(60)
    complain(host, 1, 3)
    assert incidents(host) == {f"xid.149@gpu/{slot(1)}": [f"xid.145@gpu/{slot(3)}"]}


@pytest.mark.parametrize("other", [(RACK, 1), (OTHER_RACK, 0)], ids=["another clique", "another cluster"])
def test_a_fabric_fault_explains_nothing_on_a_gpu_of_another_clique_or_cluster(other: tuple[str, int]) -> None:
    host = Host(4)
    for n in range(4):
        of_clique(host, n, *((RACK, 0) if n < 2 else other))
    host.run(60)
    complain(host, 1, 3)
    assert incidents(host) == {f"xid.149@gpu/{slot(1)}": [], f"xid.145@gpu/{slot(3)}": []}
