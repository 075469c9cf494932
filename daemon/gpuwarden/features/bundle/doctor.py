"""Checks whether an archive can be made at a failure."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

from gpuwarden.config.model import Config
from gpuwarden.doctor.check import Check, in_thread
from gpuwarden.doctor.row import Row, ok, warn
from gpuwarden.features.bundle.options import BundleOptions
from gpuwarden.features.bundle.programs import surroundings

REPORT = "nvidia-bug-report.sh"


def bundle(config: Config) -> Iterator[Row]:
    """Yield the rows about archives; none if no archive is made at a failure."""
    options = config.of(BundleOptions)
    if not options.on_failure:
        return
    if options.socket.is_socket():
        yield ok("archive at a failure", f"through {options.socket}")
    else:
        to_do = "systemctl enable --now gpuwarden-bundle.socket: otherwise none is made"
        yield warn("archive at a failure", f"{options.socket} does not exist", to_do)
    if shutil.which(REPORT, path=surroundings(os.environ)["PATH"]) is None:
        to_do = "install the driver's package that has it: each vendor asks for its report"
        yield warn("NVIDIA's report", f"{REPORT} is not installed", to_do)
    else:
        yield ok("NVIDIA's report", f"{REPORT} is installed")


CHECKS = {"archive for the vendor": Check(in_thread(bundle))}
