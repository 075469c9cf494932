"""A Debian 12 that is not booted: a root without services, in namespaces of its own. For disposable hosts, as root.

    with BareRoot(debian_tree(), tmp_path) as bare:
        bare.run("dpkg", "--install", "/root/some.deb")

What is written into it is in memory, `size` bytes at most, and nothing is left of it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_PATIENCE = 180.0
_START = """
mount -t tmpfs -o "size=$SIZE" tmpfs "$FOLDER/memory"
mkdir "$FOLDER/memory/upper" "$FOLDER/memory/work"
mount -t overlay -o "lowerdir=$TREE,upperdir=$FOLDER/memory/upper,workdir=$FOLDER/memory/work" overlay "$FOLDER/root"
mount -t proc proc "$FOLDER/root/proc"
mount --rbind /dev "$FOLDER/root/dev"
while [ $# -gt 0 ]; do
    mkdir -p "$FOLDER/root$2"
    mount --bind "$1" "$FOLDER/root$2"
    shift 2
done
touch "$FOLDER/ready"
exec sleep infinity
"""
PYTHONS = ("usr/bin/python3*", "usr/bin/py3*", "usr/lib/python3*", "usr/share/python3", "usr/lib/*/libpython3*")


class BareRoot:
    """A root folder for use inside `with`. `binds`: folders of this host that are seen in it, as {here: there}."""

    def __init__(
        self, tree: Path, folder: Path, *, size: int = 1 << 30, binds: Mapping[Path, str] | None = None
    ) -> None:
        self.folder = folder / "bare"
        self._tree, self._size = tree, size
        self._binds = [str(word) for pair in (binds or {}).items() for word in pair]
        self._process: subprocess.Popen[bytes] | None = None
        for name in ("memory", "root"):
            (self.folder / name).mkdir(parents=True)

    def __enter__(self) -> Self:
        environment = {
            "PATH": os.environ["PATH"], "FOLDER": str(self.folder), "TREE": str(self._tree), "SIZE": str(self._size),
        }  # fmt: skip
        namespaces = ["--mount", "--propagation=private", "--net", "--pid", "--fork", "--kill-child=KILL"]
        with (self.folder / "output").open("wb") as output:
            self._process = subprocess.Popen(
                ["unshare", *namespaces, "/bin/sh", "-ec", _START, "bare", *self._binds],
                env=environment,
                stdout=output,
                stderr=output,
            )
        end = time.monotonic() + _PATIENCE
        while not (self.folder / "ready").exists():
            if self._process.poll() is not None or time.monotonic() > end:
                raise AssertionError((self.folder / "output").read_text())
            time.sleep(0.02)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def path(self, path: str) -> Path:
        """`path` of it, as seen from here. Links in it lead somewhere else."""
        return Path(f"/proc/{self._init()}/root{self.folder}/root") / path.lstrip("/")

    def copy(self, here: Path, there: str) -> str:
        self.path(there).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(here, self.path(there))
        return there

    def command(self, *words: str) -> list[str]:
        """The command by which `words` are run in it, as root."""
        return self.outside("chroot", f"{self.folder}/root", *words)

    def outside(self, *words: str) -> list[str]:
        """The same, but with the files of this host."""
        enter = ["nsenter", f"--target={self._init()}", "--mount", "--pid", "--net", "--"]
        path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return [*enter, "env", "-i", path, "LANG=C.UTF-8", "HOME=/root", *words]

    def run(self, *words: str, check: bool = True, **more: Any) -> subprocess.CompletedProcess[str]:
        return _run(self.command(*words), check=check, **more)

    def rpm(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run the rpm of this host on the root, with a list of packages of its own: the root has dpkg's otherwise."""
        return _run(self.outside("rpm", f"--root={self.folder}/root", "--dbpath=/var/lib/rpm", *words), check=check)

    def remove_python(self) -> None:
        """Remove every Python, as on a host that never had one."""
        for pattern in PYTHONS:
            for file in self.path("/").glob(pattern):
                shutil.rmtree(file) if file.is_dir() and not file.is_symlink() else file.unlink()

    def _init(self) -> int:
        """The first process in its PID namespace, as seen from here."""
        assert self._process is not None
        return _child(self._process.pid)


def terminate(process: subprocess.Popen[bytes]) -> int:
    """Send SIGTERM to the command in the root, which is a child of nsenter, and return its exit code."""
    os.kill(_child(process.pid), signal.SIGTERM)
    return process.wait(_PATIENCE)


def _child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _run(command: Sequence[str], *, check: bool, **more: Any) -> subprocess.CompletedProcess[str]:
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, **more
    )
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done
