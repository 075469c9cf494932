"""The judging and acting half of gpuwarden."""

__version__ = "0.1.0"  # the package's; to ask importlib.metadata costs the daemon 0.9 MiB
