"""A host that the judge sees, and policy that decides by each of its verdicts."""

from __future__ import annotations

from support.hosts import Host
from support.policy_story import PASS, Story


def live(host: Host, story: Story, seconds: float) -> None:
    """Judge the host, and let policy decide by each verdict."""
    end = host.uptime + seconds
    while host.uptime + PASS <= end:
        host.later(PASS)
        story.health, story.findings = host.health, tuple(host.findings)
        story.passes()
