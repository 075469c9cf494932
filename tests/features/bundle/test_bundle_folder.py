"""The folder in which an archive is made may be another user's, who can rename what lies in it: root writes through no link of his."""

from __future__ import annotations

from pathlib import Path

from gpuwarden.features.bundle.archive import published, work_folder, written
from gpuwarden.features.bundle.entry import Entry

ENTRY = Entry(name="index.html", about="", how="", content=b"the page")


async def test_a_link_in_the_place_of_the_temporary_folder_leads_nowhere(tmp_path: Path) -> None:
    out, moved, victim = (tmp_path / name for name in ("out", "moved", "victim"))
    out.mkdir()
    victim.mkdir()
    (victim / "archive.tar").write_text("precious")
    with work_folder(out) as work:
        (name,) = out.iterdir()
        name.rename(moved)
        name.symlink_to(victim)
        packed, _, _ = await written([ENTRY], "top", work)
        published(packed, out / "named")
    assert [file.name for file in victim.iterdir()] == ["archive.tar"]
    assert (victim / "archive.tar").read_text() == "precious"
    assert (out / "named").stat().st_size
