"""Whatever of the daemon itself does not work is a finding, a metric and a line of the status: for every component that there is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwarden.cli.status_text import status_text
from gpuwarden.health.components import CONDITION_OF, NAMED, Component, ComponentErrors
from gpuwarden.health.conditions import CONDITIONS
from gpuwarden.health.model import Finding, Health
from gpuwarden.publish.metrics.exposition import Renderer
from gpuwarden.publish.status import status
from gpuwarden_collectors.facts import Stamp
from support.hosts import Host
from support.scrape import Scrape
from support.snapshots import snapshot

WHY = "cannot write /run/gpuwarden/verdict: No space left on device"


def judged(component: Component) -> list[Finding]:
    """Return the findings of a healthy host while this component does not work."""
    host = Host(1)
    host.run(30)
    host.view = replace(host.view, errors={component.value: WHY})
    host.run(CONDITIONS[CONDITION_OF[component]].rise + 10)
    return list(host.findings)


@pytest.mark.parametrize("component", Component)
def test_each_component_that_does_not_work_is_a_finding(component: Component) -> None:
    (finding,) = judged(component)
    assert (finding.key.code, finding.evidence["why"]) == (CONDITION_OF[component], WHY)
    assert finding.key.detail == (component.value if finding.key.code in NAMED else "")


def test_two_components_of_one_condition_are_two_findings_and_end_by_themselves() -> None:
    host = Host(1)
    host.view = replace(host.view, errors={"verdict": WHY, "slurm": WHY})
    host.run(30)
    assert {str(finding.key) for finding in host.findings} == {"output_failed.slurm@node", "output_failed.verdict@node"}
    host.view = replace(host.view, errors={"slurm": WHY})
    host.run(30)
    assert {str(finding.key) for finding in host.findings} == {"output_failed.slurm@node"}


@pytest.mark.parametrize("component", Component)
def test_each_component_that_does_not_work_is_a_sample_and_a_line_of_the_status(component: Component) -> None:
    shown = replace(snapshot(1, health=Health.WARNING), errors={component.value: WHY})
    page = Scrape(Renderer().render(shown).text)
    samples = {c: page.value("gpuwarden_component_up", component=c.value) for c in Component}
    assert samples == {c: float(c is not component) for c in Component}
    document = status(shown, shown.made)
    assert f"{component.value.replace('_', ' ')}: {WHY}" in document["errors"]
    assert sum(WHY in line for line in status_text(document)) == 1


def test_the_daemon_must_give_an_error_source_for_each_component() -> None:
    sources = dict.fromkeys(Component, lambda _: "")
    assert ComponentErrors(sources).at(Stamp(0, 0)) == {}
    del sources[Component.VERDICT]
    with pytest.raises(ValueError, match="verdict"):
        ComponentErrors(sources)
