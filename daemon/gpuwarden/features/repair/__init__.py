"""Guarded repair."""
