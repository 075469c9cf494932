"""The alerts, one row each. `page`: an operator must act now. `ticket`: an operator must act in working hours. `info`: for the record.

A node that fails and is out of scheduling is a ticket: the jobs are safe, the repair can wait for the morning. One that fails and
still gets work is a page. One that an operator took out is neither: an operator works on it already.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuwarden.health.runbooks import OWN_FAILURES, OWN_WARNINGS
from prometheus_rules.model import Alert, Group, Settings
from prometheus_rules.recording import EVERY, TREND_EVERY
from prometheus_rules.runbooks import NODE_FAILURE, NODE_WARNING, address
from prometheus_rules.texts import CHECKS, FINDING, NODE, SINCE, WHERE

PAGE, TICKET, INFO = "page", "ticket", "info"
SEVERITIES = (PAGE, TICKET, INFO)

STILL_IN = (
    "unless on (job, instance) gpuwarden:node:exclusion > 0\n"
    'unless on (job, instance) gpuwarden_excluded{cause="maintenance"} == 1'
)
"""A maintenance reservation ends by itself, and a node that is silent by then could not report it: it counts while the series is there."""
OUT = "and on (job, instance) gpuwarden:node:exclusion == 1"
NOT_PLANNED = "unless on (job, instance) gpuwarden:node:exclusion == 2"

LAST_NAME = "and on (job, instance, node) gpuwarden:node:name"
"""Excludes nodes whose address another node uses now, and former names of renamed nodes."""

_NAMED = "* on (job, instance) group_left (node) gpuwarden:node:name"


def _named(expr: str) -> str:
    """Add the name of the node where it is known. A series without one is kept rather than lost."""
    return f"({expr}) {_NAMED}\nor\n({expr}) unless on (job, instance) gpuwarden:node:name"


def alerts(s: Settings) -> tuple[Group, ...]:
    return (
        Group("gpuwarden-fleet", EVERY, tuple(_fleet(s))),
        Group("gpuwarden-failures", EVERY, tuple(_failures())),
        Group("gpuwarden-silence", EVERY, tuple(_silence(s))),
        Group("gpuwarden-warnings", EVERY, tuple(_warnings(s))),
        Group("gpuwarden-actions", EVERY, tuple(_enforcement(s))),
        Group("gpuwarden-daemon", EVERY, tuple(_daemon(s))),
        Group("gpuwarden-slow", TREND_EVERY, tuple(_trends(s))),
    )


def _fleet(s: Settings) -> Iterator[Alert]:
    t = s.pace
    since = "time() - gpuwarden:node:failing_since_timestamp_seconds"
    yield Alert(
        name="GpuwardenManyNodesFailing", severity=PAGE, keeps="10m",
        expr=f"""\
count by (job) (
  ({since} < {t.seconds("1h")} or ({since} < {t.seconds("7d")} {STILL_IN}))
  {NOT_PLANNED}
) >= on (job) gpuwarden:fleet:many""",
        summary="{{ $value }} nodes of {{ $labels.job }} fail at once: suspect what they have in common, not the GPUs.",
        description=CHECKS + "A driver, a firmware, a switch, a power feed or a rule changed within the last hour? "
        "Pages for single nodes are inhibited while this fires.",
    )  # fmt: skip
    yield Alert(
        name="GpuwardenManyNodesSilent", severity=PAGE, lasts="1m", keeps="10m",
        expr=f"""\
