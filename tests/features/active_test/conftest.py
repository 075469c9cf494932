"""Hosts of tests of the active test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.active_test_hosts import ActiveHost


@pytest.fixture
def host(tmp_path: Path) -> Iterator[ActiveHost]:
    """Yield a host with two GPUs, and end what runs on it."""
    host = ActiveHost(tmp_path)
    yield host
    host.end()
