"""What the package is made of, as far as that can be seen without building it: `test_package_machine.py` builds it."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

import gpuwarden
from gpuwarden.config.model import Config, load
from gpuwarden.config.sources import Sources
from gpuwarden.doctor.termination import ENOUGH
from gpuwarden.service.files import SERVICE
from gpuwarden_deb import completions, contents
from gpuwarden_deb.control import debian_version, project
from gpuwarden_deb.example import example
from gpuwarden_deb.inspection import inspect
from gpuwarden_deb.man_page import man_page
from gpuwarden_deb.paths import PACKAGING, REQUIREMENTS, ROOT, TOOLS, WORK, BuildError
from gpuwarden_deb.sbom import canonical
from gpuwarden_deb.verbs import verbs

ALL = list(verbs())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WANTED = [*PROJECT["dependencies"], *(name for extra in PROJECT["optional-dependencies"].values() for name in extra)]


# --- the lock


def locked(file: Path) -> dict[str, tuple[tuple[int, ...], int]]:
    """Return the version and the number of hashes of each package, by name."""
    pins = {}
    for entry in re.split(r"\n(?=\S)", file.read_text()):
        if not entry.startswith("#"):
            name, version = re.findall(r"^([\w.-]+)==([\w.!]+)", entry)[0]
            pins[canonical(name)] = numbers(version), len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", entry))
    return pins


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


@pytest.mark.parametrize("requirement", WANTED)
def test_the_lock_has_what_the_project_wants_within_its_bounds(requirement: str) -> None:
    name, bounds = re.findall(r"^([\w.-]+)(.*)$", requirement)[0]
    assert canonical(name) in locked(REQUIREMENTS), "run `make lock`"
    version, _ = locked(REQUIREMENTS)[canonical(name)]
    for sign, bound in re.findall(r"(>=|<)([\d.]+)", bounds):
        least = numbers(bound)
        assert version >= least if sign == ">=" else version[: len(least)] < least, "run `make lock`"


@pytest.mark.parametrize(
    "lock", [REQUIREMENTS, TOOLS, PACKAGING / "ptxas.lock", PACKAGING / "helm.lock"], ids=lambda lock: lock.name
)
def test_every_entry_of_a_lock_has_hashes_and_none_names_its_index(lock: Path) -> None:
    assert all(count > 0 for _, count in locked(lock).values())
    assert not re.search(r"://|^\s*-[-\w]*(index|find-links|extra)", lock.read_text(), re.MULTILINE)


# --- the example configuration


def test_the_example_configuration_shows_every_default_as_it_is(tmp_path: Path) -> None:
    text = example()
    assert tomllib.loads(text) == {}
    keys = "\n".join(line.removeprefix("#") for line in text.splitlines() if not line.startswith("# "))
    file = tmp_path / "gpuwarden.toml"
    file.write_text(keys)
    assert load(Sources(file=file, required=True)) == Config(node="gpu-node01")
    assert set(tomllib.loads(keys)) >= {"mode", "collectors", "policy", "slurm", "publish", "state"}


def test_the_configuration_that_is_installed_changes_nothing() -> None:
    assert tomllib.loads((PACKAGING / "gpuwarden.toml").read_text()) == {}


# --- the manual page and the completions


def test_the_manual_page_has_every_verb_with_every_option() -> None:
    page = man_page(ALL, "1.2.3", 0)
    for verb in ALL:
        section = page.partition(f'.SS "gpuwarden {verb.name.replace("-", chr(92) + "-")}"')[2].partition("\n.SS ")[0]
        for option in verb.options:
            assert all(flag.replace("-", r"\-") in section for flag in option.flags), verb.name
    if shutil.which("groff"):
        done = subprocess.run(
            ["groff", "-man", "-Tutf8", "-ww", "-z"],
            input=page,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")


def completed(script: Path, *words: str) -> set[str]:
    """Return the completions that bash offers for the last of these arguments, as if they had been typed."""
    typed = " ".join(f"'{word}'" for word in words)
    asked = f'. "{script}"; COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _gpuwarden; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(
        ["bash", "--norc", "-c", asked], capture_output=True, text=True, timeout=60, check=True, cwd=script.parent
    )
    assert done.stderr == ""
    return set(done.stdout.split())


def test_bash_completes_verbs_options_values_files_and_folders(tmp_path: Path) -> None:
    script = tmp_path / "gpuwarden"
    script.write_text(completions.bash(ALL))
    (tmp_path / "folder").mkdir()
    assert completed(script, "gpuwarden", "") == {verb.name for verb in ALL}
    assert completed(script, "gpuwarden", "ex") == {"explain", "exclude", "exclusions"}
    assert completed(script, "gpuwarden", "config", "s") == {"show"}
    assert completed(script, "gpuwarden", "run", "--mode", "") == {"observe", "enforce"}
    assert completed(script, "gpuwarden", "run", "--li") == {"--listen"}
    assert completed(script, "gpuwarden", "run", "--config", "") == {"gpuwarden", "folder"}
    assert completed(script, "gpuwarden", "run", "--run-dir", "") == {"folder"}
    assert completed(script, "gpuwarden", "run", "--listen", "") == set()
    for verb in ALL:
        flags = {flag for option in verb.options for flag in option.flags}
        assert completed(script, "gpuwarden", verb.name, "-") == flags


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_completions_of_the_other_shells_are_read_by_them_and_have_every_option(shell: str, tmp_path: Path) -> None:
    text = {"zsh": completions.zsh, "fish": completions.fish}[shell](ALL)
    for verb in ALL:
        assert verb.name in text
        assert all(flag.lstrip("-") in text for option in verb.options for flag in option.flags)
    if shutil.which(shell):
        (tmp_path / "script").write_text(text)
        subprocess.run([shell, "-n", tmp_path / "script"], check=True, timeout=60)


# --- what is laid where


def test_every_file_of_systemd_has_its_place_and_the_units_are_named_in_the_scripts(tmp_path: Path) -> None:
    contents.lay(tmp_path, "1.2.3", 0)
    contents.maintainer_scripts(tmp_path, tmp_path / "DEBIAN")
    assert f"for unit in {SERVICE} gpuwarden-" in (tmp_path / "DEBIAN/postinst").read_text()
    assert {unit.replace("@*.", "@.") for unit in contents.units(tmp_path)} == {
        file.name for kind in ("service", "socket", "timer") for file in (ROOT / "systemd").glob(f"*.{kind}")
    }
    assert (tmp_path / contents.UNITS / f"{SERVICE}.d/10-profile.conf").resolve() == (
        tmp_path / "usr/share/gpuwarden/profiles/observe.conf"
    )
    for script in ("preinst", "postinst", "prerm", "postrm"):
        text = (tmp_path / "DEBIAN" / script).read_text()
        assert text.startswith("#!/bin/sh\n")
        assert not re.search(r"@[A-Z]+@", text)
        subprocess.run(["sh", "-n", tmp_path / "DEBIAN" / script], check=True, timeout=60)


@pytest.mark.parametrize(
    ("path", "data", "message"),
    [
        ("usr/share/x", f"built in {WORK}/stage".encode(), "names"),
        ("opt/gpuwarden/bin/gpuwarden", b"#!/usr/bin/python3\n", "is not started by the Python"),
        ("opt/gpuwarden/lib/x.dist-info/direct_url.json", b"{}", "names the origin of a wheel"),
        ("opt/gpuwarden/lib/__pycache__/x.cpython-311.pyc", bytes(16), "checks its source"),
        ("opt/gpuwarden/lib/x.py", b"", "is not compiled"),
    ],
)
def test_what_should_not_leave_the_place_of_the_build_ends_it(
    tmp_path: Path, path: str, data: bytes, message: str
) -> None:
    contents.write(tmp_path / "usr/share/fine", b"text")
    inspect(tmp_path)
    contents.write(tmp_path / path, data)
    with pytest.raises(BuildError, match=f"/{re.escape(path)} .*{message}"):
        inspect(tmp_path)


def test_the_drop_in_of_logind_lets_a_shutdown_wait_for_as_long_as_doctor_wants() -> None:
    assert f"InhibitDelayMaxSec={ENOUGH:g}\n" in (ROOT / "systemd/logind.conf").read_text()


def test_the_package_has_the_version_of_the_tree() -> None:
    assert project() == (gpuwarden.__version__, PROJECT["license"])


def test_a_version_before_a_release_sorts_before_it() -> None:
    assert debian_version("1.0", "debian12") == "1.0+debian12"
    assert debian_version("1.0rc1", "debian12") == "1.0~rc1+debian12"
    assert debian_version("1.0.dev3", "ubuntu24.04") == "1.0~dev3+ubuntu24.04"
