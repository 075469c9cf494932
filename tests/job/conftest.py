"""For the tests of the job side."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support import job_world


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    """End the processes that a test started, also where the test fails."""
    yield
    for process in job_world.STARTED:
        with process:
            process.kill()
    job_world.STARTED.clear()
