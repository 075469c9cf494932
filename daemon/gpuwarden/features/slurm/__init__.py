"""Slurm: gpuwarden's drain of this node, and no other party's; what Slurm's scripts ask of the daemon."""
