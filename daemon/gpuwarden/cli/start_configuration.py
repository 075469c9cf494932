"""The daemon's start configuration: the files, or, under systemd, the last good copy if they have a fault."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import MutableMapping
from dataclasses import replace
from functools import cache

from gpuwarden.base.background import BackgroundWriter
from gpuwarden.base.paths import make_private
from gpuwarden.cli.parser import CommandError
from gpuwarden.cli.sources import configuration, faulty, loaded, sources
from gpuwarden.cli.web_config import check_web_config
from gpuwarden.config.last_good import NoneKept, keep, kept
from gpuwarden.config.model import Config, ConfigError
from gpuwarden.config.sources import Sources

KEPT_WITHIN = 1.0
"""Seconds for which a start or a reload waits until its files are kept."""


def start_configuration(options: argparse.Namespace, environment: MutableMapping[str, str]) -> Config:
    """Raises CommandError. An interactive command fails at a fault; so does a pod, which stops its rollout."""
    if options.simulate is not None or not environment.get("NOTIFY_SOCKET"):
        config = configuration(options, environment, secure=make_private)
        check_web_config(config)
        return config
    origin = sources(options, environment)
    try:
        read = origin.with_files_read()
        config = loaded(read)
    except ConfigError as error:
        config = _last_good(origin, error)
        _check_web_config(config, origin)
        return config
    _check_web_config(config, origin)
    remember(read)
    return config


def _check_web_config(config: Config, origin: Sources) -> None:
    """Fail for a fault of the web-config file only at the first start ever; later ones serve nothing until it is fixed.

    Raises CommandError.
    """
    try:
        check_web_config(config)
    except CommandError as fault:
        try:
            kept(origin)
        except NoneKept:
            raise fault from None
        print(f"gpuwarden: {fault}\n  started without its web server", file=sys.stderr)


def remember(read: Sources) -> None:
    """Keep a copy of the files as the last good ones. Prints an error, because the daemon works without.

    A disk that hangs delays neither a start nor a reload for longer than KEPT_WITHIN: one thread waits for it, and keeps
    the newest files once it responds.
    """
    done = threading.Event()

    def work() -> None:
        try:
            keep(read, read.files or ())
        finally:
            done.set()

    _keeper().submit(work)
    if not done.wait(KEPT_WITHIN):
        print("gpuwarden: the last good configuration is not kept yet: its disk does not respond", file=sys.stderr)


@cache
def _keeper() -> BackgroundWriter:
    return BackgroundWriter("last-good", 1, newest_wins=True, on_error=_not_kept)


def _not_kept(error: Exception) -> None:
    print(f"gpuwarden: the last good configuration is not kept: {error}", file=sys.stderr)


def _last_good(origin: Sources, error: ConfigError) -> Config:
    fault = str(faulty(error))
    try:
        config = loaded(kept(origin))
    except NoneKept as none:
        raise CommandError(f"{fault}\n  and there is no last good configuration to start with: {none}") from error
    except ConfigError as older:
        raise CommandError(f"{fault}\n  and the last good one does not fit this version: {older}") from error
    print(f"gpuwarden: {fault}\n  started with the last good configuration", file=sys.stderr)
    return replace(config, fault=" ".join(fault.split()))
