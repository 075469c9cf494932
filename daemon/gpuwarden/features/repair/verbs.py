"""The command of this feature."""

VERBS = {
    "repair": (
        "gpuwarden.features.repair.command",
        "show the step that would repair a finding and what forbids it, or order it",
    )
}
