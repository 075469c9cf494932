"""For the tests of Slurm's scripts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from support.slurm_hooks import SHELLS, HookHost


@pytest.fixture
def host(tmp_path: Path) -> HookHost:
    return HookHost(tmp_path)


@pytest.fixture(params=SHELLS.values(), ids=list(SHELLS))
def shell(request: pytest.FixtureRequest) -> Sequence[str]:
    words: Sequence[str] = request.param
    return words
