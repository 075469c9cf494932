"""What a newcomer's first `make` says where it cannot work."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
OLD = f"""#!/bin/sh
[ "$1" = -c ] || exec {sys.executable} "$@"
exec {sys.executable} -c 'import sys; sys.version_info = (3, 10, 12, "final", 0); exec(sys.argv[1])' "$2"
"""
"""The python3 of Ubuntu 22.04, as far as it can tell its version."""


def test_an_older_python_is_named_and_leaves_no_environment_that_would_stay(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    old = tmp_path / "python3"
    old.write_text(OLD)
    old.chmod(0o755)
    done = subprocess.run(
        ["make", "run", f"PYTHON={old}"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode != 0
    assert f"gpuwarden needs Python 3.11 or newer, and {old} is 3.10" in done.stderr
    assert not (tmp_path / ".venv").exists()
