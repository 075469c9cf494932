"""How an image is written, as far as that can be seen without building one: `test_image.py` builds it."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from gpuwarden_deb.paths import BuildError
from gpuwarden_image import debian, extraction
from gpuwarden_image.archive import Description, Layer, write
from gpuwarden_image.build import build


def layer() -> Layer:
    made = Layer(1_700_000_000)
    made.file("/usr/bin/tool", b"binary", 0o755)
    made.link("/bin", "usr/bin")
    made.folder("/tmp", 0o1777)
    return made


@pytest.mark.parametrize("blob", ["Config", "Layers"])
def test_both_indexes_of_an_image_name_the_same_blobs_by_their_sums(tmp_path: Path, blob: str) -> None:
    file = tmp_path / "image.tar"
    write(
        file,
        layer().tar(),
        Description(name="n", tag="1", architecture="amd64", created="2026-01-01T00:00:00Z", config={}),
    )
    with tarfile.open(file) as archive:
        data = {member.name: archive.extractfile(member).read() for member in archive if member.isreg()}  # type: ignore[union-attr]
    for name, content in data.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"
    (legacy,) = json.loads(data["manifest.json"])
    (entry,) = json.loads(data["index.json"])["manifests"]
    manifest = json.loads(data["blobs/sha256/" + entry["digest"].removeprefix("sha256:")])
    named = {"Config": [manifest["config"]["digest"]], "Layers": [each["digest"] for each in manifest["layers"]]}
    listed = [legacy[blob]] if blob == "Config" else legacy[blob]
    assert [name.replace("blobs/sha256/", "sha256:") for name in listed] == named[blob]


def test_the_same_files_give_the_same_bytes_with_each_folder_before_what_is_in_it() -> None:
    assert layer().tar() == layer().tar()
    names = [name for name in layer()._members if name]
    assert {"/usr", "/usr/bin"} <= set(names)


def test_what_is_missing_for_a_build_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        BuildError, match=r"no mmdebstrap \(package mmdebstrap\), no dpkg-deb \(package dpkg\); apt-get"
    ):
        extraction.make(tmp_path / "tree", tmp_path / "application", tmp_path, 0, architecture="amd64", native=True)
    assert list(tmp_path.iterdir()) == []


def test_an_image_for_another_processor_needs_the_images_python_to_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=r"no python3\.11 \(package python3\.11\); apt-get"):
        extraction.make(tmp_path / "tree", tmp_path / "application", tmp_path, 0, architecture="arm64", native=False)
    with pytest.raises(BuildError, match="for x86_64, aarch64, not for riscv64"):
        build(tmp_path, "riscv64")


PACKAGES = {
    "libc6": ["./", "./lib/", "./lib/x86_64-linux-gnu/libc.so.6", "./usr/lib/x86_64-linux-gnu/gconv/A.so", "./usr/share/doc/libc6/copyright"],
    "python3.11": ["./usr/lib/python3.11/os.py", "./usr/lib/python3.11/lib-dynload/nis.cpython-311-x86_64-linux-gnu.so"],
    "coreutils": ["./usr/bin/stat", "./usr/bin/ls", "./usr/share/doc/coreutils/copyright", "./usr/share/doc/coreutils/NEWS.gz"],
    "openssl": ["./usr/bin/openssl", "./usr/share/doc/openssl/copyright"],
    "libnew1": ["./usr/lib/x86_64-linux-gnu/libnew.so.1"],
    **{name: [] for name in ("ca-certificates", "base-files", "libgcc-s1", "libstdc++6")},
}  # fmt: skip
TAKEN = {
    "/usr/lib/x86_64-linux-gnu/libc.so.6": True, "/usr/lib/x86_64-linux-gnu/gconv/A.so": False, "/usr/share/doc/libc6/copyright": True,
    "/usr/lib/python3.11/os.py": True, "/usr/lib/python3.11/__pycache__/os.cpython-311.pyc": True,
    "/usr/lib/python3.11/lib-dynload/nis.cpython-311-x86_64-linux-gnu.so": False,
    "/usr/bin/stat": True, "/usr/bin/ls": False, "/usr/share/doc/coreutils/NEWS.gz": False,
    "/usr/bin/openssl": False, "/usr/share/doc/openssl/copyright": False,
    "/usr/lib/x86_64-linux-gnu/libnew.so.1": True,  # of a dependency that is new
    "/opt/gpuwarden/bin/gpuwarden": True, "/etc/apt/apt.conf": False, "/var/lib/dpkg/status": False,
}  # fmt: skip


def test_of_debians_packages_those_files_are_taken_that_something_here_needs(tmp_path: Path) -> None:
    layer = Layer(0)
    for name, files in PACKAGES.items():
        layer.file(f"/packages/{name}.control", f"Package: {name}\nVersion: 1\n".encode())
        layer.file(f"/packages/{name}.files", "\n".join(files).encode())
    (tmp_path / "tree.tar").write_bytes(layer.tar())
    with tarfile.open(tmp_path / "tree.tar") as archive:
        packages = debian.Packages(archive)
    assert {path: packages.taken(path) for path in TAKEN} == TAKEN
    listed = dict(packages.status())
    assert listed["/var/lib/dpkg/status.d/libnew1"] == "Package: libnew1\nVersion: 1\n"
    assert "/var/lib/dpkg/status.d/openssl" not in listed


def test_a_tree_without_a_package_that_was_asked_for_is_no_image(tmp_path: Path) -> None:
    (tmp_path / "tree.tar").write_bytes(Layer(0).tar())
    with (
        tarfile.open(tmp_path / "tree.tar") as archive,
        pytest.raises(BuildError, match="mmdebstrap extracted no base-files, no ca-"),
    ):
        debian.Packages(archive)
