"""Every story, in the order of its id."""

from __future__ import annotations

from evaluate import stories_gpu, stories_host
from evaluate.stories import Story

STORIES: tuple[Story, ...] = tuple(sorted((*stories_gpu.STORIES, *stories_host.STORIES), key=lambda story: story.id))
