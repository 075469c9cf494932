"""Writes the tables of `docs/` from the tables of the code: `make docs`. A test keeps both equal."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import collectors_page
import configuration_page
import runbook_pages
from gpuwarden.base.durations import format_duration
from gpuwarden.cli.main import INTERNAL, UNWRITTEN, VERBS
from gpuwarden.cli.parser import CANNOT_CREATE, NOT_ALLOWED, TRY_AGAIN, UNAVAILABLE, USAGE
from gpuwarden.cli.replay_main import DAMAGED, NO_INPUT
from gpuwarden.health.condition import Condition
from gpuwarden.health.conditions import CONDITIONS
from gpuwarden.health.dcgm.catalogue import DCGM_CODES, DcgmCode
from gpuwarden.health.gpu.driver_detectors import CONTRADICTED
from gpuwarden.health.model import Advice
from gpuwarden.health.nvlink import nvlink5
from gpuwarden.health.nvlink.nvlink5_catalogue import NVLINK5_RULES, Nvlink5Rule
from gpuwarden.health.runbooks import place
from gpuwarden.health.to_do import COMMON, first_sentence, of_condition, of_sxid, of_xid
from gpuwarden.health.view import Rules
from gpuwarden.health.xid import rules as xid_rules
from gpuwarden.health.xid import sxid_rules
from gpuwarden.health.xid.catalogue import XIDS, Xid
from gpuwarden.health.xid.sxid_catalogue import SXIDS
from gpuwarden.health.xid.sxid_rules import first_class
from gpuwarden.publish.metrics.chosen import BY_DEFAULT
from gpuwarden.publish.metrics.dcgm_names import FIELDS, OF_EXPORTER, OF_INSTANCES, PREFIX, Field, Telemetry
from gpuwarden.publish.metrics.row import Metric
from gpuwarden.publish.metrics.table import METRICS
from gpuwarden.publish.web.endpoints import ENDPOINTS
from gpuwarden_collectors.nvml.readings import CALLS, LINK_SUMS, VITAL, Cadence, Call
from gpuwarden_collectors.nvml.readings import FIELDS as FIELD_VALUES
from gpuwarden_collectors.nvml.readings import Field as FieldValue
from prose import wrapped

ROWS: dict[str, Call | FieldValue] = {name: row for row in (*VITAL, *CALLS) for name in row.into} | {
    row.into: row for row in FIELD_VALUES
}
"""The row of the table of readings by attribute."""

MOST_OF_GPUS, MOST_HEALTHY, MOST_WITH_NOTICES, MOST_WITH_FAULTS = 450, 470, 500, 720
MOST_SERIES, MOST_FULL, MOST_WITH_PODS_AND_SLURM = 1840, 1580, 1595
"""Limit for 8 GPUs, which a test checks."""

DOCS = Path(__file__).parents[1] / "docs"
MADE = "<!-- Made by `make docs` from the tables of the code; edit those. -->\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def conditions() -> str:
    rows = [
        (
            f"[`{c.code}`](../use/runbooks/{place(c.code)})",
            c.scope,
            f"{c.severity.value}{', in shadow' * c.shadow}",
            timing(c),
            c.latch.value,
            f"**{c.title}.** {c.why}",
            c.source,
        )
        for c in CONDITIONS.values()
    ]
    return (
        "# Conditions\n\n"
        "Reference of everything that can be wrong for a while, for those who read a finding or change how it counts.\n\n"
        "```\ngpuwarden explain gpu_missing      # the same row: what it is, why, what to do\n```\n\n"
        "```toml\n[checks.pcie_link_degraded]\nshadow = true                      # reported, and no action follows\n```\n\n"
        "*Severity* is the worst it can have; in shadow, it is only reported. *Rise*: how long it must be observed "
        "before it is a finding; *fall*: how long it must be checked and not observed before the finding ends. A latched "
        "finding ends with what *latch* names, or with `gpuwarden ack`. A finding that was raised five times within an hour stays until it "
        "was quiet for an hour. A site may set `enabled`, `shadow`, `rise`, `fall` and `severity` under `[checks.CODE]`. A code leads to its [runbook](../use/runbooks/README.md).\n\n"
        + MADE
        + "\n"
        + table(("code", "of", "severity", "rise / fall", "latch", "what and why", "source"), rows)
        + "\n## When a GPU counts as missing\n\n"
        + "For `gpu_missing` the sign decides how long it must be seen.\n\n"
        + table(("sign", "counts after"), _missing_signs())
    )


def _missing_signs() -> Iterable[tuple[str, str]]:
    grace = format_duration(Rules().missing_grace)
    return (
        ("it is not on the PCI bus, or its configuration space reads 0xFFFFFFFF", "0s: in the pass that sees it"),
        ("the same, but NVML still has an answer of it", f"{format_duration(CONTRADICTED)}: two passes"),
        (
            "another slot of the bus has a GPU that NVML has not named yet, as after a boot with one card more",
            "0s, once NVML lists GPUs",
        ),
        ("NVML does not list it, or says that it is lost, since an Xid 79 of it in this boot", "0s"),
        (
            "NVML does not list it, or says that it is lost; the bus still shows it, or cannot be read",
            f"{grace}: what a driver reload, a reset or a MIG change takes",
        ),
        ("fewer GPUs were ever seen than `inventory.expected_gpus` says (a finding of the node)", grace),
        ("NVML lists no GPU at all, or cannot be read", "never: see `driver_not_loaded`, `driver_unresponsive`"),
    )


def timing(condition: Condition) -> str:
    return f"{format_duration(condition.rise)} / {format_duration(condition.fall)}"


XID_HEAD = (
    "Xid", "meaning", "class", "repeated", "vendor's action", "what to do", "if it recurs", "note", "where it comes from",
)  # fmt: skip
NVLINK5_HEAD = (
    "Xid", "unit", "its number before R575; since", "sub-code", "error status", "severity", "vendor's action", "class", "then",
)  # fmt: skip


def xids() -> str:
    switch = [
        (str(x.sxid), x.meaning, first_class(x, None).value, of_sxid(x.advice), _then(x.escalation), x.note)
        for x in SXIDS.values()
    ]
    return (
        "# Xids and SXids\n\n"
        "Reference of the driver's error numbers, of GPUs and NVSwitches: how each is classified, and what to do.\n\n"
        "```\ngpuwarden explain xid 79           # the same row: class, advice, note\n```\n\n"
        '```toml\n[xids.43]\nseverity = "warning"               # another class for this number\n```\n\n'
        "*record*: kept in the history, the GPU stays healthy. *warning*: reported. *failure*: the node is taken out. "
        "*Repeated*: the class of one that keeps coming back. *If it recurs*: what to do if it comes back after the advice was "
        "followed. A number that is not listed is a warning. A site gives a number another class or advice with "
        "`[xids.N]` and `[sxids.N]`.\n\n"
        + MADE
        + "\n"
        + table(XID_HEAD, map(_xid, XIDS.values()))
        + "\n## Other checks\n\n"
        + _rules_of(xid_rules.__doc__ or "")
        + "\n## NVLink 5 (Xids 144 to 150)\n\n"
        + _paragraphs(nvlink5.__doc__ or "")
        + "\n"
        + table(NVLINK5_HEAD, map(_nvlink5_rule, NVLINK5_RULES))
        + "\n## NVSwitch (SXid)\n\n"
        + _rules_of(sxid_rules.__doc__ or "")
        + "\n"
        + table(("SXid", "meaning", "class", "what to do", "if it recurs", "note"), switch)
    )


def _xid(x: Xid) -> tuple[str, ...]:
    return (
        str(x.xid), x.meaning, x.klass.value, x.repeated.value if x.repeated else "", x.action, of_xid(x.xid, x.advice),
        _then(x.escalation), x.note, x.provenance,
    )  # fmt: skip


def _then(escalation: Advice) -> str:
    return "" if escalation is Advice.NONE else first_sentence(COMMON[escalation])


def _nvlink5_rule(rule: Nvlink5Rule) -> tuple[str, ...]:
    wide = ", one bit wider" if rule.wide else ""
    return (
        str(rule.xid), ", ".join(rule.units), f"{rule.before}; {rule.since}{wide}", str(rule.sub_code), f"{rule.status:#x}",
        rule.severity, rule.action, rule.klass.value, rule.follow_up,
    )  # fmt: skip


def _rules_of(text: str) -> str:
    """The table and the end of a docstring, without its title; names of modules mean nothing to operators."""
    body = text.partition("\n\n")[2]
    return re.sub(r" ?\(`\w+\.py`\)", "", body).strip() + "\n"


def _paragraphs(text: str) -> str:
    """The body of a docstring, each paragraph as one line."""
    return "\n\n".join(" ".join(part.split()) for part in text.strip().split("\n\n")[1:]) + "\n"


DCGM_HEAD = (
    "code", "name", "meaning", "the vendor: severity; next step", "at worst", "of", "alone after", "what to do", "note",
)  # fmt: skip


def dcgm_codes() -> str:
    rows = [_dcgm_code(code) for code in sorted(DCGM_CODES.values(), key=lambda code: not code.passive)]
    return (
        "# The codes of DCGM\n\n"
        "Reference of DCGM's incidents: how gpuwarden classifies each. How DCGM is used: [dcgm.md](../use/dcgm.md).\n\n"
        "```\ngpuwarden explain dcgm 52          # the same row: class, advice, note\n```\n\n"
        "Codes of passive health checks come first, then those of diagnostics. *At worst*: an incident has the milder of this "
        "severity and DCGM's level; *healthy* is only quoted as evidence, never a finding. *Of*: the finding it belongs to. "
        "*Alone after*: how long DCGM must report it if NVML is read and does not show it.\n\n"
        + MADE
        + "\n"
        + table(DCGM_HEAD, rows)
    )


def _dcgm_code(code: DcgmCode) -> tuple[str, ...]:
    alone = "never" if code.lasts == math.inf else format_duration(code.lasts)
    return (
        str(code.code), f"`{code.name}`", code.meaning, f"{code.severity}; {code.action}".strip("; "), code.worst.value,
        f"`{code.condition}`", alone if code.passive else "", of_condition(code.condition, code.advice), code.note,
    )  # fmt: skip


def metrics() -> str:
    own = [(f"`{m.name}`", _by_default(m), m.kind, ", ".join(m.labels), m.help) for m in METRICS]
    dcgm = [
        (
            f"`{PREFIX}{f.name}`",
            "yes" if PREFIX + f.name in BY_DEFAULT else "",
            f.kind,
            "each instance" if f.name in OF_INSTANCES else "GPU",
            age(f),
            f.help,
        )
        for f in FIELDS
    ]
    return (
        "# Metrics\n\n"
        "Reference of every series on `/metrics`, for those who write queries, alerts and dashboards "
        "(existing ones: [grafana/README.md](../../grafana/README.md)).\n\n"
        "```\ncurl -s localhost:9839/metrics | grep '^gpuwarden_node_health'\n"
        'gpuwarden_node_health{state="healthy"} 1\n```\n\n'
        "| setup, with 8 GPUs and 12 ports (counted in tests) | series at most |\n| --- | --- |\n"
        f"| by default, a healthy node without ports, DCGM and Slurm | {MOST_OF_GPUS:,} |\n"
        f"| by default, a healthy node, with Slurm or without | {MOST_HEALTHY:,} |\n"
        f"| the same with two sources of termination notices | {MOST_WITH_NOTICES:,} |\n"
        f"| by default, with everything on and many faults | {MOST_WITH_FAULTS:,} |\n"
        f'| `publish.series = "full"`; with `kubernetes.pod_labels` on a node without Slurm | {MOST_FULL:,} |\n'
        f"| full, with Slurm jobs and labelled pods | {MOST_WITH_PODS_AND_SLURM:,} |\n"
        f"| full, with everything on and many faults | {MOST_SERIES:,} |\n\n"
        "`publish.series` chooses what is served. `\"default\"`: dcgm-exporter's default counters, and what gpuwarden's rules, dashboards, commands and breaker read; these rows have *yes* in "
        'the column *default*. *Above 0*: by default a series of value 0 is left out; while the node answers, no series means 0. `"full"`: all rows. A list of names: these and no others, with their zeros, where '
        '`"default"` stands for its whole set:\n\n'
        '```toml\n[publish]\nseries = ["default", "DCGM_FI_PROF_SM_ACTIVE"]\n```\n\n'
        f"With MIG on, {len(OF_INSTANCES)} of the telemetry series of a GPU are given for each of its instances instead, with the labels `GPU_I_PROFILE` and `GPU_I_ID`; the "
        f"series of the GPU itself lack them then, unless `publish.mig_series` is `gpus` or `both`. So a query without these labels counts instances, not GPUs. If jobs or pods are labels, dcgm-exporter's default counters have them, and no others: each new job or pod makes a new series of each of these {len(OF_EXPORTER)}, and each further one on a GPU adds a copy. "
        "Join others with `gpuwarden_gpu_job_info`. The series of a GPU end when the GPU is gone; those of gpuwarden's own metrics keep the labels of a lost GPU.\n\n"
        "Counters that the ledger keeps continue after a restart of the daemon: `gpuwarden_xid_total`, "
        "`gpuwarden_jobs_acknowledged_total`, `gpuwarden_test_runs_total`, and `gpuwarden_intents_total` except for retry and refused. All other counters restart at 0, which `rate` and `increase` "
        "handle. The age of the readings is `time() - gpuwarden_heartbeat_timestamp_seconds` for GPUs and "
        "`time() - gpuwarden_collector_last_success_timestamp_seconds` for each source.\n\n"
        + MADE
        + "\n## gpuwarden's own\n\n"
        "Only `gpuwarden_node_info` has a label for the node: join others with it on `job` and `instance`.\n\n"
        + table(("name", "default", "type", "labels", "meaning"), own)
        + "\n## GPU telemetry under the names of dcgm-exporter\n\n"
        "Labels, in this order: `gpu`, `UUID`, `pci_bus_id`, `device`, `modelName`, for a MIG instance `GPU_I_PROFILE` and "
        "`GPU_I_ID`, then `Hostname` (or `hostname`: `publish.hostname_label`), `DCGM_FI_DRIVER_VERSION`, and "
        "`hpc_job` if jobs are a label. In OpenMetrics the counters have the type unknown, so that their names stay the same. "
        "More on this, and on the change from dcgm-exporter: [dcgm-exporter.md](../use/dcgm-exporter.md).\n\n"
        "The column *age* shows how old a value may be while its GPU responds:\n\n"
        "- *pass*: the value is read in each pass (`collectors.nvml.interval`, 5 s).\n"
        "- *1m*, *2m*, *1d*: reading the value costs the driver more. It is read often enough that it never grows older than this; these reads are spread over the passes.\n"
        "- *pass while …*: it is read in each pass as long as that holds, and once more afterwards.\n\n"
        "All values of a GPU that is new, was away, was reset or has another board are read in its first pass, except those of *1d*, which are read of one GPU in each pass. "
        "Counters with an age of a minute, such as energy, grow in steps of that length: use `rate` and `increase` over two minutes or more. "
        "A value that could not be read again has no series. Values from DCGM are as old as DCGM's last pass. If the passes stop, all series end after three intervals: no value "
        "older than three of its own readings is served.\n\n"
        + table(("name", "default", "type", "labels of", "age", "meaning"), dcgm)
    )


def _by_default(metric: Metric) -> str:
    if not metric.default:
        return ""
    return "yes" if metric.zeros else "above 0"


class _Recorded:
    """Readings that record which of them are read."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __getattr__(self, name: str) -> int:
        self.names.append(name)
        return 0


