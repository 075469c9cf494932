"""The command of this feature."""

VERBS = {"bundle": ("gpuwarden.features.bundle.command", "make one archive about a failure, to hand to the vendor")}
