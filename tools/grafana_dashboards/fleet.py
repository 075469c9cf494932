"""Fleet: which node is bad, why, and what gpuwarden did about it."""

from __future__ import annotations

from grafana_dashboards import texts
from grafana_dashboards.model import (
    BAD_FROM_ONE,
    BLUE,
    ORANGE,
    RED,
    WARN_FROM_ONE,
    Column,
    Kind,
    Page,
    Panel,
    Query,
    Row,
)
from grafana_dashboards.queries import (
    CLUSTER,
    CLUSTERS,
    EXCLUDED,
    FAILING,
    NAMES,
    NODES,
    OUT,
    SILENT,
    STILL_IN,
    named,
    number,
    per_node,
    ranked,
    state,
    worst,
)

TILES_MOST = 250
ROWS_MOST = 200


def _count(title: str, text: str, expr: str, steps: tuple[tuple[float, str], ...] = ()) -> Panel:
    return Panel(
        title=title, kind=Kind.STAT, text=text, queries=(Query(number(expr)),), width=3, height=4, steps=steps,
    )  # fmt: skip


COUNTS = (
    _count("Nodes", "Nodes that answer.", NAMES),
    _count("Fail, still get work", "Failing nodes that are still in scheduling. Begin here.", named(STILL_IN), BAD_FROM_ONE),
    _count("Fail, out", "Failing nodes that are out of scheduling. They can wait for the morning.", named(OUT), ((1, ORANGE),)),
    _count("Silent", "Nodes seen within 24 hours that do not answer: the host, its network or gpuwarden is down.", SILENT, BAD_FROM_ONE),
    _count("Unknown", "Nodes of unknown health: their GPUs could not be read.",
           named(f"{state('gpuwarden_node_health', CLUSTER, 'unknown')} == 1"), WARN_FROM_ONE),
    _count("Warning", "Nodes that work, with something to check in working hours.",
           named(f"{state('gpuwarden_node_health', CLUSTER, 'warning')} == 1"), WARN_FROM_ONE),
    _count("End announced", "Nodes whose end is announced: spot, maintenance or an operator.",
           per_node(f"gpuwarden_termination_notice{{{CLUSTER}}} == 1"), ((1, BLUE),)),
    _count("Breaker open", "Failing nodes that gpuwarden keeps in service, because too many are out already.",
           named(f"gpuwarden_breaker_open{{{CLUSTER}}} == 1"), BAD_FROM_ONE),
)  # fmt: skip

_STATES = f"5 * ({STILL_IN}) or {worst('gpuwarden_node_health', CLUSTER)}"
GRID = Panel(
    title="Nodes, worst first",
    kind=Kind.TILES,
    text=f"One tile a node, the {TILES_MOST} worst. Red: fails and still gets work. Grey: silent. Orange: fails, out of scheduling. "
    "Purple: unknown. Yellow: warning. A tile leads to the node.",
    queries=(
        Query(
            f"sort_desc(topk({TILES_MOST}, {per_node(_STATES)} or max by (cluster, node) (0 * {SILENT} + 4)))",
            "{{node}}",
        ),
    ),
    width=24,
    height=9,
    texts=texts.NODE_STATE,
    none="no node answers: does Prometheus scrape gpuwarden?",
    to_node=True,
)

_INFO = f"gpuwarden_finding_info{{{CLUSTER}}}"
_INFO_LABELS = ("gpu", "pci_bus_id", "severity", "title", "detail", "advice")
FINDINGS = Panel(
    title="What is wrong, and what to do",
    kind=Kind.TABLE,
    text=f"Findings that hold now, failures first, {ROWS_MOST} at most. The advice is the daemon's.",
    queries=(Query(f"topk({ROWS_MOST}, {per_node(ranked(CLUSTER), *_INFO_LABELS)})"),),
    width=24,
    columns=(texts.NODE, texts.CLUSTER, texts.GPU, texts.SLOT, texts.RANKED, *texts.WHAT, texts.TO_DO),
    sort="Severity",
    none="no findings",
)

