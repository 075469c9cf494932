"""Telemetry as dcgm-exporter gives it: its counters row by row, its labels, MIG, jobs, and where profiling comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpuwarden.publish.metrics.dcgm_names import FIELDS, INT, OF_INSTANCES, PREFIX
from gpuwarden.publish.metrics.exposition import Holder, Renderer
from gpuwarden.publish.metrics.hpc_jobs import JOBS_MOST, HpcJobs
from gpuwarden.publish.snapshot import JobLabels, Snapshot, XidCount
from gpuwarden_collectors.dcgm.facts import DcgmFacts, DcgmGpu, DcgmReadings
from gpuwarden_collectors.facts import GpuAnswer, MigInstance, NvmlFacts
from gpuwarden_collectors.gpu_readings import GpuReadings
from support.dcgm_exporter import ABSENT, COUNTERS, DEFAULTS, Documented
from support.nvml_nodes import Node, node_in
from support.scrape import parse_openmetrics, scrape
from support.snapshots import UPTIME, at, gpu_facts, h100_readings, slot, snapshot

FIELD = {PREFIX + field.name: field for field in FIELDS}
NOT_GIVEN = {
    # of the counters that dcgm-exporter does not give by default either
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_L0",
    "DCGM_FI_PROF_PIPE_FP64_ACTIVE",
    "DCGM_FI_PROF_PIPE_FP32_ACTIVE",
    "DCGM_FI_PROF_PIPE_FP16_ACTIVE",
}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    with node_in(tmp_path, monkeypatch) as node:
        yield node


def lines(shown: Snapshot, renderer: Renderer | None = None) -> list[str]:
    return [line for line in (renderer or Renderer()).render(shown).text.decode().splitlines() if "DCGM_FI" in line]


def samples(shown: Snapshot, name: str, renderer: Renderer | None = None) -> list[str]:
    """Labels and number of each series of this name, as they are written."""
    start = f"{PREFIX}{name}{{"
    return [line.removeprefix(start) for line in lines(shown, renderer) if line.startswith(start)]


# --- row by row


def test_an_h100_has_every_default_counter_through_nvml_alone(node: Node) -> None:
    renderer, base = Renderer(), snapshot(8)
    node.reader.connect()
    for passed in (0, 5):  # what is a rate needs two
        nvml = node.read()
        shown = replace(base, nvml=nvml, observed=at(UPTIME + passed), made=at(UPTIME + passed))
        page = renderer.render(replace(shown, xids=tuple(_xid(gpu.slot) for gpu in nvml.gpus)))
    published = page.text.decode().splitlines()
    kinds = {family.name: family.type for family in parse_openmetrics(page.openmetrics)}
    for row in DEFAULTS:
        assert f"# TYPE {row.name} {row.kind}" in published
        assert kinds[row.name] == ("unknown" if row.kind == "counter" else row.kind), row.name
        values = [line.rpartition(" ")[2] for line in published if line.startswith(f"{row.name}{{")]
        assert len(values) == 8, row.name
        assert all(re.fullmatch(r"\d+" if row.form == "int" else r"\d+\.\d{6}", value) for value in values), row.name


def _xid(where: str) -> XidCount:
    return XidCount(slot=where, xid=31, count=1, last=at(UPTIME).wall)


@pytest.mark.parametrize("row", [row for row in COUNTERS if row.kind != "label"], ids=lambda row: row.name)
def test_a_counter_of_dcgm_exporter_has_its_type_its_form_and_its_unit(row: Documented) -> None:
    field = FIELD.get(row.name)
    if field is None:
        assert row.name in NOT_GIVEN
        assert not row.default
        return
    assert (field.kind, field.form == INT) == (row.kind, row.form == "int")
    if row.unit != ABSENT:
        assert f"({row.unit})" in field.help


def test_an_xid_has_no_series_until_the_first_as_in_dcgm() -> None:
    assert samples(snapshot(1), "DEV_XID_ERRORS") == []


@pytest.mark.parametrize("label", ["Hostname", "hostname"])
def test_labels_and_their_order_are_those_of_dcgm_exporter_with_the_driver_last(label: str) -> None:
    mig = MigInstance(gpu_instance=9, compute_instance=0, profile="1g.10gb", memory_used_bytes=3 << 20)
    shown = _with_gpu(mig=(mig,))
    identity = (
        'gpu="0",UUID="GPU-0000",pci_bus_id="00000000:4E:00.0",device="nvidia0",modelName="NVIDIA H100 80GB HBM3"'
    )
    where = f'{label}="gpu-node01",DCGM_FI_DRIVER_VERSION="550.163.01"'
    renderer = Renderer(hostname_label=label)
    assert samples(shown, "DEV_PSTATE", renderer) == [f"{identity},{where}}} {shown_reading('performance_state')}"]
    assert samples(shown, "DEV_FB_USED", renderer) == [f'{identity},GPU_I_PROFILE="1g.10gb",GPU_I_ID="9",{where}}} 3']


def shown_reading(name: str) -> int:
    return int(getattr(h100_readings(), name))


# --- MIG


def _with_gpu(mig: tuple[MigInstance, ...] = (), readings: GpuReadings | None = None) -> Snapshot:
    gpu = replace(gpu_facts(0, readings), mig=mig)
    return replace(snapshot(1), nvml=NvmlFacts(gpus=(gpu,), driver_version="550.163.01"))


def test_the_fields_of_instances_are_the_default_counters_and_the_instances_own() -> None:
    """The last Xid is an exception: in dcgm-exporter one that is not an instance's has no series while there are instances."""
    own = {row.name for row in COUNTERS if row.level == "instance"} | {f"{PREFIX}DEV_{name}" for name in _OWN_BESIDE}
    expected = ({row.name for row in DEFAULTS} | own) - {"DCGM_FI_DEV_XID_ERRORS", *NOT_GIVEN}
    assert {PREFIX + name for name in OF_INSTANCES} == expected


