"""`gpuwarden service`: the units of systemd, where gpuwarden was installed with pip or uv."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpuwarden.cli.parser import Parser

HELP = """
Installs, shows or removes the service if gpuwarden was installed with pip or uv: units, users, run directory, profiles, scripts for
Slurm.

Each path is printed. A file that was changed by hand is left as it is, and named. The command refuses if a package of the
distribution has installed the units, and if a unit cannot start this installation (in a cache, as of uvx, or in a closed home
directory) or users other than root can change any of its code: interpreter, libraries, all of sys.path, .pth files, editable
installs, and the folders above. Each such file or folder is named, with the command that corrects it.

exit code: 0 when it is done, 64 when it is refused (then nothing was changed), 69 when systemd refuses, 77 without root

examples:
  gpuwarden service show                      print what is installed or would be, and where
  gpuwarden service install                   as root: write, enable and start it
  gpuwarden service remove                    stop it, and remove what was installed; configuration and ledger stay
"""

MAIN = "gpuwarden.cli.service_main"


def arguments(parser: Parser) -> None:
    parser.add_argument("action", choices=("install", "show", "remove"), help="what to do")
    parser.add_argument(
        "--no-start", action="store_true", help="install: only write the files, and print the commands to run next"
    )
    parser.add_argument("--root", type=Path, default=Path("/"), metavar="D", help=argparse.SUPPRESS)
