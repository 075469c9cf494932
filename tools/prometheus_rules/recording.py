"""The recording rules: what alerts, dashboards and people query often, and what must outlive its target.

Everything is by (job, instance), as Prometheus identifies a daemon; only `gpuwarden_node_info` knows the name of the node.
"""

from __future__ import annotations

from gpuwarden.config.policy import BreakerOptions
from gpuwarden.policy.model import HORIZON
from prometheus_rules.model import Group, Pace, Recording

EVERY = "30s"
"""How often rules are evaluated; rules that add up time count evaluations."""
TREND_EVERY = "5m"
FLEET_LEAST, FLEET_SHARE, FLEET_MOST = 3, 0.02, BreakerOptions().count
"""Simultaneous failures that are no coincidence: 3 nodes, or 2 % of many, at most what the breaker allows in an hour.

At 6.5 failures in 1,000 node-days three nodes of 150 fail within one hour by chance once in about ten years, ten of 1,000 never.
"""


_FLEET = (
    Recording(
        record="gpuwarden:fleet:nodes",
        why="The nodes seen within 24 h.",
        expr="count by (job) (gpuwarden:node:name)",
    ),
    Recording(
        record="gpuwarden:fleet:many",
        why=f"How many nodes at once are an event of the fleet: {FLEET_SHARE:.0%} of them, from {FLEET_LEAST} to {FLEET_MOST}.",
        expr=f"clamp({FLEET_SHARE} * gpuwarden:fleet:nodes, {FLEET_LEAST}, {FLEET_MOST})",
    ),
)


_FINDINGS = 'max without (detail, title, advice) (gpuwarden_finding_info{severity!="shadow"})'
"""`max`: two links of one GPU are two info series, and one finding of a check. `without`: labels of the target stay."""


def recordings(pace: Pace) -> tuple[Group, ...]:
    return (_nodes(pace), _trends())


def _names(pace: Pace, carry: str) -> tuple[Recording, ...]:
    seen = "gpuwarden:node:last_seen_timestamp_seconds"
    return (
        Recording(
            record=seen,
            why="When a scrape of this node last succeeded. Kept for 24 h after its target is gone from service discovery; "
            "Prometheus itself may be down for an hour meanwhile.",
            expr=f"""\
max by (job, instance, node) (timestamp(gpuwarden_node_info))
or
last_over_time({seen}[{carry}]) > time() - {pace.seconds("24h")}""",
        ),
        Recording(
            record="gpuwarden:node:name",
            why="Always 1: the name of the node behind an instance. Never two for one, whatever was renamed: a join would fail. None "
            "for an address that the node had before and that is no target any more: it would count as a second node, and be silent "
            "though the node is out.",
            expr=f"""\
group by (job, instance, node) (topk by (job, instance) (1, {seen}))
unless on (job, instance, node) (
  ({seen} < time() - {pace.seconds("2m")})
  < on (job, node) group_left () max by (job, node) ({seen})
  unless on (job, instance) up
)""",
        ),
    )


def _nodes(pace: Pace) -> Group:
    carry = pace("65m")  # an hour, and what begins at its edge, which a range of Prometheus 3 leaves out
    rows = (
        *_names(pace, carry),
        Recording(
            record="gpuwarden:node:exclusion",
            why="Whether the node is excluded. 0: no. 1: it is out for a failure, by gpuwarden or another party. 2: it is out as "
            "planned, by an operator (gpuwarden exclude) or for its announced end, if that is not a day past. As last known while the "
            "node is silent.",
            expr=f"""\
max by (job, instance) (
    gpuwarden_excluded{{cause=~"failure|foreign"}}
  or
    2 * gpuwarden_excluded{{cause=~"operator|termination"}}
  or
    2 * (gpuwarden_termination_deadline_timestamp_seconds < bool time() + {pace.seconds(f"{HORIZON:.0f}s")})
    * (gpuwarden_termination_deadline_timestamp_seconds > bool time() - {pace.seconds("24h")})
)
or
(last_over_time(gpuwarden:node:exclusion[{carry}]) and on (job, instance) (up or gpuwarden:node:name))""",
        ),
        Recording(
            record="gpuwarden:node:failing_since_timestamp_seconds",
            why="Since when a node fails; no series for one that does not. A gap of up to an hour begins nothing again.",
            expr=f"""\
(
  last_over_time(gpuwarden:node:failing_since_timestamp_seconds[{carry}])
  and on (job, instance) gpuwarden_node_health{{state="failure"}} == 1
)
or
(max by (job, instance) (gpuwarden_node_health{{state="failure"}}) == 1) * 0 + time()""",
        ),
        Recording(
            record="gpuwarden:finding:active",
            why="The findings that hold, with the name of their node. Not those of shadow checks. Read from the info series, which "
            "exist only while a finding holds.",
            expr=f"""\
{_FINDINGS} * on (job, instance) group_left (node) gpuwarden:node:name
or
{_FINDINGS} unless on (job, instance) gpuwarden:node:name""",
        ),
    )
    return Group("gpuwarden-nodes", EVERY, (*rows, *_FLEET))


def _trends() -> Group:
    gpu = "job, instance, gpu, UUID, pci_bus_id"
    return Group(
        "gpuwarden-trends",
        TREND_EVERY,
        (
            Recording(
                record="gpuwarden:gpu:temperature_excess_celsius",
                why="How much warmer a GPU is than the median of its node, while all of them work hard: at half of their power "
                "limit or more. Room and load, which are the same for all, drop out. One reading of each is enough: the alert compares means of twelve hours.",
                expr=f"""\
(
  max by ({gpu}) (DCGM_FI_DEV_GPU_TEMP)
  - on (job, instance) group_left ()
  quantile by (job, instance) (0.5, max by ({gpu}) (DCGM_FI_DEV_GPU_TEMP))
)
and on (job, instance)
min by (job, instance) (
  max by ({gpu}) (DCGM_FI_DEV_POWER_USAGE)
  / max by ({gpu}) (DCGM_FI_DEV_ENFORCED_POWER_LIMIT)
) >= 0.5
and on (job, instance) gpuwarden_build_info""",
            ),
        ),
    )
