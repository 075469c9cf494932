"""`gpuwarden service`: what it writes is exactly what it removes, and what is another's, or was changed, stays."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from gpuwarden.service.code import writable
from gpuwarden.service.executable import Executables, refusals
from gpuwarden.service.files import LINKS, LOCAL_UNITS, SERVICE, local_files, source
from gpuwarden.service.installation import MANIFEST, Installation, ServiceError, State
from gpuwarden_deb.contents import LINKS as PACKAGED_LINKS
from gpuwarden_deb.contents import TABLE
from support.commands import gpuwarden
from support.needs import checkout_of_root
from support.trees import DATA

COMMAND, PYTHON = Path("/srv/tools/gpuwarden/bin/gpuwarden"), Path("/srv/tools/gpuwarden/bin/python")
UNIT = f"{LOCAL_UNITS}/{SERVICE}"
SYSTEMD = DATA.parents[1] / "systemd"


def installation(root: Path, version: str = "1.0", command: Path = COMMAND) -> Installation:
    return Installation(root, local_files(command, PYTHON), version)


def present(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_symlink() or path.is_file()}


def folders(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir() and "gpuwarden" in path.name}


def test_every_file_of_systemd_is_installed_and_starts_this_installation(tmp_path: Path) -> None:
    assert source() == SYSTEMD
    states = installation(tmp_path).install()
    assert set(states.values()) == {State.MISSING}
    assert present(tmp_path) == {*states, MANIFEST}
    assert len(states) == sum(path.is_file() for path in SYSTEMD.rglob("*")) + len(LINKS)
    texts = {path: (tmp_path / path).read_text() for path in states if path not in LINKS}
    assert not [path for path, text in texts.items() if re.search(r"/opt/gpuwarden|[^l]/share/gpuwarden", text)]
    started = re.findall(r"^Exec\w+=(\S+)", "\n".join(texts.values()), re.MULTILINE)
    assert set(started) == {str(COMMAND), str(PYTHON), "-/usr/bin/nvidia-modprobe"}
    assert all(os.access(tmp_path / path, os.X_OK) is ("libexec" in path) for path in texts)
    (link,) = LINKS
    assert (tmp_path / str((tmp_path / link).readlink()).lstrip("/")).name == "observe.conf"


def test_the_packages_are_made_by_the_same_table() -> None:
    packaged = {row.pattern for row in TABLE if row.pattern.startswith("systemd/")}
    files = {path for pattern in packaged for path in SYSTEMD.parent.glob(pattern) if path.is_file()}
    assert files == {path for path in SYSTEMD.rglob("*") if path.is_file()}
    assert any(SERVICE in link for link in PACKAGED_LINKS)


def test_what_was_installed_is_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / LOCAL_UNITS).mkdir(parents=True)
    (tmp_path / LOCAL_UNITS / "other.service").write_text("[Unit]\n")
    installation(tmp_path).install()
    assert set(installation(tmp_path).states().values()) == {State.SAME}
    assert set(installation(tmp_path).install().values()) == {State.SAME}, "again: nothing to do"
    assert set(installation(tmp_path).remove().values()) == {State.SAME}
    assert present(tmp_path) == {f"{LOCAL_UNITS}/other.service"}
    assert folders(tmp_path) == set()
    with pytest.raises(ServiceError, match="nothing was installed"):
        installation(tmp_path).remove()


def test_folders_are_open_to_the_users_of_what_is_in_them_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        installation(tmp_path).install()
    finally:
        os.umask(before)
    made = [path for path in tmp_path.rglob("*") if path.is_dir()]
    assert made
    assert {path.stat().st_mode & 0o777 for path in made} == {0o755}


def test_an_upgrade_replaces_what_nobody_changed(tmp_path: Path) -> None:
    installation(tmp_path).install()
    (link,) = LINKS
    (tmp_path / UNIT).write_text("[Service]\nExecStart=mine\n")
    (tmp_path / link).unlink()
    (tmp_path / link).symlink_to("/usr/local/share/gpuwarden/profiles/enforce.conf")
    states = installation(tmp_path, "2.0", Path("/elsewhere/gpuwarden")).install()
    assert (states[UNIT], states[link]) == (State.CHANGED, State.CHANGED)
    assert states[f"{LOCAL_UNITS}/gpuwarden-nvhcd.service"] is State.OUTDATED
    assert "=/elsewhere/gpuwarden nvhcd" in (tmp_path / LOCAL_UNITS / "gpuwarden-nvhcd.service").read_text()
    assert "mine" in (tmp_path / UNIT).read_text()
    removed = installation(tmp_path, "2.0", Path("/elsewhere/gpuwarden")).remove()
    assert {path for path, state in removed.items() if state is State.CHANGED} == {UNIT, link}
    assert present(tmp_path) == {UNIT, link}


def test_an_upgrade_that_was_interrupted_is_finished_by_the_next_one(tmp_path: Path) -> None:
    installation(tmp_path).install()
    unit = tmp_path / UNIT
    obstacle = unit.with_name(f".{unit.name}.new")
    obstacle.mkdir()
    with pytest.raises(IsADirectoryError):  # some files are new now, and some are not
        installation(tmp_path, "2.0", Path("/elsewhere/gpuwarden")).install()
    obstacle.rmdir()
    states = installation(tmp_path, "2.0", Path("/elsewhere/gpuwarden")).install()
    assert State.CHANGED not in states.values()
    assert "=/elsewhere/gpuwarden" in unit.read_text()


def test_a_file_of_an_earlier_version_goes_with_the_upgrade(tmp_path: Path) -> None:
    installation(tmp_path).install()
    old = f"{LOCAL_UNITS}/gpuwarden-old.service"
    (tmp_path / old).write_text("old")
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    manifest["files"][old] = "cba06b5736faf67e54b07b561eae94395e774c517a7d910a54369e1263ccfbd4"  # sha256 of "old"
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    assert installation(tmp_path, "2.0").install()[old] is State.OUTDATED
    assert not (tmp_path / old).exists()


@pytest.mark.parametrize("folder", ["usr/lib/systemd/system", "lib/systemd/system"])
def test_where_a_package_has_the_units_nothing_is_written(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / SERVICE).write_text("")
    with pytest.raises(ServiceError, match="a package of this host has the units already"):
        installation(tmp_path).install()
    assert present(tmp_path) == {f"{folder}/{SERVICE}"}


def test_a_foreign_file_or_a_manifest_that_cannot_be_read_stops_it_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / UNIT).parent.mkdir(parents=True)
    (tmp_path / UNIT).write_text("somebody's")
    with pytest.raises(ServiceError, match=f"not installed by gpuwarden: /{UNIT}"):
        installation(tmp_path).install()
    assert present(tmp_path) == {UNIT}
    for broken in ("{", "[]", '{"format": 9}'):
        (tmp_path / MANIFEST).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / MANIFEST).write_text(broken)
        with pytest.raises(ServiceError, match="delete it and the files by hand"):
            installation(tmp_path).remove()


def virtual_environment(folder: Path) -> Executables:
    """A Python that finds gpuwarden and its libraries where this one does, but in folders of its own."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=120)
    command = folder / "bin/gpuwarden"
    command.write_text(f"#!{folder}/bin/python\nfrom gpuwarden.cli.main import main\nmain()\n")
    command.chmod(0o755)
    checkout = str(
        Path(__file__).parents[1]
    )  # is on the path of `python -m pytest`, with all that tests have built below it
    (site(folder) / "paths.pth").write_text(
        "\n".join(path for path in sys.path if path.startswith("/") and path != checkout) + "\n"
    )
    return Executables(command, folder / "bin/python", (folder / "bin/python").resolve())


