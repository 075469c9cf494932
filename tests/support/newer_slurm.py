"""Slurm 24.11 of Debian 13 on a host that has another Slurm, or none: python -m support.newer_slurm [COMMAND ...]

Makes a folder of Debian 13's packages, once, and runs COMMAND with that folder's /usr over the host's: Slurm's programs and plugins, and the
libraries that they need, are those of Debian 13, and all else is the host's. So each test that runs a Slurm runs the newer one, unchanged.
What is mounted is seen by COMMAND and its children only. For root.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

SUITE = "trixie"
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
TREES = Path(__file__).parents[2] / ".build" / "slurm"
NEEDED = ("mmdebstrap", "unshare")
# The host's plugins beside the newer ones would be an error for each of them.
_RUN = """
plugins="$(echo "$1"/usr/lib/*/slurm-wlm)"
mount -t overlay -o "lowerdir=$1/usr:/usr" overlay /usr
mount --bind "$plugins" "${plugins#"$1"}"
shift
exec "$@"
"""


def newer_slurm() -> Path:
    """The folder, made by the first that needs it: a download of 30 MB, and 10 s. Raises SystemExit."""
    if missing := [command for command in NEEDED if shutil.which(command) is None]:
        sys.exit(
            f"Debian 13's Slurm cannot be set up: no {', no '.join(missing)}; apt-get install mmdebstrap util-linux"
        )
    tree = TREES / hashlib.sha256(repr((SUITE, PACKAGES)).encode()).hexdigest()[:16]
    TREES.mkdir(parents=True, exist_ok=True)
    with (TREES / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not tree.exists():
            _make(tree.with_name("new"))
            tree.with_name("new").rename(tree)
    return tree


def _make(tree: Path) -> None:
    """Only extracted: the names of users and the links to programs are the host's."""
    command = (
        *("mmdebstrap", "--quiet", "--variant=extract", "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"),
        *(f"--include={','.join(PACKAGES)}", SUITE, str(tree)),
    )
    for _ in range(2):  # a mirror that does not answer once
        shutil.rmtree(tree, ignore_errors=True)
        done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
        if done.returncode == 0:
            return
    sys.exit(f"mmdebstrap cannot set up Debian 13's Slurm:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def main() -> None:
    tree = newer_slurm()
    if sys.argv[1:]:
        unshare = ("unshare", "--mount", "--propagation", "private", "sh", "-ec", _RUN, "sh", str(tree))
        os.execvp(unshare[0], (*unshare, *sys.argv[1:]))


if __name__ == "__main__":
    main()
