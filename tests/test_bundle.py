"""What the bundle needs of a host, how it starts, and how its files are put together, without the CPython that is built for it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from gpuwarden_bundle import baseline
from gpuwarden_bundle.archive import archive
from gpuwarden_bundle.baseline import Need, check, parsed, recorded
from gpuwarden_deb import contents
from gpuwarden_deb.contents import write
from gpuwarden_deb.control import BUNDLE, SYSTEM_PYTHON, Package, describe
from gpuwarden_deb.paths import LAUNCHER, PACKAGING, ROOT, BuildError

RECORDED = sorted((Path(__file__).parent / "data/bundle").glob("*.symbols"))


# --- what it needs of a host


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_what_was_built_needs_nothing_that_the_oldest_host_does_not_have(file: Path) -> None:
    needs = parsed(file.read_text())
    check(needs)
    assert {need.library for need in needs} >= {
        "libc.so.6",
        "libssl.so.3",
        "libffi.so.8",
        "libsqlite3.so.0",
        "libz.so.1",
    }
    assert {version for need in needs for version in need.versions} >= {"GLIBC_2.34", "OPENSSL_3.0.0"}
    assert parsed(recorded(needs)) == needs


def test_the_image_installs_every_library_that_a_bundle_may_need() -> None:
    installed = set((PACKAGING / "Dockerfile").read_text().split())
    needed = {package.split()[0] for package in baseline.HOST.values() if package != baseline.LIBC}
    assert needed <= installed


@pytest.mark.parametrize(
    ("library", "version", "message"),
    [
        ("libm.so.6", "GLIBC_2.35", "x.so needs GLIBC_2.35 of libm.so.6"),
        ("libssl.so.3", "OPENSSL_3.2.0", "x.so needs OPENSSL_3.2.0 of libssl.so.3"),
        ("libc.so.6", "GLIBC_PRIVATE", "x.so needs GLIBC_PRIVATE of libc.so.6"),
        ("libbz2.so.1.0", "", "x.so needs libbz2.so.1.0, which is not in the list"),
    ],
)
def test_what_the_oldest_host_does_not_have_ends_the_build(library: str, version: str, message: str) -> None:
    with pytest.raises(BuildError, match=message.replace(".", r"\.")):
        check([Need("x.so", library, frozenset({version} - {""}))])


def test_the_needs_of_a_compiled_file_are_read_from_it(tmp_path: Path) -> None:
    """The file uses hypot, the only symbol of CPython that the glibc of Debian 12 has in a version above the baseline."""
    source = tmp_path / "x.c"
    source.write_text("#include <math.h>\ndouble x(double a, double b) { return hypot(a, b); }\n")
    for number in (1, 2):
        built = tmp_path / f"root/x{number}.so"
        built.parent.mkdir(exist_ok=True)
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", built, source, "-lm"], check=True, timeout=60)
        needs = baseline.read(tmp_path / "root")
        assert {need.file for need in needs} == {f"x{n}.so" for n in range(1, number + 1)}
        assert {need.library: need.versions for need in needs}["libm.so.6"] == {"GLIBC_2.35"}
    write(tmp_path / "none/x", b"text")
    with pytest.raises(BuildError, match="no compiled file"):
        baseline.read(tmp_path / "none")


def test_the_packages_depend_on_what_has_the_libraries() -> None:
    needs = [Need("x.so", "libssl.so.3", frozenset({"OPENSSL_3.0.0"})), Need("x.so", "libm.so.6", frozenset())]
    assert baseline.debian_packages(needs) == ["libc6 (>= 2.34)", "libssl3 | libssl3t64"]
    assert baseline.rpm_capabilities(needs) == [
        "libm.so.6()(64bit)",
        "libssl.so.3()(64bit)",
        "libssl.so.3(OPENSSL_3.0.0)(64bit)",
    ]


# --- how it starts


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with the launcher, and with this Python beside it."""
    folder = tmp_path / "moved"
    write(folder / "bin/gpuwarden", LAUNCHER.read_bytes(), 0o755)
    write(
        folder / "bin/python3", f'#!/bin/sh\nexport PYTHONPATH=$FOR_TEST\nexec {sys.executable} "$@"\n'.encode(), 0o755
    )
    return folder


