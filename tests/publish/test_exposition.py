"""The bytes of the page: both formats, as their reference parsers read them."""

from __future__ import annotations

import gzip
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.samples import Sample

from gpuwarden.health.model import NODE, gpu
from gpuwarden.publish.metrics.dcgm_names import OF_INSTANCES
from gpuwarden.publish.metrics.exposition import Holder, Page, Renderer
from gpuwarden.publish.metrics.lines import number
from gpuwarden.publish.metrics.telemetry import dcgm_bus_id
from gpuwarden.publish.snapshot import Clients, Enforced, Snapshot, XidCount
from gpuwarden_collectors.facts import NvmlFacts
from support.scrape import parse_openmetrics, parse_text
from support.snapshots import UPTIME, at, finding, gpu_facts, h100_readings, missing, slot, snapshot
from support.web_server import get, serving
from support.whole_snapshots import everything
from tables import MOST_FULL, MOST_SERIES, MOST_WITH_PODS_AND_SLURM

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def text_series(page: Page) -> Series:
    """The parser gives DCGM's counters an ending that the page does not have."""
    families = parse_text(page.text)
    return {
        (
            s.name.removesuffix("_total") if s.name.startswith("DCGM") else s.name,
            tuple(sorted(s.labels.items())),
        ): s.value
        for family in families
        for s in family.samples
    }


def openmetrics_series(page: Page) -> Series:
    families = parse_openmetrics(page.openmetrics)
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for f in families for s in f.samples}


def busy() -> Snapshot:
    """A snapshot with something in every metric."""
    shown = missing(snapshot(), 5)
    findings = (*shown.verdict.findings, finding("xid", gpu(slot(2)), detail="79"), finding("ledger_unavailable", NODE))
    xids = (XidCount(slot=slot(2), xid=79, count=1, last=at(UPTIME).wall),)
    return replace(shown, verdict=replace(shown.verdict, findings=findings), xids=xids)


@pytest.mark.parametrize(
    "shown", [snapshot(), busy(), snapshot(0), replace(snapshot(1), nvml=None, observed=None), everything(2, 2)]
)
def test_both_formats_parse_and_give_the_same(shown: Snapshot) -> None:
    page = Renderer().render(shown)
    series = text_series(page)
    assert series == openmetrics_series(page)
    assert len(series) == page.series


def test_openmetrics_knows_our_counters_and_takes_dcgm_counters_as_untyped() -> None:
    page = Renderer().render(busy())
    types = {family.name: family.type for family in parse_openmetrics(page.openmetrics)}
    assert types["gpuwarden_xid"] == "counter"
    assert types["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"] == "unknown"
    assert types["DCGM_FI_DEV_GPU_TEMP"] == "gauge"
    assert page.openmetrics.endswith(b"# EOF\n")
    assert b"# TYPE gpuwarden_xid_total counter\n" in page.text
    assert b"# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter\n" in page.text


def test_the_compressed_forms_hold_the_same_bytes() -> None:
    page = Renderer().render(snapshot())
    assert gzip.decompress(page.text_gzip) == page.text
    assert gzip.decompress(page.openmetrics_gzip) == page.openmetrics


def test_eight_gpus_stay_within_the_documented_number_of_series_with_everything_on_and_much_wrong() -> None:
    whole, divided = (_series_of_a_second_pass(everything(8, instances)) for instances in (0, 7))
    assert whole <= MOST_SERIES
    assert divided == whole + (8 * 7 - 8) * len(OF_INSTANCES)


def test_eight_gpus_and_twelve_ports_stay_within_the_documented_number_of_series_by_default() -> None:
    """All readings, DCGM, a job and nine counters for each port; no scheduler, no notifications, nothing wrong."""
    shown = everything(8)
    assert shown.infiniband is not None
    assert len(shown.infiniband.ports) == 12
    default = replace(
        shown, verdict=snapshot(8).verdict, xids=(), enforced=Enforced(), hpc_jobs=None, clients=Clients(), receivers=(),
        pods=None, collectors=tuple(collector for collector in shown.collectors if collector.name != "pods"),
    )  # fmt: skip
    page = Renderer().render(default)
    counters = [
        s for family in parse_text(page.text) for s in family.samples if s.name == "gpuwarden_port_errors_total"
    ]
    assert len(counters) == 12 * 9
    assert _series_of_a_second_pass(default) <= MOST_FULL
    others = tuple(collector for collector in shown.collectors if collector.name != "jobs")
    assert _series_of_a_second_pass(replace(default, jobs=None, pods=shown.pods, collectors=others)) <= MOST_FULL
    both = _series_of_a_second_pass(replace(default, pods=shown.pods, collectors=shown.collectors))
    assert MOST_FULL < both <= MOST_WITH_PODS_AND_SLURM


