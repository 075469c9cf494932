"""Collectors: they read the host and return facts. They neither judge nor act."""
