"""`gpuwarden run`: the daemon."""

from __future__ import annotations

from gpuwarden.cli.parser import Parser, folder

HELP = """
Runs the daemon in the foreground: reads the GPUs of this node, judges them, and publishes their health, until SIGTERM.

As a service of systemd it starts with the last good configuration if the configured one has a fault: the finding config_faulty
names the fault until a reload or restart reads a good one. If the web-config file has a fault, it serves nothing until the file is
corrected (finding web_config_faulty); nor while another process has its port (finding output_failed.port).

exit code: 0 after SIGTERM or SIGINT; 64 when the configuration has a fault and no last good one is kept, or another major version
wrote the ledger (then nothing was started); 69 when its run directory, or without systemd its port, is taken; 75 when it must be
started again, which systemd does

examples:
  gpuwarden run                               this host's GPUs, as /etc/gpuwarden configures
  gpuwarden run --simulate 8                  eight GPUs that do not exist, to try it anywhere
  gpuwarden run --config gpuwarden.toml --listen 127.0.0.1:9839
"""

MAIN = "gpuwarden.cli.run_main"


def arguments(parser: Parser) -> None:
    parser.add_config()
    parser.add_simulate()
    parser.add_argument(
        "--listen",
        "--web.listen-address",
        metavar="H:P",
        type=_address,
        help="address for metrics and heartbeat (default: 0.0.0.0:9839; without a host: every IPv4 address; [::]:9839: IPv6; port 0: any free port)",
    )
    parser.add_argument(
        "--web.config.file",
        dest="web_config",
        metavar="F",
        type=folder,
        help="TLS, client certificates and passwords, in the format of Prometheus' exporter-toolkit (default: publish.web_config)",
    )
    parser.add_argument(
        "--state-dir", metavar="D", type=folder, help="directory of the ledger (default: /var/lib/gpuwarden)"
    )
    parser.add_argument(
        "--run-dir", metavar="D", type=folder, help="directory of sockets and verdict file (default: /run/gpuwarden)"
    )
    parser.add_argument(
        "--log-format",
        choices=("auto", "text", "json"),
        help="how a line of the log is written (default: auto, which is text on a terminal and json elsewhere)",
    )
    parser.add_argument(
        "--mode", choices=("observe", "enforce"), help="observe: only show what it would do (default); enforce: do it"
    )


def _address(text: str) -> str:
    """Accept `:9839`, the form of Prometheus' exporters. The configuration validates the address."""
    return f"0.0.0.0{text}" if text.startswith(":") else text  # noqa: S104 - what the exporters do
