"""Where the system bus is, and how it fails. Apart from `dbus`, which loads jeepney (0.2 MiB): few daemons need that."""

from __future__ import annotations

SYSTEM_BUS = "/run/dbus/system_bus_socket"


class BusError(Exception):
    """The bus is not there, does not answer, or refuses. The message says what was wanted of it."""
