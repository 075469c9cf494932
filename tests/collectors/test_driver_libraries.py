"""Where NVML is loaded from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpuwarden_collectors.base import SourceAbsent
from gpuwarden_collectors.driver_libraries import candidates, loaded
from gpuwarden_collectors.nvml.library import LIBRARY, open_library
from gpuwarden_collectors.nvml.options import NvmlOptions
from support.fake_nvml_library import FakeNvml

OPERATOR = "/run/nvidia/driver/usr/lib64"
_LOADS = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
from gpuwarden_collectors.driver_libraries import loaded
from gpuwarden_collectors.nvml.library import LIBRARY, open_library
from gpuwarden_collectors.nvml.options import NvmlOptions
open_library(NvmlOptions(library={library!r}))
print(loaded(Path("/proc/self/maps").read_text(), LIBRARY))
"""


def loads(library: str, *prefix: str) -> str:
    code = _LOADS.format(path=sys.path, library=library)
    done = subprocess.run(
        [*prefix, sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_first_of_a_list_that_loads_is_taken(tmp_path: Path) -> None:
    fake = FakeNvml.build(tmp_path).library
    broken = tmp_path / "text.so"
    broken.write_text("this is no library")
    assert loads(f"/nowhere/{LIBRARY}:{broken}:{fake}") == str(fake.resolve())


def test_of_a_list_without_any_each_is_named_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("this is no library")
    with pytest.raises(SourceAbsent, match=r"/nowhere/a\.so: cannot open .*; .*text\.so: (file too short|invalid ELF)"):
        open_library(NvmlOptions(library=f"/nowhere/a.so:{tmp_path}/text.so"))


def test_the_loader_is_asked_before_the_folders_of_gke_and_of_the_driver_container() -> None:
    first, *more = candidates(LIBRARY)
    assert first == LIBRARY
    assert f"/usr/local/nvidia/lib64/{LIBRARY}" in more
    assert f"{OPERATOR}/{LIBRARY}" in more
    assert loaded("", LIBRARY) == ""


def test_no_library_is_loaded_from_where_a_user_may_have_a_home() -> None:
    """A daemon that is root would run what a user named kubernetes puts there, on any host whose driver is not installed."""
    assert [path for path in candidates(LIBRARY)[1:] if not path.startswith(("/usr/", "/run/"))] == []


@pytest.mark.disposable
def test_the_library_of_a_driver_container_is_found_without_any_key(tmp_path: Path) -> None:
    fake = FakeNvml.build(tmp_path).library
    put = f'mount -t tmpfs none /run && mkdir -p {OPERATOR} && cp "$1" {OPERATOR}/{LIBRARY} && shift && exec "$@"'
    assert loads("", "unshare", "--mount", "sh", "-c", put, "sh", str(fake)) == f"{OPERATOR}/{LIBRARY}"
