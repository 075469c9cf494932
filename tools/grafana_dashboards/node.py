"""Node: what is wrong with one machine, GPU by GPU."""

from __future__ import annotations

from grafana_dashboards import texts
from grafana_dashboards.model import BLUE, GREEN, ORANGE, RED, Column, Kind, Page, Panel, Query, Row
from grafana_dashboards.queries import (
    CLUSTERS,
    GPU,
    GPU_LEGEND,
    GPU_OR_NODE,
    GPUS,
    INSTANCE,
    INSTANCES,
    ONE_NODE,
    of_gpu,
    of_gpu_within,
    ranked,
    worst,
)

LIMIT = "limit"
_NODE_STATE = f"max by (cluster) ({worst('gpuwarden_node_health', INSTANCE)})"

NOW = (
    Panel(
        title="Health", kind=Kind.STAT, width=3, height=4, text="gpuwarden's verdict of the node.",
        queries=(Query(_NODE_STATE),), texts=texts.HEALTH, none="silent",
    ),
    Panel(
        title="Takes work", kind=Kind.STAT, width=3, height=4, text="Whether the node may take work, according to gpuwarden.",
        queries=(Query(f"min(gpuwarden_schedulable{{{INSTANCE}}})"),), texts=texts.GETS_WORK, none="silent",
    ),
    Panel(
        title="GPUs", kind=Kind.STAT, width=4, height=4, text="GPUs that are present, and that are expected.",
        queries=(
            Query(f"sum(gpuwarden_gpus_present{{{INSTANCE}}})", "here"),
            Query(f"sum(gpuwarden_gpus_expected{{{INSTANCE}}})", "expected"),
        ),
    ),
    Panel(
        title="GPUs last seen", kind=Kind.STAT, width=3, height=4, unit="s",
        text="How long ago the daemon last read its GPUs. Minutes: the driver or its reader hangs.",
        queries=(Query(f"max(time() - gpuwarden_heartbeat_timestamp_seconds{{{INSTANCE}}})"),),
        steps=((60, ORANGE), (300, RED)), none="never",
    ),
    Panel(
        title="Ends in", kind=Kind.STAT, width=3, height=4, unit="s", text="Until the announced end of this machine.",
        queries=(Query(f"min(gpuwarden_termination_deadline_timestamp_seconds{{{INSTANCE}}} - time())"),),
        steps=((0, RED), (120, ORANGE), (600, GREEN)), none="not announced",
    ),
    Panel(
        title="Breaker", kind=Kind.STAT, width=4, height=4, text="Open: it should be excluded, but too many nodes are out already.",
        queries=(Query(f"max(gpuwarden_breaker_open{{{INSTANCE}}})"),), texts=texts.BREAKER, none="silent",
    ),
    Panel(
        title="Mode", kind=Kind.STAT, width=4, height=4, text="In mode observe nothing is done, only shown.",
        queries=(Query(f"min(gpuwarden_enforcing{{{INSTANCE}}})"),), texts=texts.ENFORCING, none="silent",
    ),
)  # fmt: skip
FINDINGS = (
    Panel(
        title="What is wrong, and what to do", kind=Kind.TABLE, width=18, text="Findings that hold now, failures first. A finding "
        "without a GPU is of the whole node.",
        queries=(Query(f"max by (gpu, pci_bus_id, severity, title, detail, advice) ({ranked(GPU_OR_NODE)})"),),
        columns=(texts.GPU, texts.SLOT, texts.RANKED, *texts.WHAT, texts.TO_DO),
        sort="Severity", none="no findings",
    ),
    Panel(
        title="Out of scheduling", kind=Kind.TABLE, width=6, text="Who excluded the node, and where.",
        queries=(Query(f"max by (actuator, cause) (gpuwarden_excluded{{{INSTANCE}}} == 1)"),),
        columns=(Column(field="cause", name="Taken out by", texts=texts.OWNER), Column(field="actuator", name="Scheduler")),
        none="not excluded",
    ),
    Panel(
        title="Health of each GPU", kind=Kind.TIMELINE, width=24, height=8,
        text="A gap: the GPU, the daemon or the node was absent.",
        queries=(
            Query(_NODE_STATE, "node"),
            Query(f"max by (gpu, pci_bus_id) ({worst('gpuwarden_gpu_health', GPU)})", GPU_LEGEND),
        ),
        texts=texts.HEALTH, none="silent",
    ),
    Panel(
        title="Findings over time", kind=Kind.TIMELINE, width=24, height=7, text="From when to when each finding held.",
        queries=(Query(f"max by (check, gpu, detail) ({ranked(GPU_OR_NODE)})", "{{check}} {{detail}} GPU {{gpu}}"),),
        texts=texts.RANK, none="no findings",
    ),
)  # fmt: skip


