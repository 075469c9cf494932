"""The memory collector on whole, odd and real hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwarden_collectors.base import CollectorError, SourceAbsent
from gpuwarden_collectors.host_collectors.memory import MemoryCollector
from gpuwarden_collectors.host_facts import MemoryController, MemoryFacts
from support.trees import DATA, plant

MC = "devices/system/edac/mc"


def test_a_server_gives_exactly_its_memory(tmp_path: Path) -> None:
    plant(tmp_path, {
        "meminfo": (DATA / "memory/meminfo").read_text(),
        "vmstat": "nr_free_pages 468480103\nnr_zone_inactive_anon 1234\noom_kill 3\nnuma_hit 99",
        f"{MC}/mc0/ce_count": "12", f"{MC}/mc0/ue_count": "0", f"{MC}/mc1/ce_count": "0", f"{MC}/mc1/ue_count": "1",
        f"{MC}/power/ce_count": "7",
    })  # fmt: skip
    assert MemoryCollector(tmp_path, tmp_path).read() == MemoryFacts(
        total_bytes=2113530112 * 1024,
        available_bytes=1989712872 * 1024,
        swap_total_bytes=8388604 * 1024,
        swap_free_bytes=8388600 * 1024,
        huge_pages_total=1024,
        huge_page_bytes=2 << 20,
        oom_kills=3,
        controllers=(
            MemoryController(name="mc0", corrected=12, uncorrected=0),
            MemoryController(name="mc1", corrected=0, uncorrected=1),
        ),
    )


def test_a_host_without_meminfo_has_no_source(tmp_path: Path) -> None:
    with pytest.raises(SourceAbsent, match="meminfo does not exist"):
        MemoryCollector(tmp_path, tmp_path).read()


@pytest.mark.parametrize("text", ["", "MemFree: 12 kB", "MemTotal: 0 kB", "MemTotal: many", "\0\xff" * 100_000])
def test_a_meminfo_without_a_total_fails_the_pass(tmp_path: Path, text: str) -> None:
    plant(tmp_path, {"meminfo": text})
    with pytest.raises(CollectorError, match="no MemTotal"):
        MemoryCollector(tmp_path, tmp_path).read()


def test_a_meminfo_that_cannot_be_read_fails_the_pass(tmp_path: Path) -> None:
    (tmp_path / "meminfo").mkdir()
    with pytest.raises(CollectorError, match=r"cannot read .*meminfo: Is a directory"):
        MemoryCollector(tmp_path, tmp_path).read()


@pytest.mark.parametrize(
    ("count", "value"), [("0", 0), ("4294967295", 4294967295), ("", None), ("-1", None), ("many", None)]
)
def test_unusual_counts_of_a_memory_controller(tmp_path: Path, count: str, value: int | None) -> None:
    plant(tmp_path, {"meminfo": "MemTotal: 1024 kB", f"{MC}/mc0/ue_count": count})
    assert MemoryCollector(tmp_path, tmp_path).read() == MemoryFacts(
        total_bytes=1 << 20, controllers=(MemoryController(name="mc0", uncorrected=value),)
    )


def test_this_host_has_memory() -> None:
    facts = MemoryCollector(Path("/proc"), Path("/sys")).read()
    assert facts.available_bytes is not None
    assert 0 < facts.available_bytes <= facts.total_bytes
    assert facts.oom_kills is not None