_NOW = per_node(_INFO, *_INFO_LABELS)
_BEFORE = per_node(f"{_INFO} offset $__range", *_INFO_LABELS)
_EVER = per_node(f"last_over_time({_INFO}[$__range])", *_INFO_LABELS)
CHANGED = Panel(
    title="What changed in this time",
    kind=Kind.TABLE,
    text="Findings that hold now and did not at the start of the chosen time, and those that ended within it.",
    queries=(
        Query(
            f'label_replace({_NOW} unless {_BEFORE}, "change", "began", "", "") '
            f'or label_replace({_EVER} unless {_NOW}, "change", "ended", "", "")'
        ),
    ),
    width=16,
    columns=(
        Column(field="change", name="Change", texts=texts.CHANGE, width=80),
        texts.NODE,
        texts.GPU,
        texts.SEVERE,
        *texts.WHAT,
    ),
    sort="Change",
    upwards=True,
    none="nothing changed",
)
FAILING_SINCE = Panel(
    title="Failing nodes",
    kind=Kind.TABLE,
    text="Since when, and who excluded them. Needs the recording rules.",
    queries=(
        Query(per_node(f"1000 * gpuwarden:node:failing_since_timestamp_seconds{{{CLUSTER}}}")),
        Query(per_node(f"gpuwarden:node:exclusion{{{CLUSTER}}} and on (cluster, job, instance) ({FAILING})")),
    ),
    width=8,
    columns=(
        texts.NODE,
        Column(field="Value #A", name="Fails since", unit="dateTimeFromNow"),
        Column(field="Value #B", name="Work", texts=texts.NODE_WORK),
    ),
    sort="Work",
    upwards=True,
    none="no node fails",
)
_NOT_HEALTHY = f'gpuwarden_node_health{{{CLUSTER},state!="healthy"}}'
HISTORY = (
    Panel(
        title="Nodes that are not healthy",
        kind=Kind.SERIES,
        text="How many nodes are in each state. A step of many at once: suspect what they have in common, not the GPUs.",
        queries=(Query(f"sum by (state) ({named(_NOT_HEALTHY)})", "{{state}}"),),
        width=12,
        low=0,
    ),
    Panel(
        title="Findings",
        kind=Kind.SERIES,
        text="How many findings of each kind hold.",
        queries=(Query(f"count by (check, severity) ({named(_INFO)})", "{{check}} ({{severity}})"),),
        width=12,
        low=0,
        none="no findings",
    ),
)

