"""The command of this feature."""

VERBS = {
    "why": (
        "gpuwarden.features.why.command",
        "show why a job on this node ended, what touched it and what it used",
    ),
}