_OWN_BESIDE = ("FB_TOTAL", "FB_USED_PERCENT", "BAR1_TOTAL", "BAR1_USED", "BAR1_FREE")
"""Those that the list of counters does not name (DCGM v4.6.0, dcgm_fields.cpp: DCGM_FE_GPU_CI)."""

INSTANCES = (
    MigInstance(
        gpu_instance=1, compute_instance=0, profile="1c.3g.40gb", memory_total_bytes=40 << 30, memory_used_bytes=7 << 20,
        memory_reserved_bytes=0, memory_free_bytes=9 << 20, gpm_tensor_active=25.0,
    ),
    MigInstance(gpu_instance=1, compute_instance=1, profile="2c.3g.40gb", memory_used_bytes=8 << 20),
    MigInstance(gpu_instance=5, compute_instance=0, profile="1g.10gb", memory_used_bytes=5 << 20),
)  # fmt: skip


def _values(shown: Snapshot, name: str, renderer: Renderer | None = None) -> dict[tuple[str, str], float]:
    page = scrape(shown, renderer)
    rows = [sample for sample in page.samples if sample.name.removesuffix("_total") == PREFIX + name]
    return {(s.labels.get("GPU_I_ID", ""), s.labels.get("GPU_I_PROFILE", "")): s.value for s in rows}


def test_a_divided_gpu_is_published_by_instance_with_the_instances_values_and_else_the_gpus() -> None:
    shown, gpu = _with_gpu(INSTANCES), h100_readings()
    both = (("1", "3g.40gb"), ("5", "1g.10gb"))
    assert _values(shown, "DEV_FB_USED") == dict(zip(both, (7, 5), strict=True))
    assert _values(shown, "DEV_FB_FREE") == {both[0]: 9}  # of the other nobody knows: not the GPU's
    assert _values(shown, "PROF_PIPE_TENSOR_ACTIVE") == {both[0]: 0.25}
    assert _values(shown, "DEV_GPU_TEMP") == dict.fromkeys(both, gpu.temperature)
    assert _values(shown, "DEV_TOTAL_ENERGY_CONSUMPTION") == dict.fromkeys(both, gpu.energy_mj)
    assert _values(shown, "DEV_ECC_DBE_VOL_TOTAL") == {("", ""): gpu.ecc_uncorrected_volatile}


