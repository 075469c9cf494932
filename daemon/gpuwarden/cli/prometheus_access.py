"""Builds the access to Prometheus from options and environment. Separate, because it loads TLS."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from gpuwarden.cli.parser import CommandError
from gpuwarden.cli.prometheus_options import FILES, URL
from gpuwarden.cli.text import clean
from gpuwarden.prometheus.access import Access, AccessError, Hints, access


def prometheus_access(options: argparse.Namespace, environment: Mapping[str, str]) -> Access:
    """Return the access to Prometheus. Raises CommandError."""
    hints = Hints(
        address="is the address right? --prometheus URL, or PROMETHEUS_URL",
        credentials="give --token-file or --basic-file",
        time="--timeout allows more",
    )
    variables = {name: environment.get(f"PROMETHEUS_{name.upper()}_FILE") for name in FILES}
    option_files = {name: getattr(options, f"{name}_file") for name in FILES}
    chosen = {
        name: option_files[name] or (Path(variable) if variable else None) for name, variable in variables.items()
    }
    if option_files["token"] or option_files["basic"]:  # options override the environment
        chosen |= {name: option_files[name] for name in ("token", "basic")}
    try:
        return access(options.prometheus or environment.get("PROMETHEUS_URL") or URL, **chosen, hints=hints)
    except AccessError as error:
        raise CommandError(clean(str(error))) from error