count by (job) (
  (time() - gpuwarden:node:last_seen_timestamp_seconds > {t.seconds("2m")})
  {LAST_NAME}
  {STILL_IN}
  unless on (job, node) gpuwarden_node_info
) >= on (job) gpuwarden:fleet:many""",
        summary="{{ $value }} nodes of {{ $labels.job }} stopped answering: suspect network, power, service discovery or a rollout.",
        description="Prometheus reaches none of them, and none was excluded from scheduling. Their GPUs are not monitored from here; "
        "the daemons, if they run, continue to enforce on their own. Pages for single nodes are inhibited while this fires.",
    )  # fmt: skip
    yield Alert(
        name="GpuwardenBreakerOpen", severity=PAGE, lasts="1m", keeps="5m",
        expr="sum by (job) (gpuwarden_breaker_open) > 0",
        summary="The breaker of {{ $labels.job }} is open: {{ $value }} nodes fail, and are kept in service since too many are out.",
        description=CHECKS + "gpuwarden takes no further node out until the budget allows it; the failing nodes get work. gpuwarden status "
        "on such a node names the limit: a share of all nodes (breaker.percent), nodes within an hour (breaker.count), or nodes of one "
        "NVLink domain (breaker.domain), where dead nodes that wait for parts count, too. gpuwarden exclude takes a node out in any case.",
    )  # fmt: skip
    yield Alert(
        name="GpuwardenNoTargets", severity=PAGE, lasts="10m",
        expr=f'absent(up{{job="{s.job}"}})',
        summary="Prometheus has no series of gpuwarden: it scrapes nothing under the job {{ $labels.job }}.",
        description="Service discovery lost every target, or the job has another name than these rules expect "
        "(tools/rules.py --job). No GPU is monitored from here.",
    )  # fmt: skip


STILL_IN_TEXT = (
    "This node is still in scheduling: gpuwarden is in mode observe, has no scheduler here, cannot reach it, its breaker is "
    "open, or an operator overrode the failure. On the node: gpuwarden status."
)
OUT_TEXT = (
    "The node is out of scheduling, so that no new work comes to it; running jobs may continue. It comes back once it is healthy, or "
    "by an operator where status says so."
)


def _failures() -> Iterator[Alert]:
    lasts = {"gpu_missing": "2m", "driver_unresponsive": "2m", "memory_degrading": "3m"}
    rows = (
        (NODE_FAILURE, f'severity="failure",check!~"{"|".join(OWN_FAILURES)}"', "3m", address()),
        *((name, f'severity="failure",check="{check}"', lasts[check], "") for check, name in OWN_FAILURES.items()),
    )
    for name, selector, held, runbook in rows:
        for severity, who, texts in ((PAGE, STILL_IN, STILL_IN_TEXT), (TICKET, OUT, OUT_TEXT)):
            yield Alert(
                name=name, severity=severity, lasts=held, keeps="5m",
                expr=f"gpuwarden:finding:active{{{selector}}}\n{who}",
                summary=f"{WHERE}: {FINDING}.",
                description=texts, runbook=runbook,
            )  # fmt: skip


def _silence(s: Settings) -> Iterator[Alert]:
    t = s.pace
    beat = "gpuwarden_heartbeat_timestamp_seconds"
    yield Alert(
        name="GpuwardenNodeSilent", severity=PAGE, lasts="8m", keeps="2m",
        expr=f"""\
(time() - gpuwarden:node:last_seen_timestamp_seconds > {t.seconds("2m")})
{LAST_NAME}
{STILL_IN}
unless on (job, node) gpuwarden_node_info""",
        summary=f"{NODE} has been silent for {SINCE}: the node, its network or gpuwarden is down. To do: check whether the "
        "host is up; if it is not, power-cycle it.",
        description='{{ with query (printf "up{job=%q,instance=%q}" $labels.job $labels.instance) }}Its target exists and does '
        "not answer.{{ else }}Its target is gone from service discovery.{{ end }} It was not excluded from scheduling before.",
    )  # fmt: skip
    stale = f"""\
