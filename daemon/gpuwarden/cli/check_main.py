"""What `gpuwarden check` does."""

from __future__ import annotations

import argparse
import os

from gpuwarden.cli.sources import configuration
from gpuwarden.cli.status import show
from gpuwarden.oneshot.check import check_once


def main(options: argparse.Namespace) -> int:
    config = configuration(options, os.environ)

    return show(check_once(config), as_json=options.json)