@pytest.mark.parametrize(
    ("mig", "used"),
    [("gpus", {"": 20480}), ("both", {"": 20480, "1": 7, "5": 5}), ("instances", {"1": 7, "5": 5})],
)
def test_whether_instances_gpus_or_both_are_published_is_a_switch(mig: str, used: dict[str, float]) -> None:
    renderer = Renderer(mig=mig)  # type: ignore[arg-type] # pytest gives plain strings
    published = _values(_with_gpu(INSTANCES), "DEV_FB_USED", renderer)
    assert {number: value for (number, _), value in published.items()} == used
    assert len(_values(_with_gpu(INSTANCES), "DEV_PSTATE", renderer)) == 1


def test_the_last_xid_of_a_divided_gpu_is_published_for_the_gpu() -> None:
    assert set(_values(replace(_with_gpu(INSTANCES), xids=(_xid(slot(0)),)), "DEV_XID_ERRORS")) == {("", "")}


def test_a_gpu_in_mig_mode_without_instances_is_published_as_a_gpu() -> None:
    readings = replace(h100_readings(), mig_mode=1)
    assert lines(_with_gpu(readings=readings)) == lines(_with_gpu((), readings))
    assert set(_values(_with_gpu(readings=readings), "DEV_FB_USED")) == {("", "")}


def test_a_gpu_that_is_divided_in_the_driver_has_series_of_its_instances(node: Node) -> None:
    node.fake.write(gpus=2, frozen=True).mig(0, 2, 0, "1g.10gb", 9728).mig(0, 3, 0, "1g.10gb", 9728)
    node.fake.reading(0, "gpm_dram_active", 43)
    node.reader.connect()
    node.read()
    shown = replace(snapshot(2), nvml=node.read())
    published = scrape(shown)
    assert [published.value("DCGM_FI_PROF_DRAM_ACTIVE", gpu="0", GPU_I_ID=number) for number in "23"] == [0.41, 0.4]
    assert published.value("DCGM_FI_DEV_FB_FREE", gpu="0", GPU_I_ID="2", GPU_I_PROFILE="1g.10gb") == 9728
    assert ["GPU_I_ID" in labels for labels in published.labels("DCGM_FI_DEV_FB_FREE")] == [True, True, False]


# --- jobs


def _with_jobs(shown: Snapshot, **files: tuple[str, ...]) -> Snapshot:
    named = {name.removeprefix("gpu").replace("_", "."): jobs for name, jobs in files.items()}
    return replace(shown, hpc_jobs=JobLabels(jobs=named))


def test_each_job_of_a_gpu_has_a_copy_of_its_default_counters_and_others_have_no_such_label() -> None:
    shown = _with_jobs(snapshot(2), gpu1=("4711", "4712"))
    for name in ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_PROF_DRAM_ACTIVE"):
        published = [(labels["gpu"], labels.get("hpc_job")) for labels in scrape(shown).labels(name)]
        assert published == [("0", None), ("1", "4711"), ("1", "4712")]
    assert [labels.get("hpc_job") for labels in scrape(shown).labels("DCGM_FI_PROF_SM_ACTIVE")] == [None, None]


def test_the_job_is_the_last_label_also_after_the_text_of_an_xid() -> None:
    shown = _with_jobs(replace(snapshot(1), xids=(_xid(slot(0)),)), gpu0=('a"b',))
    (written,) = samples(shown, "DEV_XID_ERRORS")
    assert re.search(r'DCGM_FI_DRIVER_VERSION="[^"]*",err_code="31",err_msg="[^"]*",hpc_job="a\\"b"} 31$', written)


def test_of_a_divided_gpu_a_job_belongs_to_an_instance() -> None:
    divided = replace(_with_gpu(INSTANCES), xids=(_xid(slot(0)),))
    page = scrape(_with_jobs(divided, gpu0_5=("8",), gpu0=("9",)))
    published = {labels["GPU_I_ID"]: labels.get("hpc_job") for labels in page.labels("DCGM_FI_DEV_FB_USED")}
    assert published == {"1": None, "5": "8"}
    assert page.labels("DCGM_FI_DEV_XID_ERRORS")[0]["hpc_job"] == "9"


def test_whether_jobs_can_be_read_is_published_where_they_are_configured() -> None:
    published = [None, JobLabels(), JobLabels(error="cannot read it")]
    pages = [scrape(replace(snapshot(1), hpc_jobs=jobs)) for jobs in published]
    assert [page.value("gpuwarden_hpc_job_mapping_up") for page in pages] == [None, 1, 0]


