"""Folders of Debian's packages that tests run in, or with: each made once, by the first that needs it."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

BUILD = Path(__file__).parents[2] / ".build"


def made_once(folder: Path, contents: object, make: Callable[[Path], None]) -> Path:
    """The tree of these contents in `folder`. `make` is given the path of one that is not there yet."""
    tree = folder / hashlib.sha256(repr(contents).encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not tree.exists():
            make(tree.with_name("new"))
            tree.with_name("new").rename(tree)
    return tree


def bootstrapped(command: Sequence[str], tree: Path) -> str:
    """Why `command`, which fetches about a hundred files, could not fill `tree`; empty if it did. A mirror may fail to respond once."""
    for _ in range(2):
        shutil.rmtree(tree, ignore_errors=True)
        done = subprocess.run(command, capture_output=True, text=True, timeout=580, check=False)
        if done.returncode == 0:
            return ""
    return f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


def mmdebstrap(tree: Path, suite: str, packages: Sequence[str], *options: str) -> None:
    """Fill `tree`, in a mount namespace: what walks through this folder meanwhile sees no /proc in it. Raises SystemExit."""
    if shutil.which("mmdebstrap") is None:
        sys.exit(f"no Debian {suite} can be set up: apt-get install mmdebstrap")
    command = (
        "unshare",
        "--mount",
        "mmdebstrap",
        "--quiet",
        *options,
        f"--include={','.join(packages)}",
        suite,
        str(tree),
    )
    if error := bootstrapped(command, tree):
        sys.exit(error)