(changes({beat}[{t("5m")}]) == 0 and count_over_time({beat}[{t("5m")}]) >= 4 and {beat})
{STILL_IN}"""
    yield Alert(
        name="GpuwardenHeartbeatStale", severity=PAGE, lasts="2m", keeps="2m",
        expr=_named(stale),
        summary=f"gpuwarden on {NODE} answers, but has not read its GPUs for five minutes or more. To do: on the node, gpuwarden status.",
        description="The driver hangs, or the process that reads it does. The node is unknown meanwhile: readers of the heartbeat "
        "give it no work, a scheduler does.",
    )  # fmt: skip
    yield Alert(
        name="GpuwardenHeartbeatAbsent", severity=PAGE, lasts="15m",
        expr=_named(f"gpuwarden_gpus_expected > 0 unless on (job, instance) {beat}\n{STILL_IN}"),
        summary=f"gpuwarden on {NODE} has not read a GPU since it started, and {{{{ $value }}}} are expected. To do: on the node, "
        "gpuwarden status; is the driver loaded?",
        description="A slow boot takes ten minutes, this took longer.",
    )  # fmt: skip
    yield Alert(
        name="GpuwardenTargetDown", severity=TICKET, lasts="1h",
        expr=f"""\
up{{job="{s.job}"}} == 0
unless on (job, instance) gpuwarden:node:name
{NOT_PLANNED}""",
        summary="{{ $labels.instance }} is a target of Prometheus and was not reached within the last 24 hours.",
        description="A new node on which gpuwarden does not run or is blocked, or an old one that was neither repaired nor "
        "removed from service discovery.",
    )  # fmt: skip
    # Chosen, not measured: a loss is two changes, and a reboot or an upgrade is one or two losses.
    yield Alert(
        name="GpuwardenTargetDown", severity=TICKET,
        expr=f"""\
(changes(up{{job="{s.job}"}}[{t("1h")}]) >= 10) {_NAMED}
{NOT_PLANNED}""",
        summary=f"{NODE} answers only now and then: it was lost five times or more within an hour. To do: on the node, journalctl -u gpuwarden.",
        description="gpuwarden is started again and again there, the node has no time for it, or its network fails: no silence lasts long "
        "enough for a page. What must be seen for a while before it is a finding may not be found.",
    )  # fmt: skip
    yield Alert(
        name="GpuwardenNodeUnknown", severity=TICKET, lasts="30m", keeps="5m",
        expr=f'(gpuwarden_node_health{{state="unknown"}} == 1) {_NAMED}\n{NOT_PLANNED}',
        summary=f"{NODE} has been unknown for half an hour: the health of its GPUs cannot be read. To do: on the node, gpuwarden status "
        "names the reason.",
        description="Unknown does not count as healthy: readers of the heartbeat give it no work.",
    )  # fmt: skip


OF_LINES = ("adapter_failed", "gsp_not_answering")
"""Warnings made of lines of the kernel log, about what does not pass by itself: they end an hour after the last line, whether or not the
fault is over, and few lines may come.
"""


def _warnings(s: Settings) -> Iterator[Alert]:
    t = s.pace

    def held(selector: str, hours: str) -> str:
        """Return a query that holds if the finding was active that long in the last 24 h, in one piece or in many, and
        within the last hour.
        """
        series = f"gpuwarden:finding:active{{{selector}}}"
        counted = f"count_over_time({series}[{t('24h')}]) * {t.seconds(EVERY)} > {t.seconds(hours)}"
        return f"({counted})\nand count_over_time({series}[{t('1h')}])\n{NOT_PLANNED}"

    rest = "|".join((*sorted(OWN_WARNINGS), *OF_LINES))
    hours = {
        "ecc_correctable_rate": "4h",
        "row_remap_pending": "4h",
        "gpu_slow": "1h",
        "gpu_misconfigured": "1h",
        "lemon_node": "1h",
    }
    rows = (
        (NODE_WARNING, f'severity="warning",check!~"{rest}"', "4h", address()),
        (NODE_WARNING, f'severity="warning",check=~"{"|".join(OF_LINES)}"', "30m", address()),
        *((OWN_WARNINGS[check], f'check="{check}",severity="warning"', least, "") for check, least in hours.items()),
    )
    for name, selector, least, runbook in rows:
        yield Alert(
            name=name, severity=TICKET,
            expr=held(selector, least),
            summary=f"{WHERE}: {FINDING}.",
            description=f"Seen for {SINCE} of the last 24 hours. The node still takes work: nothing is done about a warning.",
            runbook=runbook,
        )  # fmt: skip
    yield Alert(
        name="GpuwardenJobStalled", severity=TICKET, keeps="5m",
        expr='count by (job, detail) (gpuwarden_finding_info{check="job_stalled",severity="warning"})',
        summary="{{ $labels.detail }} is busy and does nothing on {{ $value }} nodes of {{ $labels.job }}. To do: send stacks of "
        "its ranks to its owner, then have it restarted.",
        description="All its GPUs on a node are busy at a small share of the power and activity of its own past: its ranks wait for each "
        "other. NCCL's watchdog ends it after ten minutes, if it is on. The nodes are not accused and take work.",
    )  # fmt: skip


def _enforcement(s: Settings) -> Iterator[Alert]:
    yield Alert(
        name="GpuwardenExclusionNotDone", severity=TICKET, lasts="15m", keeps="5m",
        expr=f"(gpuwarden_intents_pending > 0 unless gpuwarden_breaker_open == 1) {_NAMED}",
        summary=f"gpuwarden has an intent pending for {NODE}. To do: on the node, gpuwarden status "
        "shows it, and the scheduler's error.",
        description="The scheduler is unreachable, hangs, or refuses for lack of permission. A node to be taken out still gets work; one "
        "to be brought back stays idle. It is tried again all the time.",
    )  # fmt: skip
    yield Alert(
        name="GpuwardenExclusionForgotten", severity=TICKET, lasts="7d",
        expr=f"""\