def start(file: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [file, *words], env={**os.environ, **variables}, capture_output=True, text=True, timeout=60, check=False
    )


def test_it_starts_from_any_folder_through_a_link_with_the_python_beside_it_and_no_other(home: Path) -> None:
    link = home.parent / "gpuwarden"
    link.symlink_to(home / "bin/gpuwarden")
    # What a module of a site sets for another Python would keep this one from its own library.
    done = start(link, "--version", PYTHONHOME="/nowhere", PYTHONPATH="/nowhere")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("gpuwarden ")
    assert f"Python {sys.version.split()[0]} " in done.stdout
    assert start(link, "nothing").returncode == 64


@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        ("glibc 2.31", True),
        ("glibc 2.33", True),
        ("glibc 2.34", False),
        ("glibc 2.41", False),
        ("glibc 3.0", False),
        ("", True),
    ],
)
def test_a_host_with_another_c_library_is_refused_with_the_reason(home: Path, answer: str, refused: bool) -> None:
    write(home / "path/getconf", f'#!/bin/sh\n[ -n "{answer}" ] && echo {answer}\n'.encode(), 0o755)
    done = start(home / "bin/gpuwarden", "--version", PATH=f"{home}/path:{os.environ['PATH']}")
    assert done.returncode == (69 if refused else 0)
    expected = f"gpuwarden needs glibc 2.34 or newer, and this host has {answer or 'another C library'}"
    assert (expected in done.stderr) == refused


def test_a_host_without_getconf_is_not_taken_for_one_with_another_c_library(home: Path) -> None:
    """An image without libc-bin or glibc-common, or a PATH that is short."""
    (home / "path").mkdir()
    for command in ("readlink", "sh"):
        (home / "path" / command).symlink_to(shutil.which(command) or "")
    done = start(home / "bin/gpuwarden", "--version", PATH=f"{home}/path")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.disposable
