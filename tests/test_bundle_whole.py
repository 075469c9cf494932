"""What `make bundle` made, in roots without any Python: only this runs in them. CI makes no CPython, and leaves this file out."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuwarden_bundle import baseline
from support.bare_root import BareRoot, terminate
from support.bundles import VARIABLE, Bundles, made
from support.machine import PATIENCE, debian_tree

pytestmark = [
    pytest.mark.xdist_group("package"),
    pytest.mark.disposable,
    pytest.mark.skipif(
        made() is None, reason=f"only what `make bundle` makes runs without a Python: make test-bundle ({VARIABLE})"
    ),
]


@pytest.fixture
def unpacked(tmp_path: Path, bundles: Bundles) -> Iterator[BareRoot]:
    """A root without any Python, with the archive unpacked in a folder that it was not made for."""
    with BareRoot(debian_tree(), tmp_path) as bare:
        bare.remove_python()
        (file,) = bundles.archives
        bare.path("/srv/other").mkdir()
        subprocess.run(
            bare.outside("tar", "-C", f"{bare.folder}/root/srv/other", "-xf", str(file)), check=True, timeout=120
        )
        yield bare


def test_the_archive_runs_in_any_folder_of_a_host_without_a_python(unpacked: BareRoot) -> None:
    assert unpacked.run("sh", "-c", "command -v python3", check=False).stdout == ""
    with subprocess.Popen(unpacked.command("/srv/other/gpuwarden/bin/gpuwarden", "run", "--simulate", "2")) as process:
        status = ("/srv/other/gpuwarden/bin/gpuwarden", "status", "--run-dir", "/tmp/gpuwarden-0/run")
        end = time.monotonic() + PATIENCE
        while unpacked.run(*status, check=False).returncode != 0:
            assert time.monotonic() < end
            time.sleep(0.2)
        assert terminate(process) == 0
    modules = "import pkgutil, gpuwarden, gpuwarden_collectors, ssl, aiohttp, yaml, bcrypt, lightkube, grpclib, msgspec, jeepney, h11; print(ssl.OPENSSL_VERSION)"
    assert unpacked.run("/srv/other/gpuwarden/bin/python3", "-P", "-c", modules).stdout.startswith("OpenSSL 3.")
    written = unpacked.run("find", "/srv/other/gpuwarden", "-newer", "/srv/other/gpuwarden/bin/gpuwarden", "-type", "f")
    assert not [line for line in written.stdout.splitlines() if line.endswith(".pyc")]


def test_a_missing_library_is_named_with_the_package_that_has_it(unpacked: BareRoot) -> None:
    for library in unpacked.path("/usr/lib/x86_64-linux-gnu").glob("libssl.so*"):
        library.unlink()
    unpacked.run("ldconfig")
    done = unpacked.run("/srv/other/gpuwarden/bin/gpuwarden", "--version", check=False)
    assert (done.returncode, done.stdout) == (69, "")
    assert "gpuwarden cannot run on this host: libssl.so.3: cannot open shared object file" in done.stderr
    assert "libssl3" in done.stderr


def test_the_files_are_not_larger_than_promised(bundles: Bundles) -> None:
    (file,) = bundles.archives
    assert file.stat().st_size <= 16_000_000
    assert (file.with_name(file.name.replace(".tar.zst", ".symbols"))).read_text() == baseline.recorded(bundles.needs)
