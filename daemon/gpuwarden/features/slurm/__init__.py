"""Slurm: gpuwarden's drain of this node, and nobody else's; what its scripts ask of the daemon."""
