"""Checks for DCGM without importing its bindings, because a worker process without an engine would waste 12 MiB."""

from __future__ import annotations

from gpuwarden_collectors.dcgm.addresses import engine_address
from gpuwarden_collectors.dcgm.bindings import find_bindings
from gpuwarden_collectors.dcgm.options import DcgmOptions


def check_presence(options: DcgmOptions) -> None:
    """Checks that bindings are installed and an engine runs or may be embedded. Raises SourceAbsent, CollectorError.

    Takes up to a second if an engine does not accept connections.
    """
    find_bindings(options.bindings)
    engine_address(options)
