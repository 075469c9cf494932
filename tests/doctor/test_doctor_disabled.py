"""What the site switched off is a row that says so and costs no exit code; a Slurm that nobody mentioned is one to look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwarden.config.model import Config, load
from gpuwarden.config.sources import Sources
from gpuwarden.doctor.examination import _CHECKS
from gpuwarden.doctor.row import Grade, Row
from gpuwarden.doctor.running import Running

NOBODY = Running(folder=Path("/run/gpuwarden"), status={}, why="no daemon answers")


def configured(folder: Path, text: str) -> Config:
    file = folder / "gpuwarden.toml"
    file.write_text(text)
    return load(Sources(file=file, required=True))


async def rows(check: str, config: Config) -> list[Row]:
    return await _CHECKS[check].rows(NOBODY, config)


@pytest.mark.parametrize("source", ["nvml", "pci", "kernel_log", "dcgm"])
async def test_a_source_that_is_switched_off_is_said_to_be_and_is_well(tmp_path: Path, source: str) -> None:
    name = source.replace("_", " ")
    (row,) = await rows(name, configured(tmp_path, f"[collectors.{source}]\nenabled = false\n"))
    assert (row.check, row.grade, row.found, row.to_do) == (name, Grade.OK, "disabled", "")


def with_slurm(folder: Path, enabled: str) -> Config:
    """A host with a slurm.conf, and no command of Slurm to ask."""
    conf = folder / "slurm.conf"
    conf.write_text("ClusterName=c\n")
    return configured(folder, f'[slurm]\n{enabled}\nconf = "{conf}"\nfolder = "{folder}"\n')


async def test_a_slurm_that_is_switched_off_by_hand_is_well_and_is_not_asked(tmp_path: Path) -> None:
    (row,) = await rows("slurm", with_slurm(tmp_path, "enabled = false"))
    assert (row.check, row.grade, row.to_do) == ("slurm.conf", Grade.OK, "")
    assert row.found.startswith(f"disabled: {tmp_path}/slurm.conf exists but is not used")
    assert f"{tmp_path}/gpuwarden.toml" in row.found


async def test_a_slurm_that_the_configuration_does_not_mention_is_a_warning(tmp_path: Path) -> None:
    row, *more = await rows("slurm", with_slurm(tmp_path, ""))
    assert (row.check, row.grade) == ("slurm.conf", Grade.WARN)
    assert "set slurm.enabled = true" in row.to_do
    assert more, "what it would need is shown, too"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[jobs]\nfinal_node_state = "down"\n', ['jobs.final_node_state = "down"']),
        ('[jobs]\nfailing_gpu = "requeue"\n', ["requeue of jobs.failing_gpu"]),
        ('[jobs]\nfailing_gpu = "signal"\n', []),
        ('[slurm]\nenabled = true\n[jobs]\nfinal_node_state = "down"\nfailing_gpu = "requeue"\n', []),
    ],
)
async def test_what_only_slurm_does_is_named_where_slurm_is_not_used(
    tmp_path: Path, text: str, named: list[str]
) -> None:
    warned = [row for row in await rows("job settings", configured(tmp_path, text)) if row.grade is Grade.WARN]
    assert len(warned) == bool(named)
    assert all(words in warned[0].found for words in named)
