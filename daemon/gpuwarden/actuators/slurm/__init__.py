"""Slurm drains: what stands is read with `sinfo`, what is wanted is written with `scontrol update`."""
