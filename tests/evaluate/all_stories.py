"""Every story, in the order of its id."""

from __future__ import annotations

from evaluate import (
    stories_degrading,
    stories_driver,
    stories_failures,
    stories_gpu,
    stories_host,
    stories_incidents,
    stories_jobs,
    stories_links,
    stories_readings,
)
from evaluate.stories import Story

_FILES = (
    stories_degrading,
    stories_gpu,
    stories_host,
    stories_driver,
    stories_readings,
    stories_failures,
    stories_incidents,
    stories_jobs,
    stories_links,
)
STORIES: tuple[Story, ...] = tuple(sorted((s for file in _FILES for s in file.STORIES), key=lambda story: story.id))
