"""Packages of others that our own cannot be installed beside: each set in a folder of its own, for processes of their own.

Made once under `.build`, by whichever test needs it first. Versions are pinned and nothing is resolved: what is named is all that
the part of a package needs that is tested.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from support.needs import unmet

BUILDS = Path(__file__).parents[2] / ".build" / "foreign"


def foreign(name: str, packages: Sequence[str], *options: str) -> Path:
    """The folder. Skips the test where packages cannot be had, or fails it in CI. `options`: of pip, for these packages."""
    digest = hashlib.sha256(repr((packages, options, sys.version)).encode()).hexdigest()[:16]
    folder = BUILDS / f"{name}-{digest}"
    BUILDS.mkdir(parents=True, exist_ok=True)
    with (BUILDS / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _install(folder, packages, options)
    return folder


def _install(folder: Path, packages: Sequence[str], options: Sequence[str]) -> None:
    new = folder.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    pip = (
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-compile",
    )
    done = subprocess.run(
        [*pip, "--target", str(new), *options, *packages], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode == 0:
        new.replace(folder)
        return
    more = f" and {len(packages) - 1} more" if len(packages) > 1 else ""
    unmet(f"pip cannot install {packages[0]}{more}: {done.stderr.strip()[-300:]}")


def python_of(folder: Path, script: str, *words: str) -> subprocess.Popen[str]:
    """A process of Python that sees the packages in the folder and none of gpuwarden's."""
    return subprocess.Popen(
        [sys.executable, "-S", "-c", script, *words], env={"PATH": os.environ["PATH"], "PYTHONPATH": str(folder)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
