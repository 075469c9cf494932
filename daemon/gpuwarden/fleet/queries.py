"""The queries to Prometheus: one row a query, each instant. `docs/use/fleet.md` shows them."""

from __future__ import annotations

SEEN = "gpuwarden:node:last_seen_timestamp_seconds"
NODE_STATE = "gpuwarden:node:exclusion"
"""Recorded by the rules in grafana/prometheus, and kept for 24 h after a target is gone."""
HEARTBEAT_WINDOW = "20m"
"""How far back heartbeats are queried: 80 samples of each node at a scrape each 15 s."""

PRESENT, EXPECTED = "gpuwarden_gpus_present", "gpuwarden_gpus_expected"
ENFORCING, BUSY = "gpuwarden_enforcing", "gpuwarden_node_busy"
DEADLINE = "gpuwarden_termination_deadline_timestamp_seconds"
HEALTH, EXCLUDED, NOTICE = "gpuwarden_node_health", "gpuwarden_excluded", "gpuwarden_termination_notice"
MACHINE = "gpuwarden_machine_info"
BREAKER, SIMULATED = "gpuwarden_breaker_open", "gpuwarden_simulated"

QUERIES: dict[str, str] = {
    # The node's name. First: it alone has a sample for each node, and its time is used for all others.
    "nodes": "group by (cluster, job, instance, node) (gpuwarden_node_info)",
    # Of those that are one-hot, or 0 from the start, only what holds.
    "states": f'{{__name__=~"{HEALTH}|{EXCLUDED}|{NOTICE}|{BREAKER}|{SIMULATED}"}} == 1',
    "numbers": f'{{__name__=~"{PRESENT}|{EXPECTED}|{ENFORCING}|{BUSY}|{DEADLINE}"}}',
    "findings": 'gpuwarden_finding_info{severity!="shadow"}',
    # Also of a node that no longer answers.
    "heartbeats": f"max by (cluster, job, instance) (last_over_time(gpuwarden_heartbeat_timestamp_seconds[{HEARTBEAT_WINDOW}]))",
    "recorded": f'{{__name__=~"{SEEN}|{NODE_STATE}"}}',
    # Targets that do not answer, of any job: the others show which jobs have daemons.
    "down": "up == 0",
    # What nodes may have in common; of a failed one also what it was when its driver last answered.
    "machines": MACHINE,
    # The NVLink domain, also of a node that no longer answers.
    "domains": f'last_over_time({MACHINE}{{cluster_uuid!=""}}[{HEARTBEAT_WINDOW}])',
}
WHY_QUERIES: dict[str, str] = {"machines_before": f"last_over_time({MACHINE}[6h])"}
"""Queries for `--why`, beside `QUERIES`."""
