"""Slurm drains: the node state is read with `sinfo`, an intent is written with `scontrol update`."""