def _least(metric: str) -> Query:
    """A limit that holds for all chosen GPUs: the lowest of theirs."""
    return Query(f"min({metric}{{{GPU}}})", LIMIT)


def _lines(
    title: str,
    text: str,
    metric: str,
    unit: str,
    *limits: Query,
    low: float | None = None,
    high: float | None = None,
    none: str = "",
) -> Panel:
    """Return a panel with one line for each GPU."""
    queries = (Query(of_gpu(metric), GPU_LEGEND), *limits)
    return Panel(
        title=title, kind=Kind.SERIES, width=12, text=text, unit=unit, queries=queries, limit=LIMIT, low=low, high=high, none=none,
    )  # fmt: skip


def _figure(title: str, figure: str, text: str, unit: str) -> Panel:
    """Return a panel of a figure of active tests, with one line for each GPU."""
    expr = f'max by (gpu, pci_bus_id) (gpuwarden_test_figure{{{GPU},figure="{figure}"}})'
    return Panel(
        title=title, kind=Kind.SERIES, width=12, text=text, unit=unit, queries=(Query(expr, GPU_LEGEND),),
        none="no GPU was ever tested",
    )  # fmt: skip


_SLOWED = (
    ("DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS", "hot (hardware)"),
    ("DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS", "hot (driver)"),
    ("DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS", "power brake"),
    ("DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP_NS", "power cap"),
)
HEAT = (
    _lines("GPU temperature", "The limit is where hardware halves the clocks.", "DCGM_FI_DEV_GPU_TEMP", "celsius",
           _least("DCGM_FI_DEV_SLOWDOWN_TEMP")),
    _lines("Memory temperature", "The limit is the highest operating temperature.", "DCGM_FI_DEV_MEMORY_TEMP", "celsius",
           _least("DCGM_FI_DEV_MEM_MAX_OP_TEMP"), none="no sensor"),
    _lines("Distance to slowdown", "At 0 the clocks are lowered.", "DCGM_FI_DEV_GPU_TEMP_LIMIT", "celsius", none="not reported by this GPU"),
    Panel(
        title="Time spent slowed", kind=Kind.SERIES, width=12, unit="percentunit", low=0, high=1,
        text="Share of time at lowered clocks, of the worst GPU. Power cap under load is usual; hot and power brake are not.",
        queries=tuple(
            Query(f"max(rate({metric}{{{GPU}}}[$__rate_interval])) / 1e9", legend) for metric, legend in _SLOWED
        ),
    ),
)  # fmt: skip
_USED, _FREE = (f"DCGM_FI_DEV_FB_{part}{{{GPU}}}" for part in ("USED", "FREE"))
_MEMORY_IN_USE = f"max by (gpu, pci_bus_id) ({_USED} / ({_USED} + {_FREE}))"
"""Of the fullest MIG instance, where there are some."""
POWER = (
    _lines("Power", "The limit is the one in force.", "DCGM_FI_DEV_POWER_USAGE", "watt",
           _least("DCGM_FI_DEV_ENFORCED_POWER_LIMIT"), low=0),
    _lines("SM clock", "Lower than its neighbours under the same load: check why it is slowed.", "DCGM_FI_DEV_SM_CLOCK", "rotmhz", low=0),
    _lines("Utilization", "Share of time with a kernel on the GPU.", "DCGM_FI_DEV_GPU_UTIL", "percent", low=0, high=100),
    Panel(
        title="Memory in use", kind=Kind.SERIES, width=12, unit="percentunit", low=0, high=1, text="Of what is usable.",
        queries=(Query(_MEMORY_IN_USE, GPU_LEGEND),),
    ),
)  # fmt: skip
_REPAIR = (
    ("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "Uncorrected, ever", None),
    ("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "Corrected, ever", None),
    ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "Rows remapped", None),
    ("DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_NONE", "Banks without spare rows", None),
    ("DCGM_FI_DEV_ROW_REMAP_PENDING", "Remap waits for a reset", texts.PENDING),
    ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "Remap failed", texts.YES_NO),
    ("DCGM_FI_DEV_THRESHOLD_SRM", "SRAM threshold passed", texts.YES_NO),
)
MEMORY = (
    Panel(
        title="Uncorrected ECC errors", kind=Kind.BARS, width=12, text="Each one ended a job. They repeat: the memory goes.",
        queries=(Query(of_gpu_within("increase", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"), GPU_LEGEND),),
    ),
    Panel(
        title="Corrected ECC errors", kind=Kind.BARS, width=12, text="They harm nothing; a storm of them precedes worse.",
        queries=(Query(of_gpu_within("increase", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL"), GPU_LEGEND),),
    ),
    Panel(
        title="State of the memory", kind=Kind.TABLE, width=24, text="Over the life of each board.",
        queries=tuple(Query(of_gpu(metric)) for metric, *_ in _REPAIR),
        columns=(texts.GPU, texts.SLOT, *(
            Column(field=f"Value #{letter}", name=name, texts=state) for letter, (_, name, state) in zip("ABCDEFG", _REPAIR, strict=True)
        )),
        sort="Uncorrected, ever",
    ),
)  # fmt: skip
_NVLINK_ERRORS = (
    ("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "CRC, flow control"),
    ("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "CRC, data"),
    ("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "replays"),
    ("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "recoveries"),
)
LINKS = (
    Panel(
        title="PCIe lanes", kind=Kind.SERIES, width=8, unit="percentunit", low=0, high=1,
        text="Of those that GPU and slot have. Less than all of them: reseat the board, or its slot or riser is bad.",
        queries=(Query(f"{of_gpu('DCGM_FI_DEV_PCIE_LINK_WIDTH')} / {of_gpu('DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH')}", GPU_LEGEND),),
    ),
    Panel(
        title="PCIe generation", kind=Kind.SERIES, width=8, low=0, text="It falls when the GPU idles. Lower than the others under load: bad.",
        queries=(Query(of_gpu("DCGM_FI_DEV_PCIE_LINK_GEN"), GPU_LEGEND),),
    ),
    Panel(
        title="PCIe replays", kind=Kind.BARS, width=8, text="Packets sent again. Many, on one GPU: its link is bad.",
        queries=(Query(of_gpu_within("increase", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"), GPU_LEGEND),),
    ),
    Panel(
        title="NVLink traffic", kind=Kind.SERIES, width=12, unit="MBs", low=0, text="All links, both directions. One GPU far below the "
        "others in the same job is the slow one.",
        queries=(Query(of_gpu("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"), GPU_LEGEND),), none="no NVLink",
    ),
    Panel(
        title="NVLink errors", kind=Kind.BARS, width=12, text="Of the worst GPU, by kind. Replays cost time; recoveries mean that a link was down.",
        queries=tuple(Query(f"max(increase({metric}{{{GPU}}}[$__rate_interval]))", legend) for metric, legend in _NVLINK_ERRORS),
        none="no NVLink",
    ),
)  # fmt: skip
_XIDS = f"gpuwarden_xid_total{{{GPU_OR_NODE}}}"
JOBS = (
    Panel(
        title="Xids", kind=Kind.TABLE, width=12, text="Each Xid that came, how often since the ledger began, and when last.",
        queries=(
            Query(f"max by (gpu, pci_bus_id, xid) (1000 * gpuwarden_xid_last_timestamp_seconds{{{GPU_OR_NODE}}})"),
            Query(f"max by (gpu, pci_bus_id, xid) ({_XIDS} > 0)"),
        ),
        columns=(
            texts.GPU, texts.SLOT, Column(field="xid", name="Xid", width=70), Column(field="Value #A", name="Last", unit="dateTimeFromNow"),
            Column(field="Value #B", name="Times", width=80),
        ),
        sort="Last", none="no Xid ever",
    ),
    Panel(
        title="Jobs", kind=Kind.TIMELINE, width=12, text="Which job had which GPU. Names are shown where publish_jobs is set.",
        queries=(Query(f"max by (gpu, exported_job, user, job_name) (gpuwarden_gpu_job_info{{{GPU}}})",
                       "GPU {{gpu}}: {{exported_job}} {{job_name}} {{user}}"),),
        texts={"1": ("runs", BLUE)}, none="no job, or no scheduler here",
    ),
    Panel(
        title="Jobs that ended", kind=Kind.TABLE, width=24, text="Why jobs of the last day ended. gpuwarden why JOB shows what touched each.",
        queries=(Query(
            "max by (exported_job, cause, certainty, code, pci_bus_id) "
            f"(1000 * gpuwarden_job_ended_info{{{INSTANCE}}} * on (job, instance, exported_job) group_left "
            f"gpuwarden_job_ended_timestamp_seconds{{{INSTANCE}}})"
        ),),
        columns=(
            Column(field="Value", name="Ended", unit="dateTimeFromNow", width=130), Column(field="exported_job", name="Job"),
            Column(field="cause", name="Cause", width=110), Column(field="certainty", name="Certainty", width=110),
            Column(field="code", name="Code"), texts.SLOT,
        ),
        sort="Ended", none="no job ended here in the last day",
    ),
)  # fmt: skip
_BOARD = "gpu, pci_bus_id"
TESTS = (
    Panel(
        title="Last test of each GPU", kind=Kind.TABLE, width=12,
        text="What gpuwarden test found last. Nothing found is no proof of health.",
        queries=(Query(f"max by ({_BOARD}, result) (gpuwarden_test_result{{{GPU}}} == 1)"),),
        columns=(texts.GPU, texts.SLOT, Column(field="result", name="Result", texts=texts.TESTED)),
        sort="GPU", none="no GPU was ever tested",
    ),
    Panel(
        title="Tested last", kind=Kind.TABLE, width=12, text="At each level: gate, quick, standard.",
        queries=(Query(f"max by ({_BOARD}, level) (1000 * gpuwarden_test_last_timestamp_seconds{{{GPU}}})"),),
        columns=(texts.GPU, texts.SLOT, Column(field="level", name="Level"), Column(field="Value", name="Last", unit="dateTimeFromNow")),
        sort="Last", none="no GPU was ever tested",
    ),
    _figure("int8 rate in tests", "int8", "Operations a second. One GPU below the others and below its own past: slow.", "short"),
    _figure("Memory speed in tests", "verify", "Reading and comparing all of it, alone on the GPU.", "Bps"),
)  # fmt: skip
DAEMON = (
    Panel(
        title="Collectors", kind=Kind.TIMELINE, width=12, text="Whether the last pass of each observed.",
        queries=(Query(f"min by (collector) (gpuwarden_collector_up{{{INSTANCE}}})", "{{collector}}"),), texts=texts.SOURCE_UP,
        none="silent",
    ),
    Panel(
        title="Errors of the daemon", kind=Kind.BARS, width=12, text="Passes that missed their deadline, readers started again, records lost.",
        queries=(
            Query(f"sum by (collector) (increase(gpuwarden_collector_timeouts_total{{{INSTANCE}}}[$__rate_interval]))", "{{collector}}: too late"),
            Query(f"sum by (collector) (increase(gpuwarden_collector_restarts_total{{{INSTANCE}}}[$__rate_interval]))", "{{collector}}: restarts"),
            Query(f"sum by (what) (increase(gpuwarden_dropped_total{{{INSTANCE}}}[$__rate_interval]))", "{{what}}: dropped"),
            Query(f"sum(increase(gpuwarden_kernel_log_lost_records_total{{{INSTANCE}}}[$__rate_interval]))", "kernel log: lost"),
        ),
    ),
    Panel(
        title="Answers of the driver", kind=Kind.SERIES, width=8, unit="s", low=0,
        text="Duration of the passes over the GPUs: half of them, and 99 of 100, take no longer. A driver that becomes slow shows it here first.",
        queries=tuple(
            Query(f"histogram_quantile({share}, sum by (le) (rate(gpuwarden_nvml_pass_seconds_bucket{{{INSTANCE}}}[$__rate_interval])))", legend)
            for share, legend in (("0.5", "half"), ("0.99", "99 of 100"))
        ),
    ),
    Panel(
        title="Memory of the daemon", kind=Kind.SERIES, width=8, unit="bytes", low=0, text="Without its worker processes.",
        queries=(Query(f"process_resident_memory_bytes{{{INSTANCE}}}", "resident"),),
    ),
    Panel(
        title="Processor time of the daemon", kind=Kind.SERIES, width=8, unit="percentunit", low=0,
        text="Share of one core, without its worker processes.",
        queries=(Query(f"rate(process_cpu_seconds_total{{{INSTANCE}}}[$__rate_interval])", "of one core"),),
    ),
)  # fmt: skip

PAGE = Page(
    uid="gpuwarden-node",
    title="GPU nodes: Node",
    text="What is wrong with one machine, GPU by GPU.",
    since="now-3h",
    variables=(CLUSTERS, ONE_NODE, INSTANCES, GPUS),
    rows=(
        Row("Now", (*NOW, *FINDINGS)),
        Row("Jobs and Xids", JOBS),
        Row("Temperature", HEAT),
        Row("Power and load", POWER),
        Row("Memory", MEMORY),
        Row("PCIe and NVLink", LINKS),
        Row("Active tests", TESTS),
        Row("The daemon", DAEMON),
    ),
)
