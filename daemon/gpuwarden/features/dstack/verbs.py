"""The command of this feature."""

VERBS = {
    "dstack-interposer": (
        "gpuwarden.features.dstack.command",
        "proxy dstack's agent on this host, with the daemon's verdict as its health",
    )
}
