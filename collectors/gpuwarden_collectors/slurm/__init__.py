"""Slurm through its command line, which is the same from 22.05 on; its JSON is not, and its REST service cannot drain there."""
