"""Slurm by its commands, which are stable since 22.05, unlike its JSON; its REST service could not drain in 22.05."""
