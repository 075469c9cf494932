"""What the queries of the dashboards have in common.

Only `gpuwarden_node_info` has the name of a series' node: the dashboards of many nodes join with it. The dashboard of one node
queries its instance first, and then only its own series. `cluster` is an external label: a Prometheus that
scrapes does not have it, one that gathers from many does; "All" matches both.
"""

from __future__ import annotations

from grafana_dashboards.model import Variable

CLUSTER = 'cluster=~"$cluster"'
INSTANCE = f'{CLUSTER},instance=~"$instance"'
GPU = f'{INSTANCE},gpu=~"$gpu"'
GPU_OR_NODE = f'{INSTANCE},gpu=~"$gpu|"'
"""Series of the node have an empty `gpu`, and are shown for any chosen GPU."""
TARGET = "cluster, job, instance"

NAMES = f'max by ({TARGET}, node) (gpuwarden_node_info{{{CLUSTER},node=~"$node"}})'
SILENT = (
    f'(gpuwarden:node:last_seen_timestamp_seconds{{{CLUSTER},node=~"$node"}} '
    f"and on ({TARGET}, node) gpuwarden:node:name{{{CLUSTER}}} "
    f"unless on (cluster, job, node) gpuwarden_node_info{{{CLUSTER}}})"
)
EXCLUDED = f"gpuwarden_excluded{{{CLUSTER}}} == 1"


def _names_within(within: str) -> str:
    """Return a query for the names of all machines `within` that time, those that ended meanwhile too. If two machines
    had the same address it has only one of them: a join with both would fail.
    """
    names = f'max by ({TARGET}, node) (last_over_time(gpuwarden_node_info{{{CLUSTER},node=~"$node"}}[{within}]))'
    return f"topk by ({TARGET}) (1, {names})"


def named(expr: str, within: str = "") -> str:
    """Add the name of the node, and keep only the chosen nodes: those that answer, or that did `within` this time."""
    return f"({expr}) * on ({TARGET}) group_left (node) {_names_within(within) if within else NAMES}"


def per_node(expr: str, *labels: str, within: str = "") -> str:
    """Return a query with one series for each node and value of `labels`."""
    return f"max by ({', '.join(('cluster', 'node', *labels))}) ({named(expr, within)})"


def increase(metric: str, within: str) -> str:
    """Return the increase on the chosen nodes, whether they answer or not: a machine with a termination notice is gone soon after."""
    return named(f"increase({metric}[{within}])", within)


def number(expr: str) -> str:
    """Return a query for the number of series: 0 rather than no series."""
    return f"count({expr}) or vector(0)"


def state(metric: str, selector: str, value: str) -> str:
    return f'{metric}{{{selector},state="{value}"}}'


def worst(metric: str, selector: str) -> str:
    """The state as a number, the worse the higher: 0 healthy, 1 warning, 2 unknown, 3 failure."""
    return (
        f"(0 * {state(metric, selector, 'healthy')} or {state(metric, selector, 'warning')} or 2 * {state(metric, selector, 'unknown')} "
        f"or 3 * {state(metric, selector, 'failure')})"
    )


def ranked(selector: str) -> str:
    """Active findings as numbers: 2 failure, 1 warning, 0 shadow."""
    info = "gpuwarden_finding_info"
    return (
        f'(2 * {info}{{{selector},severity="failure"}} or {info}{{{selector},severity="warning"}} '
        f'or 0 * {info}{{{selector},severity="shadow"}})'
    )


FAILING = f"{state('gpuwarden_node_health', CLUSTER, 'failure')} == 1"
STILL_IN = f"{FAILING} unless on ({TARGET}) {EXCLUDED}"
OUT = f"{FAILING} and on ({TARGET}) {EXCLUDED}"


def of_gpu(metric: str) -> str:
    """Telemetry of the chosen GPUs, without duplicates where there is a series for each job."""
    return f"max by (gpu, pci_bus_id) ({metric}{{{GPU}}})"


def of_gpu_within(function: str, metric: str) -> str:
    return f"max by (gpu, pci_bus_id) ({function}({metric}{{{GPU}}}[$__rate_interval]))"


GPU_LEGEND = "GPU {{gpu}} ({{pci_bus_id}})"

CLUSTERS = Variable(name="cluster", label="Cluster", query="label_values(gpuwarden_node_info, cluster)")
NODES = Variable(name="node", label="Node", query=f"label_values(gpuwarden_node_info{{{CLUSTER}}}, node)")
ONE_NODE = Variable(name="node", label="Node", query=NODES.query, any_of=False)
INSTANCES = Variable(
    name="instance", label="Instance", hidden=True,
    query=f'label_values(gpuwarden_node_info{{{CLUSTER},node="$node"}}, instance)',
)  # fmt: skip
GPUS = Variable(name="gpu", label="GPU", numbers=True, query=f"label_values(gpuwarden_gpu_health{{{INSTANCE}}}, gpu)")