def _series_of_a_second_pass(shown: Snapshot) -> int:
    """Return the number of series after a second pass, since rates need two."""
    renderer = Renderer()
    pages = [renderer.render(replace(shown, observed=at(UPTIME + passed))) for passed in (0, 5)]
    return pages[1].series


def test_the_same_snapshot_gives_the_same_bytes_whatever_was_rendered_before() -> None:
    renderer = Renderer()
    for shown in (snapshot(16), busy(), snapshot(2)):
        renderer.render(shown)
    assert renderer.render(snapshot()) == Renderer().render(snapshot())


@pytest.mark.slow
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_any_text_can_be_the_name_of_a_gpu(name: str) -> None:
    shown = replace(snapshot(1), nvml=NvmlFacts(gpus=(replace(gpu_facts(0), name=name),)))
    page = Renderer().render(shown)
    for families in (parse_text(page.text), parse_openmetrics(page.openmetrics)):
        names = {s.labels["modelName"] for f in families for s in f.samples if f.name == "DCGM_FI_DEV_GPU_TEMP"}
        assert names == {name}


def test_a_name_that_is_no_unicode_costs_its_bad_characters_only() -> None:
    shown = replace(snapshot(1), nvml=NvmlFacts(gpus=(replace(gpu_facts(0), name="H100\udcff"),)))
    assert b'modelName="H100?"' in Renderer().render(shown).text


@pytest.mark.parametrize(
    ("value", "text"), [(math.nan, "NaN"), (math.inf, "+Inf"), (-math.inf, "-Inf"), (0, "0"), (1.5, "1.5"), (10**19, "1" + "0" * 19)]
)  # fmt: skip
def test_numbers_are_written_as_both_formats_read_them(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("address", "spelled"),
    [("0000:4e:00.0", "00000000:4E:00.0"), ("10000:01:00.0", "00010000:01:00.0"), ("", "")],
)
def test_a_slot_is_spelled_as_dcgm_spells_it(address: str, spelled: str) -> None:
    assert dcgm_bus_id(address) == spelled


def test_the_holder_shows_page_and_snapshot_of_one_moment() -> None:
    holder = Holder(Renderer(), snapshot(1))
    holder.show(snapshot(2))
    assert holder.snapshot.verdict.present == 2
    assert b"gpuwarden_gpus_present 2\n" in holder.page.text


def test_a_rate_is_of_the_last_two_passes_whether_or_not_they_were_scraped() -> None:
    holder = Holder(Renderer(), snapshot(1))
    for passed, kib in ((0, 0), (5, 10**9), (10, 10**9 + 5 * 10**6)):
        shown = snapshot(1, readings=replace(h100_readings(), nvlink_tx_kib=kib, nvlink_rx_kib=0))
        holder.show(replace(shown, observed=at(UPTIME + passed), made=at(UPTIME + passed)))
    (value,) = (sample.value for sample in _samples(holder.page, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL_total"))
    assert value == 1000


def test_a_gpu_that_is_lost_keeps_an_index_that_no_page_showed() -> None:
    holder = Holder(Renderer(), snapshot(2))
    holder.show(missing(snapshot(2), 1))
    assert {sample.labels["gpu"] for sample in _samples(holder.page, "gpuwarden_gpu_health")} == {"0", "1"}


def _samples(page: Page, name: str) -> list[Sample]:
    return [sample for family in parse_text(page.text) for sample in family.samples if sample.name == name]


async def test_a_page_is_made_at_the_first_request_of_a_pass_and_by_no_other() -> None:
    made = 0

    class Counting(Renderer):
        def render(self, snapshot: Snapshot) -> Page:
            nonlocal made
            made += 1
            return super().render(snapshot)

    async with serving() as served:
        served.holder._renderer = Counting()
        for _ in range(3):
            served.holder.show(snapshot(16))
        assert made == 0
        page = served.holder.page
        for accept, encoding, body in (
            ("application/openmetrics-text", "gzip", page.openmetrics_gzip),
            ("application/openmetrics-text", "identity", page.openmetrics),
            ("text/plain", "gzip", page.text_gzip),
            ("text/plain", "identity", page.text),
        ):
            for _ in range(3):
                assert (await get(served, "/metrics", Accept=accept, Accept_Encoding=encoding)).body == body
        assert made == 1
