"""The command of this feature."""

VERBS = {
    "test": (
        "gpuwarden.features.active_test.command",
        "test the GPUs of this node while they are idle: memory, compute, PCIe",
    )
}
