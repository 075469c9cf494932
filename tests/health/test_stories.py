"""Machines of public issue trackers that tools accused: what the judge finds in each of them (`tests/evaluate/stories*.py`)."""

from __future__ import annotations

import re

import pytest

from evaluate.all_stories import STORIES
from evaluate.stories import Story, measure_story, problems


@pytest.mark.parametrize("story", STORIES, ids=lambda story: f"{story.id}: {story.name}")
def test_the_story_is_judged_as_it_turned_out(story: Story) -> None:
    assert problems(story, measure_story(story)) == []


def test_every_story_has_its_id_and_its_source() -> None:
    assert [story.id for story in STORIES if not re.fullmatch(r"[A-E]\d\d", story.id)] == []
    assert [story.id for story in STORIES if not story.source] == []
    assert len({(story.id, story.name) for story in STORIES}) == len(STORIES)
