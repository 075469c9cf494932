"""`gpuwarden explain`: the daemon's tables as text, with this site's configuration applied."""

from __future__ import annotations

from gpuwarden.cli.parser import Parser

HELP = """
Explains an Xid, an SXid, a code of DCGM, a line of the kernel log, or a reason from status: what it means, what to
do, why it has its class, and how this site's configuration changes that. Without WHAT it lists everything that it can explain.

examples:
  gpuwarden explain
  gpuwarden explain xid 79
  gpuwarden explain sxid 20034 --config new.toml
  gpuwarden explain dcgm FALLEN_OFF_BUS
  gpuwarden explain row_remap_failed
  gpuwarden explain xid.79@gpu/0000:4e:00.0      a finding's id
  gpuwarden explain "NVRM: Xid (PCI:0000:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x00000000)"
"""

MAIN = "gpuwarden.cli.explain_main"


def arguments(parser: Parser) -> None:
    parser.add_argument(
        "what",
        metavar="WHAT",
        nargs="*",
        help="xid N, sxid N, dcgm N, a line of the kernel log, or a reason or finding id from status",
    )
    parser.add_config()
    parser.add_argument(
        "--driver",
        metavar="V",
        default="",
        help="version of the driver that wrote the kernel line, such as 570.86.15 (default: both formats are tried)",
    )
