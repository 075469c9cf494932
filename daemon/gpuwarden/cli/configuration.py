"""`gpuwarden config`: check the configuration, or show the values in force."""

from __future__ import annotations

from gpuwarden.cli.parser import Parser

HELP = """
Checks the configuration, listing every fault, or shows it with the source of each value.

A later source overrides an earlier one, key by key: defaults, /etc/gpuwarden/gpuwarden.toml, conf.d/*.toml beside it
by name, environment (GPUWARDEN_COLLECTORS__NVML__INTERVAL=1s), options of run.

Run as root, check also reads the files as the user of gpuwarden.service, which must be able to read them.

exit code: 0 when it is valid, 64 when it has a fault

examples:
  gpuwarden config check
  gpuwarden config check --config new.toml && install new.toml /etc/gpuwarden/gpuwarden.toml
  gpuwarden config show | grep -v default
"""

MAIN = "gpuwarden.cli.configuration_main"


def arguments(parser: Parser) -> None:
    parser.add_argument("action", choices=("check", "show"), help="check: list its faults; show: print it as TOML")
    parser.add_config()
