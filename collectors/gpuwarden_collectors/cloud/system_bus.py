"""The path of the system bus, and its error. Separate from `dbus`, which loads jeepney (0.2 MiB)."""

from __future__ import annotations

SYSTEM_BUS = "/run/dbus/system_bus_socket"


class BusError(Exception):
    """The bus does not exist, does not answer, or refuses a call. The message names the call."""
