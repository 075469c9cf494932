"""The tables of the host's collectors and of site checks: what is refused, and with which message."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from gpuwarden.config.bounds import misfits
from gpuwarden.config.collectors import Collectors, plugin_misfits
from gpuwarden.config.model import Config, ConfigError, load
from gpuwarden.config.sources import Sources
from gpuwarden_collectors.host_collectors.services import ServicesOptions
from gpuwarden_collectors.host_collectors.storage import StorageOptions
from gpuwarden_collectors.options import PolledOptions
from gpuwarden_collectors.plugin.options import PluginOptions, SiteCheck

NHC = SiteCheck(command=("/usr/sbin/nhc",))


def read(tmp_path: Path, text: str) -> Config:
    file = tmp_path / "gpuwarden.toml"
    file.write_text(text)
    return load(Sources(file=file))


def faults(tmp_path: Path, text: str) -> dict[str, str]:
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, text)
    return {fault.key: fault.message for fault in raised.value.faults}


def test_the_defaults_are_sound() -> None:
    assert list(misfits(Collectors())) == []
    assert list(plugin_misfits("", {})) == []


def test_a_site_check_is_a_table_of_its_own(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        '[plugins.nhc]\ncommand = ["/usr/sbin/nhc", "-a"]\ninterval = "5m"\ntimeout = "40s"\n'
        "warning_codes = []\nfailure_codes = [1]\n[collectors.plugin]\nlimit = 1\n",
    )
    assert config.plugins == {
        "nhc": SiteCheck(("/usr/sbin/nhc", "-a"), True, 300.0, 40.0, warning_codes=(), failure_codes=(1,))
    }
    assert config.collectors.plugin == PluginOptions(limit=1)


def test_every_fault_is_reported_at_once_with_its_key(tmp_path: Path) -> None:
    messages = faults(
        tmp_path,
        '[plugins.a]\ncommand = "/usr/sbin/nhc -a"\n[plugins.b]\ncommand = ["nhc"]\nwarning_codes = [1, 2]\n'
        '[plugins.Bad]\ncommand = ["/bin/true"]\n[plugins.failed]\ncommand = ["/bin/true"]\n'
        '[plugins.c]\ncommand = ["/bin/true"]\ninterval = "10ms"\ntimeout = "2h"\n[collectors.storage]\nexpected = ["data"]\n',
    )
    assert "expected a list" in messages["plugins.a.command"]
    assert "whole path" in messages["plugins.b.command"]
    assert "found 2 in both" in messages["plugins.b.warning_codes"]
    assert "plugin_nhc" in messages["plugins.Bad"]
    assert "one of gpuwarden's own" in messages["plugins.failed"]
    assert {"plugins.c.interval", "plugins.c.timeout", "collectors.storage.expected"} <= set(messages)


@pytest.mark.parametrize(
    ("plugins", "key"),
    [
        ({"nhc": SiteCheck()}, "plugins.nhc.command"),
        ({"nhc": replace(NHC, failure_codes=(0,))}, "plugins.nhc.warning_codes"),
        ({"nhc": replace(NHC, command=("/bin/a", "b\0"))}, "plugins.nhc.command"),
        ({f"p{n}": NHC for n in range(65)}, "plugins"),
    ],
)
def test_what_cannot_be_meant_is_refused(plugins: dict[str, SiteCheck], key: str) -> None:
    ((keys, message),) = plugin_misfits("", plugins)
    assert keys[0] == key
    assert message.startswith("expected ")


@pytest.mark.parametrize(
    ("table", "keys"),
    [
        (StorageOptions(patience=20.0), ("patience", "deadline")),
        (StorageOptions(expected=("/data", "data")), ("expected",)),
        (ServicesOptions(expected=("lustre client",)), ("expected",)),
    ],
)
def test_a_collector_names_what_is_wrong_in_its_table(table: PolledOptions, keys: tuple[str, ...]) -> None:
    ((named, message),) = misfits(table, "collectors.here")
    assert named == tuple(f"collectors.here.{key}" for key in keys)
    assert message.startswith("expected ")


def test_every_configuration_in_the_page_about_site_checks_is_sound(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/use/site-checks.md").read_text()
    blocks = re.findall(r"^```toml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    config = read(tmp_path, "\n".join(blocks))
    assert set(config.plugins) == {"diag", "scratch", "nhc", "gcm_ibstat"}
    assert config.plugins["nhc"].failure_codes == (1,)
    assert config.checks["plugin_scratch"].shadow
