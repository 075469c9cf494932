"""For all tests of repairs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.repair_helper import Helpers, RepairHost, helpers


@pytest.fixture(scope="module")
def made() -> Iterator[Helpers]:
    with helpers() as shared:
        yield shared


@pytest.fixture
def host(tmp_path: Path, made: Helpers) -> RepairHost:
    return RepairHost(tmp_path, made)
