"""The Ansible role: its files are YAML, and the configuration that it writes is one that gpuwarden takes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuwarden.engine.reload import Reloaded
from gpuwarden.health.view import Rules
from gpuwarden_deb.contents import LINKS
from gpuwarden_deb.paths import PACKAGING
from support.commands import gpuwarden

ROLE = PACKAGING / "ansible/roles/gpuwarden"
TASKS, HANDLERS, DEFAULTS = (
    yaml.safe_load((ROLE / f"{name}/main.yml").read_text()) for name in ("tasks", "handlers", "defaults")
)
EXPRESSION = re.compile(r"\{\{ (\w+) \}\}")


def task(name: str) -> dict[str, Any]:
    (entry,) = [each for each in TASKS if each["name"] == name]
    return dict(entry)


def test_each_task_notifies_a_handler_that_there_is_and_uses_variables_that_have_a_default() -> None:
    (play,) = yaml.safe_load((PACKAGING / "ansible/gpuwarden.yml").read_text())
    assert play["roles"] == [ROLE.name]
    notified = {each["notify"] for each in (*TASKS, *HANDLERS) if "notify" in each}
    assert notified == {each["name"] for each in HANDLERS}
    assert set(EXPRESSION.findall((ROLE / "tasks/main.yml").read_text())) == set(DEFAULTS)


def test_it_uses_no_module_that_the_ansible_of_an_older_distribution_lacks() -> None:
    """Ubuntu 22.04 has Ansible 2.10, which refuses a play with an unknown module: systemd_service is a later name of systemd."""
    used = {key for each in (*TASKS, *HANDLERS) for key in each if key.startswith("ansible.builtin.")}
    of_2_10 = {"apt", "assert", "command", "copy", "dnf", "file", "stat", "systemd"}
    assert used <= {f"ansible.builtin.{name}" for name in of_2_10}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["observe", "enforce"])
def test_the_configuration_that_it_writes_is_valid_and_the_profile_of_the_mode_exists(
    mode: str, tmp_path: Path
) -> None:
    assert re.findall(r"'(\w+)'", DEFAULTS["gpuwarden_mode"]) == ["enforce", "gpuwarden_canary", "observe"]
    values = {**DEFAULTS, "gpuwarden_mode": mode}
    written = EXPRESSION.sub(lambda match: values[match[1]], task("Configuration")["ansible.builtin.copy"]["content"])
    file = tmp_path / "written.toml"
    file.write_text(written)
    done = gpuwarden("config", "check", "--config", file, temporary=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f'mode = "{mode}"' in gpuwarden("config", "show", "--config", file, temporary=tmp_path).stdout
    assert (PACKAGING.parent / f"systemd/profiles/{mode}.conf").exists()


def test_it_takes_the_profiles_that_there_are_and_no_other_name() -> None:
    """A link that leads nowhere would start the daemon without any profile."""
    (names,) = re.findall(
        r"gpuwarden_profile in (\[.+\])", task("Name of the profile")["ansible.builtin.assert"]["that"]
    )
    assert yaml.safe_load(names) == sorted(path.stem for path in (PACKAGING.parent / "systemd/profiles").iterdir())


def test_it_replaces_the_link_by_which_the_package_chooses_the_profile() -> None:
    (link,) = (Path(path) for path in LINKS if path.endswith("10-profile.conf"))
    chosen = Path(task("Profile")["ansible.builtin.file"]["dest"])
    assert chosen.parts[-2:] == link.parts[-2:]


def test_it_also_installs_an_older_package() -> None:
    """A fleet must be able to leave a bad release. The module apt of an ansible-core before 2.12 refuses this parameter."""
    assert task("Package for RHEL and Amazon Linux")["ansible.builtin.dnf"]["allow_downgrade"] is True
    allowed = task("Package for Debian and Ubuntu")["ansible.builtin.apt"]["allow_downgrade"]
    assert allowed == "{{ true if ansible_version.full is version('2.12', '>=') else omit }}"


def test_it_restarts_the_daemon_where_a_reload_says_that_keys_wait_for_that() -> None:
    (reload,) = (each for each in HANDLERS if each["name"] == "Reload gpuwarden")
    (words,) = re.findall(r"'(.+)' in gpuwarden_reloaded.stdout", reload["changed_when"])
    assert words in str(Reloaded(Rules(), taken=(), waiting=("mode",)))
    assert words not in str(Reloaded(Rules(), taken=("policy.look_often",), waiting=()))


def test_a_play_in_check_mode_asks_for_nothing_that_only_the_package_brings() -> None:
    """The role installs nothing in check mode, and a module that finds no unit ends the play: `--check` is what operations.md prints first."""
    ask = [each for each in (*TASKS, *HANDLERS) if "ansible.builtin.systemd" in each]
    assert [each["when"] for each in ask] == ["gpuwarden_installed.stat.exists"] * 2
    looked = task("What is installed")
    assert (looked["register"], looked["ansible.builtin.stat"]) == (
        "gpuwarden_installed",
        {"path": "/usr/bin/gpuwarden"},
    )
    names = [each["name"] for each in TASKS]
    assert names.index("Package for RHEL and Amazon Linux") < names.index(looked["name"]) < names.index("Service")
