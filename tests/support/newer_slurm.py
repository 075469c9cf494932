"""Slurm 24.11 of Debian 13 on a host that has another Slurm, or none: python -m support.newer_slurm [COMMAND ...]

Makes a folder of Debian 13's packages, once, and runs COMMAND with that folder's /usr over the host's: Slurm's programs and plugins, and the
libraries that they need, are those of Debian 13, and all else is the host's. So each test that runs a Slurm runs the newer one, unchanged.
What is mounted is seen by COMMAND and its children only. For root.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from support.debian_trees import BUILD, made_once, mmdebstrap

SUITE = "trixie"
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
# The host's plugins beside the newer ones would be an error for each of them.
_RUN = """
plugins="$(echo "$1"/usr/lib/*/slurm-wlm)"
mount -t overlay -o "lowerdir=$1/usr:/usr" overlay /usr
mount --bind "$plugins" "${plugins#"$1"}"
shift
exec "$@"
"""


def newer_slurm() -> Path:
    """The folder: a download of 30 MB, and 10 s. Only extracted: the names of users and the links to programs are the host's. Raises SystemExit."""
    options = ("--variant=extract", "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr")
    return made_once(BUILD / "slurm", (SUITE, PACKAGES), lambda tree: mmdebstrap(tree, SUITE, PACKAGES, *options))


def main() -> None:
    tree = newer_slurm()
    if sys.argv[1:]:
        unshare = ("unshare", "--mount", "--propagation", "private", "sh", "-ec", _RUN, "sh", str(tree))
        os.execvp(unshare[0], (*unshare, *sys.argv[1:]))


if __name__ == "__main__":
    main()
