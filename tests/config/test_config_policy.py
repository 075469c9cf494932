"""`[policy]` and `[breaker]`: what can be set is checked before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwarden.config.model import Config, ConfigError, load
from gpuwarden.config.policy import budget, settings
from gpuwarden.config.sources import Sources
from gpuwarden.policy.model import Budget, Settings


def loaded(folder: Path, text: str) -> Config:
    file = folder / "gpuwarden.toml"
    file.write_text(text)
    return load(Sources(file=file, environment={}))


def test_the_defaults_are_those_of_policy(tmp_path: Path) -> None:
    config = loaded(tmp_path, "")
    assert settings(config.policy, enforce=False) == Settings()
    assert budget(config.breaker) == Budget()


def test_unknown_excludes_only_where_it_is_said(tmp_path: Path) -> None:
    config = loaded(tmp_path, '[policy]\non_unknown = "exclude"\nunknown_after = "20m"\n')
    assert settings(config.policy, enforce=True).unknown_after == 1200.0


@pytest.mark.parametrize(
    ("text", "told"),
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
    ],
)
def test_what_is_dangerous_is_refused_with_its_key_and_why(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        loaded(tmp_path, text)
