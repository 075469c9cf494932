"""`gpuwarden dstack-interposer`: a proxy between dstack's server and dstack's agent of this host."""

from __future__ import annotations

import argparse

from gpuwarden.base.addresses import Address
from gpuwarden.cli.parser import Parser

HELP = """
Answers dstack's server in place of dstack's agent of this host (the shim): forwards every request to the shim, and replaces
the health of the instance by the daemon's verdict: an excluded node reports failure, so that dstack places no job here.

Reads the files that the daemon publishes, and works while the daemon is stopped. In mode observe everything passes
unchanged. systemd holds its socket, so that no request is refused while it restarts.

exit code: 0 after SIGTERM or SIGINT, 64 for bad usage, 69 when its address is taken

examples:
  systemctl enable --now gpuwarden-dstack.socket
  gpuwarden dstack-interposer --listen 127.0.0.1:10998 --shim 127.0.0.1:10996
"""

MAIN = "gpuwarden.features.dstack.process"


def arguments(parser: Parser) -> None:
    parser.add_config()
    parser.add_run_dir()
    parser.add_argument(
        "--listen", metavar="H:P", type=_address, help="address to listen on, if systemd passes no socket"
    )
    parser.add_argument(
        "--shim", metavar="H:P", type=_address, help="address of dstack's agent (default: [dstack] shim)"
    )


def _address(text: str) -> Address:
    try:
        return Address.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