(gpuwarden:node:exclusion > 0 unless on (job, instance) gpuwarden:node:failing_since_timestamp_seconds) {_NAMED}
unless on (job, instance) gpuwarden_termination_deadline_timestamp_seconds > time() - {s.pace.seconds("24h")}""",
        summary=f"{NODE} has been out of scheduling for a week, without any finding. To do: restore it, or ask who "
        "excluded it.",
        description="gpuwarden never lifts the exclusion of an operator or another party. An announced end that did not come: gpuwarden "
        "notify-termination --cancel.",
    )  # fmt: skip
    yield Alert(
        name="GpuwardenFailureOverridden", severity=TICKET, keeps="5m",
        expr=f"(gpuwarden_failures_overridden > 0) {_NAMED}",
        summary=f"{NODE} gets work despite {{{{ $value }}}} active failures: an operator overrode them (gpuwarden restore --force). To do: on "
        "the node, gpuwarden status names them and the operator; repair the node, or gpuwarden exclude.",
        description="These failures do not take the node out again until each has ended, until the next boot, or until gpuwarden exclude. "
        "A new failure does.",
    )  # fmt: skip
    yield Alert(
        name="GpuwardenRepairGaveUp", severity=TICKET, lasts="5m",
        expr=f'(gpuwarden_repair_state{{state="person"}} == 1) {_NAMED}',
        summary=f"gpuwarden repaired {NODE}, and the fault remains. To do: gpuwarden status names the finding and the steps; "
        "open a case with the vendor.",
        description="No step is left within a day: the node stays out until a person repairs and restores it.",
    )  # fmt: skip
    yield Alert(
        name="GpuwardenTerminationNotice", severity=INFO,
        expr=f"(gpuwarden_termination_notice == 1) {_NAMED}",
        summary=f"The end of {NODE} is announced ({{{{ $labels.kind }}}}, by {{{{ $labels.source }}}}).",
        description="gpuwarden signals jobs and drains the node as configured. Nothing to do on a spot fleet; on reserved machines "
        "check whether the maintenance was planned.",
    )  # fmt: skip


def _daemon(s: Settings) -> Iterator[Alert]:
    t = s.pace
    yield Alert(
        name="GpuwardenDaemonBlind", severity=TICKET, lasts="5m",
        expr=f"(avg_over_time(gpuwarden_collector_up[{t('15m')}]) < 0.5) {_NAMED}",
        summary=f"gpuwarden on {NODE} cannot read a source: its collector {{{{ $labels.collector }}}} fails. To do: on the node, "
        "gpuwarden status says why.",
        description="The source exists there and cannot be read. Faults that only this source shows are not seen meanwhile.",
    )  # fmt: skip
    yield Alert(
        name="GpuwardenTerminationSourceDown", severity=TICKET, lasts="10m",
        expr=f"(avg_over_time(gpuwarden_termination_source_up[{t('30m')}]) < 0.5) {_NAMED}",
        summary=f"{NODE} gets no termination notice: {{{{ $labels.source }}}} does not answer. To do: check that the metadata service "
        "can be reached from the node; gpuwarden status has its error.",
        description="Jobs there get no warning before a spot reclaim or a maintenance.",
    )  # fmt: skip
    yield Alert(
        name="GpuwardenRecordsLost", severity=TICKET,
        expr=f"""\
