"""`[policy]` and `[breaker]`: what can be set is checked before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwarden.config.model import Config, ConfigError, load
from gpuwarden.config.sources import Sources
from gpuwarden.policy.model import Settings
from gpuwarden.runtime.wiring import Site


def loaded(folder: Path, text: str) -> Config:
    file = folder / "gpuwarden.toml"
    file.write_text(text)
    return load(Sources(file=file, environment={}))


def test_the_table_of_policy_is_its_settings(tmp_path: Path) -> None:
    config = loaded(tmp_path, '[policy]\non_unknown = "exclude"\nunknown_after = "20m"\n')
    assert config.policy == Settings(on_unknown="exclude", unknown_after=1200.0)


def test_mode_and_horizon_reach_policy_from_their_own_tables(tmp_path: Path) -> None:
    config = loaded(tmp_path, 'mode = "enforce"\n[termination]\nhorizon = "5m"\n[breaker]\ncount = 3\n')
    acting = Site.of(config).enforcement
    assert acting.settings == Settings(enforce=True, horizon=300.0)
    assert acting.limits.budget.count == 3


def test_containers_are_watched_for_stalls_only_where_the_site_wants_it(tmp_path: Path) -> None:
    assert Site.of(loaded(tmp_path, "")).sources.watched_containers is None
    config = loaded(tmp_path, '[jobs]\nstalled_containers = true\ndocker = "/run/podman.sock"\n')
    assert Site.of(config).sources.watched_containers == Path("/run/podman.sock")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[policy]\non_unknown = "drain"', "on_unknown"),
        ('[policy]\nunknown_after = "1s"', "unknown_after"),
        ("[policy]\nrestore_passes = 0", "restore_passes"),
        ("[policy]\nrestores_per_day = -1", "restores_per_day"),
        ('[policy]\nlook_every = "1s"', "look_every"),
        ("[breaker]\npercent = 101", "percent"),
        ("[breaker]\ncount = 0", "count"),
        ('[breaker]\nwindow = "1s"', "window"),
        ('[breaker]\nrecount_after = "500ms"', "whole seconds"),
        ("[breaker]\nshare = 25", "unknown key"),
        ("[policy]\nenforce = true", "unknown key"),
        ('[checks.job_stalled]\nseverity = "failure"', "expected warning: it is about a job"),
        ('[jobs]\nstalled_after = "30s"', "stalled_after"),
    ],
)
def test_what_is_dangerous_is_refused_with_its_key_and_why(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        loaded(tmp_path, text)
