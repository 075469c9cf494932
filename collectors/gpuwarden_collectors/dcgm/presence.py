"""Whether there is a DCGM to read, found out without importing anything of it: a worker for nothing costs 12 MiB."""

from __future__ import annotations

from gpuwarden_collectors.dcgm.addresses import engine_address
from gpuwarden_collectors.dcgm.bindings import find_bindings
from gpuwarden_collectors.dcgm.options import DcgmOptions


def check_presence(options: DcgmOptions) -> None:
    """Returns if bindings are installed and an engine runs, or is configured to. Raises SourceAbsent, CollectorError.

    May take a second, for an engine that does not accept connections.
    """
    find_bindings(options.bindings)
    engine_address(options)