def site(folder: Path) -> Path:
    return folder / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


OTHER = 1000


def owned(path: Path) -> None:
    os.chown(path, OTHER, OTHER)


def listed(path: Path) -> None:
    """An access list by which user 1000 may write: entries of owner, that user, group, mask and others."""
    entries = ((1, 7, -1), (2, 6, OTHER), (4, 4, -1), (16, 6, -1), (32, 4, -1))
    data = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    os.setxattr(path, "system.posix_acl_access", data)


def for_all(path: Path) -> None:
    path.chmod(0o777)


def of_group(path: Path) -> None:
    os.chown(path, 0, OTHER)
    path.chmod(path.stat().st_mode | 0o020)


@pytest.mark.needs("root")
def test_the_files_beside_a_package_are_looked_at_whichever_folder_comes_first(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    package = tmp_path / "site/package"
    package.mkdir(parents=True)
    line = tmp_path / "site/line.pth"
    line.touch()
    line.chmod(0o666)
    for paths in ([package.parent, package], [package, package.parent]):
        assert line in [each.path for each in writable(paths)], paths


@pytest.mark.needs("root")
def test_a_folder_above_with_the_sticky_bit_is_its_owner_s_all_the_same(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "theirs/site").mkdir(parents=True)
    owned(tmp_path / "theirs")
    (tmp_path / "theirs").chmod(0o1755)
    assert [each.path for each in writable([tmp_path / "theirs/site"])] == [tmp_path / "theirs"]


@pytest.mark.slow
def test_code_that_others_than_root_can_change_is_refused_each_by_its_name(tmp_path: Path) -> None:
    checkout_of_root()
    tmp_path.chmod(0o755)
    installed = virtual_environment(tmp_path / "opt/gw")
    packages = site(tmp_path / "opt/gw")
    before = set(refusals(installed, temporary=()))
    assert not [line for line in before if "can be changed" in line], "what root alone can change"
    (packages / "lib").mkdir()
    checkout = tmp_path / "home/checkout"
    (checkout / "editable").mkdir(parents=True)
    (checkout / "editable/__init__.py").touch()
    (packages / "by_path.pth").write_text(f"{checkout}\n")
    (packages / "module.py").touch()
    files = (packages / "module.py", packages / "by_path.pth", checkout / "editable/__init__.py",
        installed.command, tmp_path / "opt/gw/pyvenv.cfg")  # fmt: skip
    for changes in (  # at once what is in no other one's folder, whose name would stand for it
        [*((owned, path, "chown root:") for path in files), (of_group, packages / "lib", "chmod g-w")],
        [(owned, checkout, "chown root:"), (listed, packages / "module.py", "setfacl -b")],
        [(for_all, packages, "chmod o-w"), (for_all, tmp_path / "home", "chmod o-w")],
        [(for_all, tmp_path / "opt", "chmod o-w")],
    ):
        states = [(path, path.stat()) for _, path, _ in changes]
        for change, path, _ in changes:
            change(path)
        new = set(refusals(installed, temporary=())) - before
        for _, path, to_type in changes:
            assert any(f"{path} can be changed by" in line and f"{to_type} {path}" in line for line in new), (path, new)
        for path, status in states:
            with contextlib.suppress(OSError):
                os.removexattr(path, "system.posix_acl_access")
            os.chown(path, status.st_uid, status.st_gid)
            path.chmod(status.st_mode & 0o7777)
    assert set(refusals(installed, temporary=())) == before


@pytest.mark.slow
def test_an_editable_install_of_a_users_checkout_is_refused(tmp_path: Path) -> None:
    """Setuptools makes such an install: a .pth file loads a finder, and sys.path has no folder of it."""
    checkout_of_root()
    tmp_path.chmod(0o755)
    installed = virtual_environment(tmp_path / "gw")
    packages, module = site(tmp_path / "gw"), tmp_path / "alice/theirs.py"
    module.parent.mkdir()
    module.touch()
    (packages / "theirs-1.dist-info").mkdir()
    (packages / "theirs-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    (packages / "theirs-1.dist-info/top_level.txt").write_text("theirs\n")
    (packages / "__editable__theirs.pth").write_text("import editable_finder; editable_finder.install()\n")
    (packages / "editable_finder.py").write_text(
        "import importlib.util, sys\n"
        "class Finder:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        f"        return importlib.util.spec_from_file_location(name, {str(module)!r}) if name == 'theirs' else None\n"
        "def install():\n    sys.meta_path.append(Finder)\n"
    )
    before = refusals(installed, temporary=())
    assert str(module.parent) not in "".join(before)
    owned(module.parent)
    named = [line for line in refusals(installed, temporary=()) if line not in before]
    assert named == [f"{module.parent} can be changed by its owner {_name(OTHER)}: chown root: {module.parent}"]


def _name(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


@pytest.mark.slow
def test_a_unit_starts_only_what_stays_and_can_be_run(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    good = virtual_environment(tmp_path / "opt")
    assert "folder for temporary files" in "".join(refusals(good, temporary=(str(tmp_path),)))
    cached = virtual_environment(tmp_path / "home/.cache/pipx/ab")
    assert "it is in a cache" in "".join(refusals(cached, temporary=()))
    (tmp_path / "opt/CACHEDIR.TAG").touch()
    assert "it is in a cache (uvx, pipx run)" in "".join(refusals(good, temporary=()))
    (tmp_path / "home").chmod(0o700)
    closed = "".join(refusals(cached, temporary=("/nowhere",)))
    assert "uv tool install gpuwarden" in closed
    assert "was not installed as a command" in refusals(Executables(tmp_path / "none", good.python, good.base))[0]


@pytest.mark.needs("root")
def test_the_command_refuses_and_writes_nothing(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    installed = virtual_environment(tmp_path / "gw")
    module = site(tmp_path / "gw") / "theirs.py"
    module.touch()
    owned(module)
    done = subprocess.run(
        [installed.python, "-m", "gpuwarden", "service", "install", "--root", tmp_path / "root"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, f"{module} can be changed by its owner" in done.stderr) == (64, True), done.stderr
    assert not (tmp_path / "root").exists()


def test_the_command_names_each_path_and_what_to_type(tmp_path: Path) -> None:
    shown = gpuwarden("service", "show", "--root", tmp_path, temporary=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert f"/{UNIT}: not installed\n" in shown.stdout
    bad = gpuwarden("service", "remove", "--root", tmp_path, temporary=tmp_path)
    if os.geteuid() == 0:
        assert (bad.returncode, "nothing was installed" in bad.stderr) == (64, True)
    else:
        assert (bad.returncode, "root" in bad.stderr) == (77, True)
    assert gpuwarden("service", "start", temporary=tmp_path).returncode == 64
