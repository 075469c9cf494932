"""`gpuwarden bundle`: one archive about a failure, to hand to the vendor."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpuwarden.cli.parser import Parser, folder

HELP = """
Makes one archive about a failure, to hand to the vendor: the black box, the ledger around the failure, the boards with their
serial numbers, the kernel's lines with the meaning of their Xids, active tests, nvidia-smi -q, nvidia-bug-report.sh, results of
DCGM and doctor, the configuration without secrets. index.html shows all on one page, rma.txt is a text for the vendor's form,
manifest.json lists every file with its hash, and each missing file with the reason.

FINDING is an id of gpuwarden status or gpuwarden events; without it the archive is about all failures in force. An id that is not
in the ledger is named, and the archive is about the others. Run it as root. It takes up to 6 minutes, mostly for
nvidia-bug-report.sh. Each program has a deadline and is killed after it; one that cannot be killed because it hangs in the driver
is left running and named. It works without a daemon, from the ledger, and changes nothing there.

exit code: 0 the archive is made, even if parts are missing; 64 none of the findings exists; 73 it cannot be written, or exists already

examples:
  gpuwarden bundle
  gpuwarden bundle xid.79@gpu/0000:4e:00.0 --output /var/tmp
  gpuwarden bundle --anonymise
  gpuwarden bundle --json | jq -r .file
"""

MAIN = "gpuwarden.features.bundle.command_main"


def arguments(parser: Parser) -> None:
    parser.add_argument(
        "finding", metavar="FINDING", nargs="*", help="id of a finding (default: all failures in force)"
    )
    parser.add_argument(
        "--output",
        metavar="F",
        type=_path,
        help="the file, which must not exist, or a folder (default: gpuwarden-bundle-NODE-TIME.tar.zst in this folder)",
    )
    parser.add_argument(
        "--anonymise",
        action="store_true",
        help="replace names of hosts, users, jobs, processes and addresses, and UUIDs; serial numbers stay, and files with any text of the host are left out",
    )
    parser.add_json()
    parser.add_config()
    parser.add_run_dir()
    parser.add_argument(
        "--state-dir",
        metavar="D",
        type=folder,
        help="directory of the ledger (default: that of the running daemon, else state.dir)",
    )


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("expected a file or a folder, found nothing")
    return Path(text).absolute()
