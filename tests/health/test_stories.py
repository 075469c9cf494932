"""Machines of public records: what the judge finds in each of them (`tests/stories`)."""

from __future__ import annotations

import re

import pytest

from stories.every import STORIES
from stories.left_out import LEFT_OUT
from stories.story import Story, measure_story, problems


@pytest.mark.slow
@pytest.mark.parametrize("story", STORIES, ids=lambda story: f"{story.id}: {story.name}")
def test_the_story_is_judged_as_it_turned_out(story: Story) -> None:
    assert problems(story, measure_story(story)) == []


def test_every_story_has_its_id_and_its_source() -> None:
    assert [story.id for story in STORIES if not re.fullmatch(r"[A-E]\d\d", story.id)] == []
    assert [story.id for story in STORIES if not story.source] == []
    assert len({(story.id, story.name) for story in STORIES}) == len(STORIES)


def test_what_is_left_out_is_no_row_and_has_its_reason() -> None:
    assert {story.id for story in STORIES} & set(LEFT_OUT) == set()
    assert [name for name, why in LEFT_OUT.items() if not re.fullmatch(r"[A-E]\d\d", name) or not why] == []
