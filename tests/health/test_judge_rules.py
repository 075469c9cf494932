"""What a site may configure for a check, and which finding is a consequence of which."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from gpuwarden.health.conditions import CONDITIONS
from gpuwarden.health.inhibition import causes, root_causes
from gpuwarden.health.model import Advice, EventKind, Health, Key, Latch, Severity, gpu
from gpuwarden.health.state import Track
from gpuwarden.health.view import CheckRule, Rules, XidRule
from gpuwarden_collectors.base import PassOutcome
from gpuwarden_collectors.facts import NvmlProblem, Stamp
from support.hosts import Host, slot


def host_with(gpus: int = 2, **checks: CheckRule) -> Host:
    return Host(gpus, rules=Rules(checks=checks))


def with_rules(host: Host, **checks: CheckRule) -> None:
    """Let the site have these rules from now on."""
    host.rules = Rules(checks=checks)


# --- enabled, shadow, rise, fall, severity


def test_a_check_that_is_switched_off_finds_nothing() -> None:
    host = host_with(row_remap_failed=CheckRule(enabled=False))
    host.change(1, remapped_rows_failure=1)
    host.run(60)
    assert (host.health, host.codes) == (Health.HEALTHY, [])


def test_disabling_a_check_ends_its_findings_and_is_recorded() -> None:
    host = Host(2)
    host.change(1, remapped_rows_failure=1, pcie_width=8)
    host.step(host.xid(1, 95))
    host.run(120)
    with_rules(host, row_remap_failed=CheckRule(enabled=False), xid=CheckRule(enabled=False))
    with_rules(host, **host.rules.checks, pcie_link_degraded=CheckRule(enabled=False))
    host.run(20)
    assert host.health is Health.HEALTHY
    ended = {e.key.code: (e.kind, e.data["by"]) for e in host.ledger if e.key and "by" in e.data}
    assert ended == {
        "row_remap_failed": (EventKind.CLEARED, "the site: checks.row_remap_failed.enabled is false"),
        "xid": (EventKind.CLEARED, "the site: checks.xid.enabled is false"),
        "pcie_link_degraded": (EventKind.SUBSIDED, "the site: checks.pcie_link_degraded.enabled is false"),
    }
    host.restart_daemon()
    with_rules(host)
    host.run(20)
    assert host.codes == ["row_remap_failed"]  # what is still so is found again, the Xid is over


def test_a_shadow_finding_is_reported_and_nothing_follows_from_it() -> None:
    host = host_with(row_remap_failed=CheckRule(shadow=True))
    host.change(1, remapped_rows_failure=1)
    host.run(20)
    assert [(f.key.code, f.severity, f.shadow) for f in host.findings] == [("row_remap_failed", Severity.FAILURE, True)]
    assert host.last is not None
    assert (host.health, host.last.verdict.reasons) == (Health.HEALTHY, ())
    assert [(g.health, g.reasons) for g in host.last.verdict.gpus] == [(Health.HEALTHY, ())] * 2
    host.change(1, remapped_rows_failure=1, recovery_action=1)
    host.run(20)
    assert (host.health, host.last.verdict.reasons) == (Health.FAILURE, ("gpu_recovery_action",))


def test_a_shadow_finding_silences_no_consequence() -> None:
    host = host_with(gpu_missing=CheckRule(shadow=True))
    host.change(1, remapped_rows_failure=1)
    host.run(20)
    del host.gpus[1], host.devices[1]
    host.run(20)
    assert [(f.key.code, f.shadow) for f in host.findings] == [("row_remap_failed", False), ("gpu_missing", True)]
    assert host.health is Health.FAILURE


def test_the_site_s_rise_and_fall_times_win() -> None:
    host = host_with(row_remap_failed=CheckRule(rise=120, fall=300), pcie_link_degraded=CheckRule(rise=0))
    host.change(1, remapped_rows_failure=1, pcie_width=8)
    host.run(110)
    assert host.codes == ["pcie_link_degraded"]
    host.run(20)
    assert set(host.codes) == {"pcie_link_degraded", "row_remap_failed"}
    host.change(1, remapped_rows_failure=0, pcie_width=16)
    host.run(290)
    assert host.codes == ["row_remap_failed"]
    host.run(30)
    assert host.codes == []


def test_the_grace_of_a_boot_cannot_be_taken_away() -> None:
    host = host_with(8, driver_not_loaded=CheckRule(rise=10))
    host.step()
    host.reboot()
    host.uptime = 30.0
    host.gpus = {}
    host.nvml_change = lambda facts: replace(facts, problem=NvmlProblem.DRIVER_NOT_LOADED)
    host.run(500)
    assert host.codes == []


@pytest.mark.parametrize(("severity", "health"), [("warning", Health.WARNING), ("failure", Health.FAILURE)])
def test_the_site_s_severity_wins(severity: str, health: Health) -> None:
    rule = CheckRule(severity=Severity(severity))
    host = host_with(ecc_uncorrectable=rule, row_remap_pending=rule)
    host.change(1, ecc_uncorrected_volatile=1, remapped_rows_pending=1)
    host.run(20)
    assert {f.severity for f in host.findings} == {Severity(severity)}
    assert host.health is health


def test_a_failure_that_the_site_made_a_warning_does_not_latch() -> None:
    host = host_with(xid=CheckRule(severity=Severity.WARNING, fall=60))
    host.step(host.xid(1, 95))
    host.run(30)
    assert [(f.severity, f.latch) for f in host.findings] == [(Severity.WARNING, Latch.NONE)]
    host.run(60)
    assert host.codes == []


LATER_RULES = {
    "checks": Rules(checks={"xid": CheckRule(severity=Severity.WARNING, fall=60)}),
    "xids": Rules(xids={"95": XidRule(severity="warning")}, checks={"xid": CheckRule(fall=60)}),
}


@pytest.mark.parametrize("rules", LATER_RULES.values(), ids=LATER_RULES)
@pytest.mark.parametrize("latched_for", [1.0, 300.0])
def test_a_later_rule_of_the_site_reaches_a_latched_failure(rules: Rules, latched_for: float) -> None:
    """The rule works as if it had been configured from the start: a warning does not latch. A restart changes nothing."""
    host = Host(2)
    host.step(host.xid(1, 95))
    host.run(latched_for)
    first = host.findings[0].first_seen
    assert (host.health, host.findings[0].latch) == (Health.FAILURE, Latch.RESET)
    host.rules = rules
    host.step()
    assert (host.health, host.findings[0].first_seen, host.findings[0].count) == (Health.WARNING, first, 1)
    assert host.findings[0].evidence["classed_by"] == "this site's configuration"
    host.restart_daemon()
    host.step()
    assert host.health is Health.WARNING
    events = len(host.ledger)
    host.run(20)
    assert len(host.ledger) == events, "it is recorded once"
    host.uptime += 3_600.0  # lines count for an hour
    host.run(90)
    assert host.codes == []


def test_an_xid_that_a_site_only_records_ends_what_had_latched_of_it_and_no_other() -> None:
    host = Host(2)
    host.step(host.xid(1, 95), host.xid(0, 79))
    host.run(30)
    host.rules = Rules(xids={"95": XidRule(severity="record")})
    host.step()
    assert [f"{f.key.code}.{f.key.detail}" for f in host.findings] == ["xid.79"]
    ended = [e.data["by"] for e in host.ledger if e.kind == EventKind.CLEARED]
    assert ended == ["the site: xids.95.severity is record"]
    host.run(30)
    assert len(host.findings) == 1, "what is read again is not raised again"


def test_a_warning_that_a_site_calls_a_failure_is_one_from_then_on_and_latches() -> None:
    host = Host(2)
    host.step(host.xid(1, 94))
    assert host.health is Health.WARNING
    host.rules = Rules(checks={"xid": CheckRule(severity=Severity.FAILURE)})
    host.run(30)
    assert [(f.severity, f.latch) for f in host.findings] == [(Severity.FAILURE, Latch.RESET)]


# --- consequences


def chains() -> Iterator[tuple[str, str]]:
    for code in CONDITIONS:
        yield from ((code, cause) for cause in causes(code))


def test_no_condition_is_at_whatever_distance_a_consequence_of_itself() -> None:
    assert not [(code, cause) for code, cause in chains() if code in causes(cause)]
    assert not [row.code for row in CONDITIONS.values() if row.code in row.depends_on]


def track(code: str, slot_: str, severity: Severity = Severity.FAILURE) -> Track:
    at = Stamp(1.0, 1.0)
    return Track(
        key=Key(code, gpu(slot_)), severity=severity, advice=Advice.NONE, latch=Latch.NONE, evidence={}, first_seen=at,
        last_seen=at, raised=True,
    )  # fmt: skip


def test_a_consequence_names_the_root_and_not_the_consequence_between() -> None:
    middle = next(c for c in CONDITIONS.values() if "gpu_missing" in c.depends_on and c.severity is Severity.FAILURE)
    tracks = [track(middle.code, slot(1)), track("gpu_missing", slot(1)), track("driver_unresponsive", "")]
    roots = root_causes(tracks, ())
    assert roots[tracks[0].key] in (tracks[1].key, tracks[2].key)
    assert roots[tracks[0].key] not in roots


def test_a_failure_is_silenced_by_nothing_milder_and_by_no_other_gpu() -> None:
    consequence = track("row_remap_failed", slot(1))
    assert root_causes([consequence, track("gpu_missing", slot(1), Severity.WARNING)], ()) == {}
    assert root_causes([consequence, track("gpu_missing", slot(2))], ()) == {}
    assert root_causes([consequence, track("gpu_missing", slot(1))], ("gpu_missing",)) == {}
    assert len(root_causes([consequence, track("gpu_missing", slot(1))], ())) == 1


def test_a_silenced_failure_still_makes_its_gpu_a_failed_one() -> None:
    host = Host(2)
    host.change(1, remapped_rows_failure=1)
    host.run(20)
    since = host.now
    host.uptime += 25
    host.step(nvml=host.nvml(PassOutcome.TIMED_OUT, missed=2, silent_since=since, ever_answered=True))
    assert host.codes == ["driver_unresponsive"]
    assert host.last is not None
    assert [f.key.code for f in host.last.verdict.silenced] == ["row_remap_failed"]
    assert [(g.health, g.reasons) for g in host.last.verdict.gpus][1] == (Health.FAILURE, ("row_remap_failed",))