EXCLUSIONS = Panel(
    title="Out of scheduling",
    kind=Kind.TABLE,
    text="Who excluded each node, and where. Without a scheduler: by an operator, for readers of the heartbeat.",
    queries=(Query(per_node(EXCLUDED, "actuator", "cause")),),
    width=8,
    columns=(
        texts.NODE,
        Column(field="cause", name="Taken out by", texts=texts.OWNER),
        Column(field="actuator", name="Scheduler", width=100),
    ),
    none="no node is out",
)
NOTICES = Panel(
    title="Announced ends",
    kind=Kind.TABLE,
    text="Machines that will end, and when. Without a time: no time is certain.",
    queries=(
        Query(per_node(f"gpuwarden_termination_notice{{{CLUSTER}}} == 1", "source", "kind")),
        Query(per_node(f"gpuwarden_termination_deadline_timestamp_seconds{{{CLUSTER}}} - time()")),
    ),
    width=8,
    columns=(
        texts.NODE,
        Column(field="source", name="Source", width=100),
        Column(field="kind", name="Kind", width=110),
        Column(field="Value #B", name="Ends in", unit="s"),
    ),
    sort="Ends in",
    upwards=True,
    none="no end is announced",
)
NOT_DONE = Panel(
    title="Wanted, not done",
    kind=Kind.TABLE,
    text="Nodes that gpuwarden wants out, or back, but are not: the scheduler is unreachable or refuses, or the breaker is open.",
    queries=(
        Query(per_node(f"gpuwarden_breaker_open{{{CLUSTER}}} and on (cluster, job, instance) "
                       f"(gpuwarden_breaker_open{{{CLUSTER}}} == 1 or gpuwarden_intents_pending{{{CLUSTER}}} > 0)")),
        Query(per_node(f"gpuwarden_intents_pending{{{CLUSTER}}} > 0")),
    ),
    width=8,
    columns=(
        texts.NODE,
        Column(field="Value #A", name="Breaker", texts=texts.BREAKER),
        Column(field="Value #B", name="Pending", width=80),
    ),
    sort="Breaker",
    none="everything wanted is done",
)  # fmt: skip
_INTENTS = f"increase(gpuwarden_intents_total{{{CLUSTER}}}[$__rate_interval])"
DONE = Panel(
    title="What gpuwarden did",
    kind=Kind.BARS,
    text="Exclusions and restorations by outcome. Outcome observed: mode is observe, nothing was done.",
    queries=(
        Query(
            f"sum by (kind, outcome) ({named(_INTENTS)}) > 0",
            "{{kind}}: {{outcome}}",
        ),
    ),
    width=12,
    none="nothing",
)
LEMONS = Panel(
    title="Nodes that fail again and again",
    kind=Kind.TABLE,
    text="On how many of the last 28 days any board of the node had each event. Three or more: a lemon, to be repaired for good.",
    queries=(Query(f'topk(20, {per_node(f"""gpuwarden_lemon{{{CLUSTER},pci_bus_id=""}} > 0""", "what")})'),),
    width=12,
    columns=(
        texts.NODE,
        Column(field="what", name="What"),
        Column(field="Value", name="Days", width=80),
    ),
    sort="Days",
    steps=((2, ORANGE), (3, RED)),
    none="none within 28 days",
)
NODES_NOT_ANSWERING = Panel(
    title="Silent nodes",
    kind=Kind.TABLE,
    text="Nodes that do not answer, and when they last did. Is the host up? If not, power-cycle it. Needs the recording rules.",
    queries=(Query(f"max by (cluster, node, instance) (1000 * {SILENT})"),),
    width=8,
    columns=(
        texts.NODE,
        Column(field="instance", name="Address"),
        Column(field="Value", name="Last seen", unit="dateTimeFromNow"),
    ),
    none="every node answers",
)
BLIND = Panel(
    title="Oldest reading of the GPUs",
    kind=Kind.TABLE,
    text="How long ago each daemon last read its GPUs: the 20 longest. More than five minutes: the driver or its reader hangs.",
    queries=(Query(f"topk(20, {per_node(f'time() - gpuwarden_heartbeat_timestamp_seconds{{{CLUSTER}}}')})"),),
    width=8,
    columns=(texts.NODE, Column(field="Value", name="Age", unit="s")),
    sort="Age",
    steps=((60, ORANGE), (300, RED)),
    none="no daemon has read a GPU",
)
DAEMONS = Panel(
    title="Daemons",
    kind=Kind.STAT,
    text="Versions that run; daemons in mode observe, which do nothing; collectors whose last pass failed.",
    queries=(
        Query(f"count by (version) ({named(f'gpuwarden_build_info{{{CLUSTER}}}')})", "version {{version}}"),
        Query(number(named(f"gpuwarden_enforcing{{{CLUSTER}}} == 0")), "in mode observe"),
        Query(number(named(f"gpuwarden_simulated{{{CLUSTER}}} == 1")), "simulated"),
        Query(number(named(f"gpuwarden_collector_up{{{CLUSTER}}} == 0")), "collectors that fail"),
    ),
    width=8,
)

PAGE = Page(
    uid="gpuwarden-fleet",
    title="GPU nodes: Fleet",
    text="Which node is bad, why, and what was done about it.",
    since="now-6h",
    variables=(CLUSTERS, NODES),
    rows=(
        Row("Now", (*COUNTS, GRID, FINDINGS)),
        Row("What changed", (CHANGED, FAILING_SINCE, *HISTORY)),
        Row("What was done", (EXCLUSIONS, NOTICES, NOT_DONE, DONE, LEMONS)),
        Row("Monitoring itself", (NODES_NOT_ANSWERING, BLIND, DAEMONS)),
    ),
)
