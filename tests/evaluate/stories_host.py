"""Stories about what a node has beside its GPUs: switches, services, ports, settings."""

from __future__ import annotations

from evaluate.stories import Story

STORIES: tuple[Story, ...] = ()
