"""`gpuwarden run`: the daemon."""

from __future__ import annotations

import argparse
import os

from gpuwarden.base.paths import LEDGER
from gpuwarden.base.sd_notify import ServiceManager
from gpuwarden.cli.ledger_version import refuse_another_major
from gpuwarden.cli.parser import CommandError, Parser, folder
from gpuwarden.cli.sources import configuration, faulty, loaded, sources
from gpuwarden.cli.start_configuration import remember, start_configuration
from gpuwarden.cli.web_config import check_web_config
from gpuwarden.config.model import Config, ConfigError
from gpuwarden.config.sources import Sources

HELP = """
Runs the daemon in the foreground: reads the GPUs of this node, judges them, and publishes their health, until SIGTERM.

As a service of systemd it starts with the last good configuration if the configured one has a fault: the finding config_faulty
names the fault until a reload or restart reads a good one. With a fault of the web-config file it serves nothing until that is mended:
the finding web_config_faulty.

exit code: 0 after SIGTERM or SIGINT; 64 when the configuration has a fault and no last good one is kept, or another major version wrote the ledger (then
nothing was started); 69 when its port or its run directory is taken; 75 when it must be started again, which systemd does

examples:
  gpuwarden run                               this host's GPUs, as /etc/gpuwarden configures
  gpuwarden run --simulate 8                  eight GPUs that do not exist, to try it anywhere
  gpuwarden run --config gpuwarden.toml --listen 127.0.0.1:9839
"""


def arguments(parser: Parser) -> None:
    parser.add_config()
    parser.add_simulate()
    parser.add_argument(
        "--listen",
        "--web.listen-address",
        metavar="H:P",
        type=_address,
        help="address for metrics and heartbeat (default: 0.0.0.0:9839; without a host: every address; port 0: any free port)",
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
    """Accepts `:9839`, as Prometheus' exporters do. Whether it is an address is checked with the configuration."""
    return f"0.0.0.0{text}" if text.startswith(":") else text  # noqa: S104 - what the exporters do


def main(options: argparse.Namespace) -> int:
    supervised = bool(os.environ.get("NOTIFY_SOCKET"))
    try:
        config = start_configuration(options, os.environ)
        refuse_another_major(config.state.dir / LEDGER)
    except CommandError:
        ServiceManager.of(os.environ).turn_away()
        raise
    if options.simulate is not None:
        from gpuwarden.cli.next_steps import next_steps  # noqa: PLC0415 - of simulated GPUs alone

        print(*next_steps(config, os.environ), sep="\n", flush=True)
    from gpuwarden.runtime.serve import serve  # noqa: PLC0415 - a fault in the configuration is reported before asyncio is loaded

    return serve(config, lambda: _again(options, supervised=supervised))


def _again(options: argparse.Namespace, *, supervised: bool) -> Config:
    """The same configuration read again. Raises ReloadError."""
    from gpuwarden.engine.reload import ReloadError  # noqa: PLC0415 - as above

    try:
        config, read = _read_again(options)
        check_web_config(config)
    except CommandError as error:
        raise ReloadError(str(error)) from error
    if supervised and read is not None:
        remember(read)
    return config


def _read_again(options: argparse.Namespace) -> tuple[Config, Sources | None]:
    """Raises CommandError."""
    if options.simulate is not None:
        return configuration(options, os.environ), None
    try:
        read = sources(options, os.environ).with_files_read()
        return loaded(read), read
    except ConfigError as error:
        raise faulty(error) from error
