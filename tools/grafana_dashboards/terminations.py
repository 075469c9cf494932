"""Terminations: what is announced, how long before, and whether jobs were signalled."""

from __future__ import annotations

from grafana_dashboards import texts
from grafana_dashboards.model import BAD_FROM_ONE, BLUE, GREEN, ORANGE, RED, Column, Kind, Page, Panel, Query, Row
from grafana_dashboards.queries import CLUSTER, CLUSTERS, NODES, increase, named, number, per_node

_NOTICE = f"gpuwarden_termination_notice{{{CLUSTER}}}"
_LEFT = f"gpuwarden_termination_deadline_timestamp_seconds{{{CLUSTER}}} - time()"
_LEAD = f"max_over_time(({_LEFT})[$__range:15s])"
_SIGNALLED = f"gpuwarden_jobs_signalled_total{{{CLUSTER}}}"
_NOT_SIGNALLED = f'gpuwarden_jobs_signalled_total{{{CLUSTER},outcome=~"unsent|unknown"}}'
_ACKNOWLEDGED = f"gpuwarden_jobs_acknowledged_total{{{CLUSTER}}}"
_DELAY = f"gpuwarden_notice_to_signal_seconds_bucket{{{CLUSTER}}}"
_SHORT_LEAD = ((0, RED), (120, ORANGE), (600, GREEN))

NOW = (
    Panel(
        title="Nodes that will end", kind=Kind.STAT, width=4, height=4, text="Nodes whose end is announced.",
        queries=(Query(number(per_node(f"{_NOTICE} == 1"))),), steps=((1, BLUE),),
    ),
    Panel(
        title="Next end in", kind=Kind.STAT, width=4, height=4, unit="s", text="Time left to the node that ends first.",
        queries=(Query(f"min({named(f'{_LEFT} > 0')})"),), steps=_SHORT_LEAD, none="nothing announced",
    ),
    Panel(
        title="Jobs signalled", kind=Kind.STAT, width=4, height=4, text="Jobs signalled because their machine ends, within this time.",
        queries=(Query(f"sum({increase(_SIGNALLED, '$__range')})"),),
    ),
    Panel(
        title="Jobs not signalled", kind=Kind.STAT, width=4, height=4,
        text="Jobs that were not signalled, or whose signal has an unknown result, within this time. See the log of the node.",
        queries=(Query(f"sum({increase(_NOT_SIGNALLED, '$__range')})"),), steps=BAD_FROM_ONE,
    ),
    Panel(
        title="Slowest signal", kind=Kind.STAT, width=4, height=4, unit="s",
        text="The time from the arrival of the notice within which 95 % of jobs were signalled, within this time.",
        queries=(Query(f"histogram_quantile(0.95, sum by (le) ({increase(_DELAY, '$__range')}))"),),
        steps=((2, ORANGE), (5, RED)), none="no job was signalled",
    ),
    Panel(
        title="Sources that do not answer", kind=Kind.STAT, width=4, height=4,
        text="While a source of notices does not answer, a machine may end without notice.",
        queries=(Query(number(named(f"gpuwarden_termination_source_up{{{CLUSTER}}} == 0"))),), steps=BAD_FROM_ONE,
    ),
)  # fmt: skip
NOTICES = (
    Panel(
        title="Announced ends", kind=Kind.TABLE, width=14,
        text="What is announced now, the soonest first. Without a time: nothing certain is.",
        queries=(
            Query(per_node(f"{_NOTICE} == 1", "source", "kind")),
            Query(per_node(_LEFT)),
            Query(per_node(f"gpuwarden_schedulable{{{CLUSTER}}} and on (cluster, job, instance) ({_NOTICE} == 1)")),
        ),
        columns=(
            texts.NODE, texts.CLUSTER, Column(field="source", name="Source", width=100), Column(field="kind", name="Kind", width=110),
            Column(field="Value #B", name="Ends in", unit="s"), Column(field="Value #C", name="Takes work", texts=texts.GETS_WORK),
        ),
        sort="Ends in", upwards=True, none="no end is announced",
    ),
    Panel(
        title="Lead time", kind=Kind.TABLE, width=10,
        text="How long before its end each node was known to end, of those announced in this time, the shortest first. "
        "Less than a checkpoint takes: jobs lose work.",
        queries=(Query(per_node(_LEAD, within="$__range")),),
        columns=(texts.NODE, texts.CLUSTER, Column(field="Value", name="Lead time", unit="s")),
        sort="Lead time", upwards=True, steps=_SHORT_LEAD, none="no end was announced",
    ),
    Panel(
        title="Nodes under notice", kind=Kind.SERIES, width=12, low=0,
        text="How many nodes are announced to end, by source. Many at once: the provider takes capacity back.",
        queries=(Query(f"sum by (source, kind) ({named(_NOTICE)})", "{{source}}: {{kind}}"),),
    ),
    Panel(
        title="Time left", kind=Kind.SERIES, width=12, unit="s", low=0,
        text="Until the announced end of each node: the 20 soonest.",
        queries=(Query(f"bottomk(20, {per_node(_LEFT)} > 0)", "{{node}}"),), none="no end is announced",
    ),
)  # fmt: skip
DELIVERY = (
    Panel(
        title="Jobs signalled", kind=Kind.BARS, width=8,
        text="Jobs by the result of their signal. sent: signalled. local_only: signalled here, not on its other nodes. "
        "watched: another node signalled it. unsent, unknown: see the log.",
        queries=(Query(f"sum by (outcome) ({increase(_SIGNALLED, '$__rate_interval')})", "{{outcome}}"),),
    ),
    Panel(
        title="Answers of jobs", kind=Kind.BARS, width=8,
        text="Acknowledgements of jobs. saved: something is saved. unsaved: a rank has saved nothing. ended: its ranks ended without "
        "acknowledgement. Fewer than were signalled: whether the others saved is unknown.",
        queries=(Query(f"sum by (answer) ({increase(_ACKNOWLEDGED, '$__rate_interval')})", "{{answer}}"),),
    ),
    Panel(
        title="From notice to signal", kind=Kind.SERIES, width=8, unit="s", low=0,
        text="Time from the arrival of a notice on the node to the signal of a job.",
        queries=tuple(
            Query(f"histogram_quantile({share}, sum by (le) ({increase(_DELAY, '$__rate_interval')}))", f"{share:.0%} of jobs")
            for share in (0.5, 0.95, 0.99)
        ),
        none="no job was signalled",
    ),
)  # fmt: skip
SOURCES = (
    Panel(
        title="Sources of notices", kind=Kind.TIMELINE, width=24, height=6,
        text="Whether each source answers, at its worst node.",
        queries=(Query(f"min by (cluster, source) ({named(f'gpuwarden_termination_source_up{{{CLUSTER}}}')})", "{{source}} {{cluster}}"),),
        texts=texts.SOURCE_UP, none="no source is read: no cloud was found",
    ),
)  # fmt: skip

PAGE = Page(
    uid="gpuwarden-terminations",
    title="GPU nodes: Terminations",
    text="What is announced, how long before, and whether jobs were signalled.",
    since="now-24h",
    variables=(CLUSTERS, NODES),
    rows=(
        Row("Now", NOW),
        Row("Notices", NOTICES),
        Row("Delivery", DELIVERY),
        Row("Sources", SOURCES),
    ),
)