AGES = {cadence: format_duration(cadence) for cadence in Cadence} | {Cadence.PASS: "pass"}
NOT_READINGS = {"DEV_XID_ERRORS": "at once", "DEV_MEMORY_UNREPAIRABLE_FLAG": "pass of DCGM"}


def age(field: Field) -> str:
    """Return how old the field's value may be, by the cadence of the readings that it is made of."""
    recorded = _Recorded()
    field.read(Telemetry(recorded))
    rows = [ROWS[name] for name in recorded.names if name in ROWS]
    oldest = AGES[max((row.cadence for row in rows), default=Cadence.PASS)]
    if any(name in LINK_SUMS for name in recorded.names):
        summed = AGES[Cadence.MINUTE]
        return f"{oldest}; {summed} where it is summed over the links" if rows else summed
    triggers = {f"; {AGES[Cadence.PASS]} {row.trigger.text}" for row in rows if row.trigger is not None}
    return NOT_READINGS.get(field.name, oldest + "".join(sorted(triggers)))


def configuration() -> str:
    return configuration_page.configuration(MADE, table)


COMMANDS = """\
# Commands

Reference of the subcommands of `gpuwarden`. `gpuwarden COMMAND --help` lists the options and examples of one; the man page gpuwarden(1) has all of them.

```
gpuwarden status            # verdict, findings and what to do, from the running daemon
gpuwarden explain xid 79    # what an Xid or a finding means
```

"""
PAGE_OF = {
    "dstack-interposer": "use/dstack.md", "fleet": "use/fleet.md", "nvhcd": "use/nvhcd.md", "service": "use/install.md#the-service-without-a-package", "repair": "use/repair.md", "slurm": "use/slurm.md", "test": "use/active-tests.md",
}  # fmt: skip
"""The page about a verb, if it has one of its own."""
EXIT_CODES = (
    (
        "0, 1, 2, 3",
        "`check`, `status`, `watch`, `fleet`",
        "healthy, warning, failure, unknown; also 3 where no daemon (`status`, `watch`) or no Prometheus (`fleet`) answers",
    ),
    ("0, 1, 2, 3", "`test`", "nothing found, warning, failure, no verdict"),
    ("0, 3", "`repair`", "the step begins, or with `--dry-run` nothing forbids it; something forbids it"),
    ("0, 1, 2", "`doctor`", "all rows are ok, one warns, one fails"),
    (f"{USAGE}", "all", "bad usage or configuration"),
    (f"{DAMAGED}, {NO_INPUT}", "`replay`", "the trace is damaged, of a newer format or no trace; it cannot be read"),
    (
        f"{UNAVAILABLE}",
        "all",
        "what is needed is not there. A command that asks the daemon, except `status` and `watch`: none answers (not running, or another `--run-dir`: `systemctl status gpuwarden`). `run`: another process has its run directory, or, without systemd, its address. `events` without a daemon: the ledger cannot be read. The message says which",
    ),
    (f"{INTERNAL}", "all", "a bug in gpuwarden"),
    (f"{CANNOT_CREATE}", "`record`, `bundle`", "the file cannot be written; of `bundle` also: it exists already"),
    (f"{UNWRITTEN}", "all", "the output cannot be written, as to a full disk"),
    (f"{TRY_AGAIN}", "all", "no response in time; try again"),
    (f"{NOT_ALLOWED}", "all", "not permitted"),
)


