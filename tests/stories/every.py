"""Every story, in the order of its id."""

from __future__ import annotations

from stories import degrading, driver, failures, gpu, host, incidents, jobs, links, readings
from stories.story import Story

_FILES = (degrading, driver, failures, gpu, host, incidents, jobs, links, readings)
STORIES: tuple[Story, ...] = tuple(sorted((s for file in _FILES for s in file.STORIES), key=lambda story: story.id))
