"""`[test]`: all is off until it is set, and what could test nothing, or not where it runs, is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwarden.config.model import Config, ConfigError, load
from gpuwarden.config.sources import Sources
from gpuwarden.features.active_test.options import ActiveTestOptions, level_before_return


def loaded(folder: Path, text: str) -> Config:
    file = folder / "gpuwarden.toml"
    file.write_text(text)
    return load(Sources(file=file, environment={}))


def test_nothing_is_tested_without_a_person_unless_the_site_wants_it(tmp_path: Path) -> None:
    test = loaded(tmp_path, "").of(ActiveTestOptions)
    assert (test.enabled, test.return_gate, test.partition, test.quiet_hours) == (False, False, "", ())


def test_a_gate_before_the_return_and_tests_of_idle_nodes_may_be_wanted_together(tmp_path: Path) -> None:
    text = '[slurm]\nenabled = true\n[test]\nenabled = true\nreturn_gate = true\npartition = "idle"\nquiet_hours = ["08:00-18:00"]\n'
    assert loaded(tmp_path, text).of(ActiveTestOptions).return_gate


@pytest.mark.parametrize(("level", "timeout"), [("quick", "308s"), ("standard", "608s"), ("gate", "248s")])
def test_a_time_limit_that_the_deadlines_of_workers_fit_in_is_accepted(
    tmp_path: Path, level: str, timeout: str
) -> None:
    assert (
        loaded(tmp_path, f'{GATED}level = "{level}"\ngate_timeout = "{timeout}"').of(ActiveTestOptions).gate_timeout
        > 0.0
    )


def test_the_test_after_a_repair_is_of_level_quick_at_least_where_slurm_keeps_jobs_away(tmp_path: Path) -> None:
    site = loaded(tmp_path, f'{GATED}level = "gate"\n')
    assert (level_before_return(site), level_before_return(site, repaired=True)) == ("gate", "quick")
    site = loaded(tmp_path, f'{GATED}level = "standard"\n')
    assert (level_before_return(site), level_before_return(site, repaired=True)) == ("standard", "standard")
    site = loaded(tmp_path, '[file]\npath = "/out"\n[test]\nlevel = "standard"\n')
    assert (level_before_return(site), level_before_return(site, repaired=True)) == ("gate", "gate")


GATED = "[slurm]\nenabled = true\n[test]\nenabled = true\nreturn_gate = true\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[test]\nreturn_gate = true\n[slurm]\nenabled = true", "expected test.enabled = true beside return_gate"),
        ("[test]\nenabled = true\nreturn_gate = true\n[kubernetes]\nenabled = true", "tolerates gpuwarden's taint"),
        ("[test]\nenabled = true\nreturn_gate = true", "expected an actuator"),
        ("[test]\nenabled = true", "nothing is tested"),
        ('[test]\nenabled = true\npartition = "idle"', r"expected \[slurm\] enabled"),
        ('[test]\npartition = "a b"\n[slurm]\nenabled = true', "expected the name of a partition"),
        ('[test]\nlevel = "soak"', "level"),
        ('[test]\ngate_timeout = "1s"', "gate_timeout"),
        (f'{GATED}gate_timeout = "4m"', 'gate_timeout: expected at least "308s"'),
        (f'{GATED}level = "standard"\ngate_timeout = "10m"', "so long a test of level standard of 16 GPUs, 8 at once"),
        (f'{GATED}level = "standard"\nparallel = 1', "gate_timeout: expected at least"),
        ('[file]\npath = "/out"\n[test]\nenabled = true\nreturn_gate = true\ngate_timeout = "4m"', "level gate"),
        ("[test]\nparallel = 9", "parallel"),
        ("[test]\nat_once = 0", "at_once"),
        ('[test]\nevery = "1m"', "every"),
        ('[test]\nslurm_user = "a b"', "slurm_user"),
        ('[test]\naccount = "-x"', "account"),
        ('[test]\nqos = "-x"', "qos"),
        ('[test]\nquiet_hours = ["8-18"]', "22:00-06:00"),
        ('[test]\nquiet_hours = ["08:00-08:00"]', "not empty"),
    ],
)
def test_what_cannot_work_is_refused_with_its_key_and_why(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        loaded(tmp_path, text)


@pytest.mark.parametrize(
    ("hour", "quiet"), [(0, True), (5, True), (6, False), (12, True), (13, False), (21, False), (22, True)]
)
def test_quiet_hours_may_go_over_midnight(hour: int, quiet: bool) -> None:
    assert ActiveTestOptions(quiet_hours=("22:00-06:00", "12:00-13:00")).quiet(hour * 60) is quiet
