"""What is asked of Prometheus: one row a query, each instant. `docs/fleet.md` shows them."""

from __future__ import annotations

SEEN = "gpuwarden:node:last_seen_timestamp_seconds"
STANDING = "gpuwarden:node:standing"
"""Recorded by the rules in grafana/prometheus, and kept for 24 h after a target is gone."""
HEARD = "20m"
"""How far back heartbeats are looked for: 80 samples of each node at a scrape each 15 s."""

PRESENT, EXPECTED = "gpuwarden_gpus_present", "gpuwarden_gpus_expected"
ENFORCING, BUSY = "gpuwarden_enforcing", "gpuwarden_node_busy"
DEADLINE = "gpuwarden_termination_deadline_timestamp_seconds"
HEALTH, EXCLUDED, NOTICE = "gpuwarden_node_health", "gpuwarden_excluded", "gpuwarden_termination_notice"
BREAKER, SIMULATED = "gpuwarden_breaker_open", "gpuwarden_simulated"

QUERIES: dict[str, str] = {
    # The node's name. First: of all of them it has a sample for each node, which tells the time of all others.
    "nodes": "group by (cluster, job, instance, node) (gpuwarden_node_info)",
    # Of those that are one-hot, or stand at 0 from the start, only what holds.
    "states": f'{{__name__=~"{HEALTH}|{EXCLUDED}|{NOTICE}|{BREAKER}|{SIMULATED}"}} == 1',
    "numbers": f'{{__name__=~"{PRESENT}|{EXPECTED}|{ENFORCING}|{BUSY}|{DEADLINE}"}}',
    # Not gpuwarden_finding, of which every node has hundreds at 0.
    "findings": 'gpuwarden_finding_info{severity!="shadow"}',
    # Also of a node that has fallen silent.
    "heartbeats": f"max by (cluster, job, instance) (last_over_time(gpuwarden_heartbeat_timestamp_seconds[{HEARD}]))",
    "recorded": f'{{__name__=~"{SEEN}|{STANDING}"}}',
    # Targets that do not answer, of whatever job: which jobs have daemons is known from the others.
    "down": "up == 0",
}
