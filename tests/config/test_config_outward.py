"""`[file]`, `[dstack]`, `[nvhcd]`, `[exec]`, `[notify]`, and who counts: all faults at once, before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwarden.config.model import Config, ConfigError, load
from gpuwarden.config.render import as_toml
from gpuwarden.config.sources import Sources
from gpuwarden.features import Excludes
from gpuwarden.features.file.options import FileOptions


def loaded(folder: Path, text: str) -> Config:
    file = folder / "gpuwarden.toml"
    file.write_text(text)
    return load(Sources(file=file, environment={}))


HOOK = '[notify.webhook.pager]\nurl = "https://h.example/gpu"\n'


def test_what_is_configured_is_what_is_read_and_shown(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        '[file]\npath = "/run/lb/out"\n[dstack]\nenabled = true\n[exec.exclude]\ncommand = ["/usr/local/sbin/lb", "-v"]\n'
        f'{HOOK}key = "hmac"\nevents = ["health", "exclusion"]\n[notify.exec.log]\ncommand = ["/usr/bin/logger"]\n',
    )
    assert config.of(FileOptions).path == Path("/run/lb/out")
    assert config.excluding(Excludes.BY_MARKER, Excludes.BY_ACTUATOR) == ("file", "dstack")
    assert config.exec.exclude.command == ("/usr/local/sbin/lb", "-v")
    assert config.notify.webhook["pager"].events == ("health", "exclusion")
    assert config.notify.exec["log"].events == ("health", "finding", "exclusion", "termination", "job")
    assert loaded(tmp_path, as_toml(config, {})) == config


FAULTS: dict[str, tuple[str, str]] = {
    "a relative marker": ('[file]\npath = "out"', "file.path: expected an absolute path"),
    "a program without its path": ('[exec.exclude]\ncommand = ["lb"]', "exec.exclude.command"),
    "a program without a time limit": ('[exec.exclude]\ncommand = ["/lb"]\ntimeout = "2m"', "exec.exclude.timeout"),
    "nobody to be notified": ("[notify.webhook.pager]", "notify.webhook.pager.url: expected url or url_file, found neither"),
    "two addresses": (f'{HOOK}url_file = "u"', "found both"),
    "no address": ('[notify.webhook.pager]\nurl = "h.example"', "expected an address such as"),
    "a secret in the address": ('[notify.webhook.pager]\nurl = "https://u:p@h"', "which every user of the host could read"),
    "two logins": (f'{HOOK}token = "a"\nbasic = "b"', "not both"),
    "a group that is none": (f'{HOOK}events = ["all"]', "expected one of health, finding, exclusion, termination"),
    "a name that is none": ('[notify.exec.Log]\ncommand = ["/l"]', "notify.exec.Log: expected a name"),
    "a typing error": (f'{HOOK}tiemout = "1s"', "did you mean 'timeout'"),
    "an address of Prometheus with a query": ('[breaker]\nprometheus = "http://p/?x=1"', "breaker.prometheus"),
    "matchers that are none": ('[breaker]\nprometheus_match = "east"', "breaker.prometheus_match: expected label matchers"),
    "an injection": ("[breaker]\nprometheus_match = 'a=\"b\"}) or vector(0'", "breaker.prometheus_match"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_reported_with_its_key_and_the_expected_value(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        loaded(tmp_path, text)
    assert message in str(raised.value)


def test_all_faults_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        loaded(tmp_path, '[notify.webhook.a]\n[notify.webhook.b]\n[notify.exec.c]\n[exec.exclude]\ncommand = ["x"]\n')
    assert len(raised.value.faults) == 4


ACTING = [
    '[file]\npath = "/o"',
    "[dstack]\nenabled = true",
    "[nvhcd]\nenabled = true",
    '[exec.exclude]\ncommand = ["/l"]',
]
COUNTING = ['breaker.prometheus = "http://p:9090"', 'breaker.uncounted = "allow"', "slurm.enabled = true"]  # fmt: skip


@pytest.mark.parametrize("acting", ACTING)
def test_mode_enforce_needs_somebody_who_counts(tmp_path: Path, acting: str) -> None:
    with pytest.raises(ConfigError, match="needs a fleet counter") as raised:
        loaded(tmp_path, f'mode = "enforce"\n{acting}')
    assert "set breaker.prometheus" in str(raised.value)
    for counting in COUNTING:
        loaded(tmp_path, f'mode = "enforce"\n{counting}\n{acting}')
    loaded(tmp_path, acting)
    loaded(tmp_path, f'mode = "enforce"\n{HOOK}')  # which keeps no work away
