"""The screen that docs/use/why.md shows is what the command prints for such a job."""

from __future__ import annotations

from pathlib import Path

from gpuwarden.features.why.causes import Around, answer
from gpuwarden.features.why.document import of_record
from gpuwarden.features.why.model import End, Epoch, Record, Touch, Use
from gpuwarden.features.why.sentences import Board
from gpuwarden.features.why.text import lines
from gpuwarden_collectors.facts import Stamp

PAGE = Path(__file__).parents[3] / "docs/use/why.md"
SLOTS = tuple(f"0000:{bus}:00.0" for bus in ("1b", "2a", "3c", "4e", "9b", "ab", "bd", "cd"))
GPU = SLOTS[3]


def at(seconds: float) -> Stamp:
    return Stamp(1000.0 + seconds, 1_793_672_043.0 + seconds)


EPOCH = Epoch(
    name="slurm/4711", began=at(0), boot_id="b", uid=1000, user="alice", job_name="train-70b", slots=SLOTS, pids=(4242,),
    touches=(
        Touch(what="xid", detail="79", at=at(5171.2), slot=GPU, pid=4242),
        Touch(what="excluded", detail="failure gpu=3 xid=79", at=at(5172)),
        Touch(what="finding", detail=f"gpu_missing@gpu/{GPU}", at=at(5174.5), slot=GPU, follows=f"xid.79@gpu/{GPU}"),
    ),
    use=Use(
        energy_j=22_716_000, energy_covers=1.0, busy=0.871, tensor=0.414, memory_peak_bytes=71 * 2**30, idle_gpu_seconds=1800,
        throttled_gpu_seconds=30, observed_gpu_seconds=41_440,
    ),
)  # fmt: skip


def test_the_page_shows_the_screen_of_a_job_as_it_is_printed() -> None:
    end = End(at=at(5180), known_from="epilog", state="FAILED", exit_code=1)
    why = answer(EPOCH, end, Around(boards={GPU: Board(3, "1650922001234")}))
    document = of_record(
        Record(epoch=EPOCH, end=end, answer=why), {slot: n for n, slot in enumerate(SLOTS)}, node="gpu-17"
    )
    shown = PAGE.read_text().partition("$ gpuwarden why 4711\n")[2].partition("\n```")[0]
    assert shown == "\n".join(lines(document))