async def test_the_folder_of_jobs_is_read_as_dcgm_exporter_reads_it(tmp_path: Path) -> None:
    for name, content in {
        "0": "4711\n4712\n4711\n", "1": "", "2.11": " spaced \r\nlast", "3": "\n", "notes": "x\n", "4.x": "x\n",
        "7": "".join(f"{n}\n" for n in range(100)),
    }.items():  # fmt: skip
        (tmp_path / name).write_text(content)
    (tmp_path / "5").mkdir()
    jobs = HpcJobs(tmp_path, lambda: 0.0)
    try:
        assert await jobs.flush(30)
        published = dict(jobs().jobs)
        assert (len(published.pop("7")), jobs().error) == (JOBS_MOST, "")
        assert published == {"0": ("4711", "4712"), "2.11": (" spaced ", "last"), "3": ("",)}
        (tmp_path / "0").unlink()
        assert await jobs.flush(30)
        holder = Holder(Renderer(), snapshot(1), jobs)
        assert await jobs.flush(30)
        holder.show(snapshot(1))
        assert b'hpc_job="' not in holder.page.text
    finally:
        assert jobs.close(30)


async def test_an_unreadable_mapping_gives_no_jobs_and_an_error_while_the_page_goes_on(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("4711\n")
    (tmp_path / "1").symlink_to("1")
    for folder, error in (
        (tmp_path, "1: Too many levels"),
        (tmp_path / "none", ""),
        (tmp_path / "0", "0: Not a dir"),
    ):
        jobs = HpcJobs(folder, lambda: 0.0)
        try:
            assert await jobs.flush(30)
            assert dict(jobs().jobs) == ({"0": ("4711",)} if folder == tmp_path else {})
            assert error in jobs().error
            assert bool(error) is bool(jobs().error)
        finally:
            assert jobs.close(30)


# --- where the profiling fields come from


def _of_dcgm(readings: DcgmReadings) -> DcgmFacts:
    return DcgmFacts(gpus=(DcgmGpu(id=0, slot=slot(0), readings=readings),), watched_since=at(0.0))


DCGM = DcgmReadings(tensor_active=0.25, pcie_tx_bytes=1_500_000.0, memory_unrepairable=0)
NO_GPM = {name: None for name in GpuReadings.__dataclass_fields__ if name.startswith("gpm_")}


def test_before_hopper_the_profiling_fields_are_those_of_dcgm() -> None:
    shown = replace(_with_gpu(readings=replace(h100_readings(), **NO_GPM)), dcgm=_of_dcgm(DCGM))
    ends = [samples(shown, name)[0].rpartition(" ")[2] for name in ("PROF_PIPE_TENSOR_ACTIVE", "PROF_PCIE_TX_BYTES")]
    assert ends == ["0.250000", "1500000"]
    assert samples(shown, "PROF_SM_ACTIVE") == []


def test_a_gpu_with_gpm_takes_nothing_from_dcgm_not_even_what_gpm_lacks() -> None:
    readings = replace(h100_readings(), **NO_GPM)
    readings = replace(readings, gpm_sm_active=50.0)
    shown = replace(_with_gpu(readings=readings), dcgm=_of_dcgm(DCGM))
    assert [name for name in OF_INSTANCES if name.startswith("PROF_") and samples(shown, name)] == ["PROF_SM_ACTIVE"]


def test_what_only_dcgm_knows_is_published_beside_nvml() -> None:
    shown = replace(_with_gpu(), dcgm=_of_dcgm(DCGM))
    assert len(samples(shown, "DEV_MEMORY_UNREPAIRABLE_FLAG")) == 1
    assert samples(_with_gpu(), "DEV_MEMORY_UNREPAIRABLE_FLAG") == []


def test_nothing_of_dcgm_is_published_of_a_gpu_that_nvml_has_lost() -> None:
    lost = replace(gpu_facts(0), answer=GpuAnswer.LOST, readings=GpuReadings())
    shown = replace(snapshot(1), nvml=NvmlFacts(gpus=(lost,)), dcgm=_of_dcgm(DCGM))
    assert lines(shown) == []
