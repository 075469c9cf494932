"""The command of this feature."""

VERBS = {"nvhcd": ("gpuwarden.features.nvhcd.command", "answer the node health check of ft_launcher")}
