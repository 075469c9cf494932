"""From what NVML answers to what the scheduler is told: a library that does not fit the loaded driver."""

from __future__ import annotations

from dataclasses import replace

from gpuwarden.health.view import Rules
from gpuwarden_collectors.facts import NvmlFacts, NvmlProblem
from support.hosts import Host
from support.judged_stories import live
from support.policy_story import Story

EXCLUDED = "gpuwarden: failure driver_library_mismatch - reboot it when its jobs have ended"


def misfit(facts: NvmlFacts) -> NvmlFacts:
    return replace(facts, gpus=(), problem=NvmlProblem.LIBRARY_MISMATCH, problem_code=18)


def upgraded(*, contained: bool = False) -> tuple[Host, Story]:
    """A host whose packages were upgraded under the loaded driver."""
    host, story = Host(8, rules=Rules(contained=contained)), Story()
    live(host, story, 60)
    host.nvml_change = misfit
    return host, story


def test_a_misfit_takes_the_node_out_after_ten_minutes_and_a_reload_of_the_driver_brings_it_back() -> None:
    host, story = upgraded()
    live(host, story, 590)
    assert story.writes == []
    live(host, story, 30)
    assert (story.writes, story.reason) == (["exclude"], EXCLUDED)
    host.nvml_change = lambda facts: facts
    live(host, story, 300)
    assert (story.writes, story.reason) == (["exclude", "restore"], "")


def test_a_reload_within_ten_minutes_takes_nothing_out() -> None:
    host, story = upgraded()
    live(host, story, 590)
    host.nvml_change = lambda facts: facts
    live(host, story, 300)
    assert story.writes == []


def test_in_a_container_whose_library_is_its_own_a_misfit_takes_nothing_out() -> None:
    host, story = upgraded(contained=True)
    live(host, story, 3600)
    assert story.writes == []
