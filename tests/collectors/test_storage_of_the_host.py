"""Mounts of the host for a process in a container: its table is process 1's, and it asks below the host's root."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuwarden_collectors.base import CollectorError
from gpuwarden_collectors.host_collectors.storage import StorageCollector
from support.mounts import fill, tmpfs

ROOT = "20 1 254:0 / / rw - ext4 /dev/vda rw\n"

_CONTAINER = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from gpuwarden_collectors.host_collectors.storage import StorageCollector

root, *expected = sys.argv[1:]
for _ in sys.stdin:
    facts = StorageCollector(Path("/proc"), root=Path(root), expected=expected).read()
    print(json.dumps({mount.path: asdict(mount) for mount in facts.mounts}), flush=True)
"""
_MOUNTED = 'mount --rbind / "$1" && mount --make-rslave "$1" && cd "$1" && shift && exec "$@"'


@contextmanager
def container(root: Path, *expected: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with mounts of its own, which has what this one has below `root`, as of now."""
    root.mkdir()
    code = [
        sys.executable,
        "-c",
        f"import sys; sys.path[:0] = {sys.path!r}\n{_CONTAINER}",
        str(root),
        *map(str, expected),
    ]
    command = ["unshare", "--mount", "--propagation=private", "sh", "-c", _MOUNTED, "sh", str(root), *code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def asked(process: subprocess.Popen[str]) -> dict[str, dict[str, Any]]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    answer: dict[str, dict[str, Any]] = json.loads(process.stdout.readline())
    return answer


@pytest.mark.disposable
def test_a_container_reads_the_mounts_of_the_host_and_asks_no_folder_in_the_place_of_a_mount(tmp_path: Path) -> None:
    early, late, root = tmp_path / "early", tmp_path / "late", tmp_path / "host"
    with tmpfs(early, "256k") as disk, container(root, early, late) as process:
        here = asked(process)
        assert here[str(early)]["bytes_total"] == 256 << 10
        assert here["/"]["bytes_total"] > 256 << 10
        assert not any(path.startswith(str(root)) for path in here)
        assert not here[str(late)]["mounted"]
        fill(disk)
        assert asked(process)[str(early)]["bytes_free"] == 0
        with tmpfs(late, "128k"):
            unseen = asked(process)[str(late)]
            assert (unseen["mounted"], unseen["asked"], unseen["bytes_total"]) == (True, False, None)


def tables(proc: Path, own: str, host: str) -> Path:
    for name, text in (("self", own), ("1", host)):
        (proc / name).mkdir()
        (proc / name / "mountinfo").write_text(text)
    return proc


def test_process_1_of_the_container_is_not_the_hosts(tmp_path: Path) -> None:
    with pytest.raises(CollectorError, match=r"process 1 is in this container; .*hostPID"):
        StorageCollector(tables(tmp_path, ROOT, ROOT), root=Path("/host")).read()


def test_a_root_that_is_not_mounted_is_named_with_what_mounts_it(tmp_path: Path) -> None:
    own = ROOT.replace("20 1", "99 1")
    with pytest.raises(CollectorError, match=r"nothing is mounted at /host \(paths\.host\); .*hostMounts\.enabled"):
        StorageCollector(tables(tmp_path, own, ROOT), root=Path("/host")).read()


HOME = "21 20 0:40 / /home rw - nfs4 nas:/home rw\n"
OWN = "99 1 0:7 / / rw - overlay overlay rw\n98 99 254:0 / /host ro - ext4 /dev/vda rw\n97 98 0:40 / /host/home ro - nfs4 nas:/home rw\n"
DENIES = "echo \"stat: cannot read file system information for '$5': Permission denied\"; exit 1"
ANSWERS = "echo 4096 1000 500 400 100 60"


def denying(*paths: str) -> tuple[str, ...]:
    """Return a command in place of `stat` that answers as under SELinux for these paths."""
    return ("sh", "-c", f'case "$5" in {"|".join(paths)}) {DENIES};; *) {ANSWERS};; esac', "stat")


def test_what_a_container_may_not_ask_is_no_fault_of_the_mount(tmp_path: Path) -> None:
    proc = tables(tmp_path, OWN, ROOT + HOME)
    root, home = StorageCollector(proc, root=Path("/host"), command=denying("/host/home")).read().mounts
    assert (root.path, root.error, root.bytes_total) == ("/", "", 4_096_000)
    assert (home.path, home.error, home.asked) == ("/home", "", False)


def test_a_container_that_may_not_even_ask_the_root_says_what_denies_it(tmp_path: Path) -> None:
    proc = tables(tmp_path, OWN, ROOT + HOME)
    with pytest.raises(CollectorError, match=r"at /host: Permission denied; where SELinux denies it .*seLinuxOptions"):
        StorageCollector(proc, root=Path("/host"), command=denying("/host", "/host/home")).read()
