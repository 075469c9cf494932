"""The instant queries to Prometheus, one per row. `docs/use/fleet.md` shows them."""

from __future__ import annotations

SEEN = "gpuwarden:node:last_seen_timestamp_seconds"
NODE_STATE = "gpuwarden:node:exclusion"
"""Recorded by the rules in grafana/prometheus, which keep both for 24 h after a target has disappeared."""
HEARTBEAT_WINDOW = "20m"
"""How far back heartbeats are queried: 80 samples per node at a scrape interval of 15 s."""

PRESENT, EXPECTED = "gpuwarden_gpus_present", "gpuwarden_gpus_expected"
ENFORCING, BUSY = "gpuwarden_enforcing", "gpuwarden_node_busy"
DEADLINE = "gpuwarden_termination_deadline_timestamp_seconds"
HEALTH, EXCLUDED, NOTICE = "gpuwarden_node_health", "gpuwarden_excluded", "gpuwarden_termination_notice"
MACHINE = "gpuwarden_machine_info"
BREAKER, SIMULATED = "gpuwarden_breaker_open", "gpuwarden_simulated"

QUERIES: dict[str, str] = {
    # The node's name. It comes first: it has a sample for every node, and its time is used for all other queries.
    "nodes": "group by (cluster, job, instance, node) (gpuwarden_node_info)",
    # One-hot and boolean series: only those with the value 1.
    "states": f'{{__name__=~"{HEALTH}|{EXCLUDED}|{NOTICE}|{BREAKER}|{SIMULATED}"}} == 1',
    "numbers": f'{{__name__=~"{PRESENT}|{EXPECTED}|{ENFORCING}|{BUSY}|{DEADLINE}"}}',
    "findings": 'gpuwarden_finding_info{severity!="shadow"}',
    # Includes nodes that no longer answer.
    "heartbeats": f"max by (cluster, job, instance) (last_over_time(gpuwarden_heartbeat_timestamp_seconds[{HEARTBEAT_WINDOW}]))",
    "recorded": f'{{__name__=~"{SEEN}|{NODE_STATE}"}}',
    # Targets of any job that do not answer: the other queries show which jobs are those of daemons.
    "down": "up == 0",
    # Labels that nodes may have in common. A failed node keeps those from when its driver last answered.
    "machines": MACHINE,
    # The NVLink domain, including that of nodes that no longer answer.
    "domains": f'last_over_time({MACHINE}{{cluster_uuid!=""}}[{HEARTBEAT_WINDOW}])',
}
WHY_QUERIES: dict[str, str] = {"machines_before": f"last_over_time({MACHINE}[6h])"}
"""Queries for `--why`, in addition to `QUERIES`."""