def test_a_host_without_a_library_is_refused_with_its_name(home: Path) -> None:
    write(home / "absent/_ssl.py", b"raise ImportError('libssl.so.3: cannot open shared object file')")
    write(home / "cache", b"")
    hide = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        'mount --bind "$1" /etc/ld.so.cache; shift; exec "$@"',
        "sh",
        str(home / "cache"),
    ]
    done = subprocess.run(
        [*hide, str(home / "bin/gpuwarden"), "--version"],
        env={**os.environ, "FOR_TEST": str(home / "absent")}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (69, "")
    assert "cannot run on this host: libssl.so.3: cannot open shared object file." in done.stderr
    assert "openssl-libs" in done.stderr


# --- how its files are put together


@pytest.mark.needs("zstd")
def test_the_archive_has_one_folder_that_belongs_to_root_and_is_the_same_each_time(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(root / "opt/gpuwarden/bin/gpuwarden", b"#!/bin/sh\n", 0o755)
    write(root / "usr/share/x", b"text")
    (root / "usr/bin").mkdir()
    (root / "usr/bin/gpuwarden").symlink_to("/opt/gpuwarden/bin/gpuwarden")
    os.chown(root / "usr/share/x", 1234, 1234) if os.geteuid() == 0 else None
    for name in ("first", "second"):
        archive(root, tmp_path / f"{name}.tar.zst", epoch=1000)
        (root / "usr/share/x").touch()
    assert (tmp_path / "first.tar.zst").read_bytes() == (tmp_path / "second.tar.zst").read_bytes()
    subprocess.run(["zstd", "--quiet", "-d", tmp_path / "first.tar.zst"], check=True, timeout=60)
    with tarfile.open(tmp_path / "first.tar") as tar:
        members = tar.getmembers()
    assert {member.name for member in members if not member.isdir()} == {
        "gpuwarden/bin/gpuwarden",
        "gpuwarden/system/usr/share/x",
        "gpuwarden/system/usr/bin/gpuwarden",
    }
    assert {(member.uid, member.gid, member.mtime > 1000) for member in members} == {(0, 0, False)}
    assert [member.mode for member in members if member.name == "gpuwarden/system"] == [0o755]


@pytest.mark.needs("zstd")
def test_the_documented_copy_changes_no_folder_of_the_host_and_hides_nothing(tmp_path: Path) -> None:
    """Hardened hosts give root the umask 077, and a host whose root folder is closed runs no job."""
    write(tmp_path / "tree/opt/gpuwarden/bin/gpuwarden", b"#!/bin/sh\n", 0o755)
    write(tmp_path / "tree/usr/share/gpuwarden/x", b"text")
    archive(tmp_path / "tree", tmp_path / "archive.tar.zst", epoch=1000)
    host = tmp_path / "host"
    (host / "usr").mkdir(parents=True)
    for folder in (host, host / "usr"):
        folder.chmod(0o775)
    (copy,) = set(re.findall(r"^\(umask .*\)", (ROOT / "docs/use/packaging.md").read_text(), re.MULTILINE))
    typed = copy.replace("/opt/gpuwarden", f"{tmp_path}/gpuwarden").replace(" /)", f" {host})")
    unpack = f"tar -C {tmp_path} -xf {tmp_path}/archive.tar.zst"
    for _ in ("first", "again"):
        subprocess.run(["sh", "-ec", f"umask 077; {unpack}; {typed}"], check=True, timeout=60)
    modes = {str(each.relative_to(tmp_path)): each.stat().st_mode & 0o777 for each in (host, *host.rglob("*"))}
    assert modes == {
        "host": 0o775, "host/usr": 0o775, "host/usr/share": 0o755, "host/usr/share/gpuwarden": 0o755,
        "host/usr/share/gpuwarden/x": 0o644,
    }  # fmt: skip


@pytest.mark.needs("zstd")
def test_an_archive_that_does_not_fit_on_the_disk_ends_the_build_with_the_reason(tmp_path: Path) -> None:
    write(tmp_path / "opt/gpuwarden/large", os.urandom(1 << 20))
    with pytest.raises(BuildError, match=r"the archive /dev/full cannot be written: .*No space left on device"):
        archive(tmp_path, Path("/dev/full"), epoch=0)


@pytest.mark.parametrize("name", [BUNDLE, SYSTEM_PYTHON])
def test_the_two_packages_replace_each_other(tmp_path: Path, name: str) -> None:
    (other,) = {BUNDLE, SYSTEM_PYTHON} - {name}
    package = Package(name, "1.2.3", "amd64", ("libc6 (>= 2.34)",))
    write(tmp_path / contents.CONFIGURATION, b"")
    describe(tmp_path, package, 0)
    fields = dict(
        line.split(": ", 1) for line in (tmp_path / "DEBIAN/control").read_text().splitlines() if ": " in line
    )
    assert (fields["Package"], fields["Conflicts"], fields["Replaces"]) == (name, other, other)
    assert fields.get("Provides") == (None if name == BUNDLE else "gpuwarden (= 1.2.3)")
    assert package.file == f"{name}_1.2.3_amd64.deb"


@pytest.mark.parametrize(
    ("kind", "names"),
    [("deb", {"preinst", "postinst", "prerm", "postrm"}), ("rpm", {"pre", "post", "posttrans", "preun", "postun"})],
)
def test_the_scripts_of_both_package_managers_are_complete(tmp_path: Path, kind: str, names: set[str]) -> None:
    contents.lay(tmp_path, "1.2.3", 0)
    scripts = contents.scripts(tmp_path, kind)
    assert scripts.keys() == names
    for text in scripts.values():
        assert "@" not in text.replace("@*.service", "")
        subprocess.run(["sh", "-n"], input=text, text=True, check=True, timeout=60)
    whole = "".join(scripts.values())
    assert "systemd-sysusers" in whole
    assert "Its exclusions of this node" in whole
