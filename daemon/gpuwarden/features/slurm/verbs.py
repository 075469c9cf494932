"""The command of this feature."""

VERBS = {
    "slurm": ("gpuwarden.features.slurm.command", "list the Slurm jobs on this node's GPUs; calls for Slurm's scripts")
}