(
    increase(gpuwarden_dropped_total[{t("15m")}]) > 0
  or
    label_replace(increase(gpuwarden_kernel_log_lost_records_total[{t("15m")}]) > 0, "what", "kernel_log", "", "")
) {_NAMED}""",
        summary=f"gpuwarden on {NODE} lost records ({{{{ $labels.what }}}}). To do: see the runbook for what was lost and what to check.",
        description="Judging continues. Lost records are missing from the history; lost kernel log records were never read: an Xid may "
        "be among them.",
    )  # fmt: skip
    yield Alert(
        name="GpuwardenSimulated", severity=TICKET, lasts="5m",
        expr=f"(gpuwarden_simulated == 1) {_NAMED}",
        summary=f"gpuwarden on {NODE} runs on simulated GPUs: real ones, if there are any, are not monitored. To do: "
        "start it without --simulate.",
        description="All data of this daemon is simulated. It never acts on a scheduler.",
    )  # fmt: skip
    yield Alert(
        name="GpuwardenObserveMode", severity=INFO, lasts="7d",
        expr="count by (job) (gpuwarden_enforcing == 0) and on (job) gpuwarden_enforcing == 1",
        summary="{{ $value }} nodes of {{ $labels.job }} have been in mode observe for a week, while others enforce.",
        description="There gpuwarden only shows what it would do. List them: gpuwarden_enforcing == 0.",
    )  # fmt: skip


def _trends(s: Settings) -> Iterator[Alert]:
    t = s.pace
    where = f"GPU {{{{ $labels.gpu }}}} ({{{{ $labels.UUID }}}}) of {NODE}"
    excess, window = "gpuwarden:gpu:temperature_excess_celsius", t("12h")
    yield Alert(
        name="GpuwardenThermalTrend", severity=TICKET,
        expr=f"""\
(
  avg_over_time({excess}[{window}]) - avg_over_time({excess}[{window}] offset {t("7d")}) > 8
  and count_over_time({excess}[{window}]) >= 12
  and count_over_time({excess}[{window}] offset {t("7d")}) >= 12
) {_NAMED}
{NOT_PLANNED}""",
        summary=f'{where} runs {{{{ printf "%.0f" $value }}}} °C warmer against its neighbours than a week ago. To do: plan a check of '
        "its fan, heat sink or cold plate, and at blocked air.",
        description="Compared with the median of its node under load, so that room and work drop out. It is not too hot yet.",
    )  # fmt: skip
    rows = "max by (job, instance, gpu, UUID, pci_bus_id) (DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS)"
    before = f"max by (job, instance, UUID) (last_over_time(DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS[{t('1h')}] offset {t('7d')}))"
    yield Alert(
        name="GpuwardenRowRemapTrend", severity=TICKET,
        expr=f"""\
(
  {rows}
  - on (job, instance, UUID) group_left ()
  {before}
  >= 8
) {_NAMED}
{NOT_PLANNED}""",
        summary=f"{where} remapped {{{{ $value }}}} memory rows within a week for corrected errors. To do: plan its replacement, and "
        "collect what the vendor asks for.",
        description="Each single remapping did its work. So many of them in a week show that the memory wears out.",
    )  # fmt: skip