def commands() -> str:
    rows = [
        (f"`gpuwarden {verb}`", f"{about}; see [{Path(page.partition('#')[0]).name}](../{page})" if page else about)
        for verb, (_, about) in VERBS.items()
        for page in (PAGE_OF.get(verb),)
    ]
    codes = table(("code", "of", "means"), EXIT_CODES)
    return f"{COMMANDS}{MADE}\n{table(('command', 'does'), rows)}\n## Exit codes\n\n{codes}"


def endpoints() -> str:
    rows = [(f"`{e.path}{e.query}`", e.about, e.answer) for e in ENDPOINTS]
    return (
        "# Endpoints\n\n"
        "Reference of what the daemon serves on `publish.listen` (default `0.0.0.0:9839`), for those who query it.\n\n"
        "```\ncurl -s localhost:9839/heartbeat\n```\n\n"
        "All pages are read-only: `GET` and `HEAD`; a request with a body gets 413. TLS, passwords and limits: "
        '[serving.md](../use/serving.md). Errors are JSON: `{"error": "…"}`; a request that is not valid HTTP gets 400 with a text. JSON may gain keys; none is renamed. Names of users and '
        "jobs are in it only with `publish.publish_jobs`. Commands that change the daemon use its Unix socket: "
        "[commands.md](commands.md).\n\n" + MADE + "\n" + table(("page", "contains", "answer"), rows)
    )


_MAKERS: Mapping[str, Callable[[], str]] = {
    "reference/collectors.md": lambda: collectors_page.collectors(MADE, table), "reference/commands.md": commands, "reference/configuration.md": configuration, "reference/conditions.md": conditions, "reference/xids.md": xids, "reference/dcgm-codes.md": dcgm_codes, "reference/metrics.md": metrics,
    "reference/endpoints.md": endpoints,
    **runbook_pages.pages(MADE, table),
}  # fmt: skip


def _wrapped(make: Callable[[], str]) -> str:
    return wrapped(make())


PAGES = {name: partial(_wrapped, make) for name, make in _MAKERS.items()}
"""The function that makes each page, by its file below docs/."""


def main() -> None:
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
