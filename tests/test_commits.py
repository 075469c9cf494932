"""Subjects of commits: those since the rule of CONTRIBUTING.md, which came with this file, have at most 72 characters."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.needs import needed

ROOT = Path(__file__).parents[1]
RULE = "tests/test_commits.py"
LONGEST = 72


def git(root: Path, *words: str) -> list[str]:
    command = (needed("git"), "-c", f"safe.directory={root}", "-C", str(root), *words)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def subjects(root: Path) -> list[str]:
    """Return the subjects of the commits after the one that added this file, or after the first that a shallow clone has.

    Skips the test if there is none to judge: in an archive, in a shallow clone of one commit, before this file is committed.
    """
    added = git(root, "log", "--diff-filter=A", "--format=%H", "--", RULE)
    all_subjects = git(root, "log", "--no-merges", "--format=%s", f"{added[-1]}..HEAD") if added else []
    if not all_subjects:
        pytest.skip(
            "needs commits since the rule of subjects: no archive, no clone of one commit (git fetch --unshallow)"
        )
    return all_subjects


def too_long(all_subjects: list[str]) -> list[str]:
    return [subject for subject in all_subjects if len(subject) > LONGEST]


def test_subjects_of_commits_since_the_rule_fit_in_a_line() -> None:
    assert too_long(subjects(ROOT)) == []


def test_a_long_subject_is_named_unless_it_is_older_than_the_rule(tmp_path: Path) -> None:
    def commit(subject: str, file: str) -> None:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("")
        git(tmp_path, "add", file)
        identity = ("-c", "user.name=n", "-c", "user.email=n@localhost", "-c", "commit.gpgSign=false")
        git(tmp_path, *identity, "commit", "-m", subject)

    git(tmp_path, "init")
    commit("before " * 20, "README.md")
    commit("the rule", RULE)
    commit("x" * LONGEST, "fits")
    commit("x" * (LONGEST + 1), "long")
    assert too_long(subjects(tmp_path)) == ["x" * (LONGEST + 1)]
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "--depth=2", f"file://{tmp_path}", str(shallow))
    assert too_long(subjects(shallow)) == ["x" * (LONGEST + 1)]
    with pytest.raises(pytest.skip.Exception):
        subjects(tmp_path / "nowhere")
