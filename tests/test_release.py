"""`make release` names what a tree lacks before it can be tagged."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

import release
from release import FIGURES, OLDEST_FIGURE, ROOT, VERSIONS, problems, versions

TODAY = datetime.now(UTC).date()
TREE = {
    "daemon/gpuwarden/__init__.py": '"""…"""\n\n__version__ = "1.2.3"  # why\n',
    "job/pyproject.toml": '[project]\nname = "gpuwarden-job"\nversion = "1.2.3"\n',
    "kubernetes/chart/Chart.yaml": "apiVersion: v2\nversion: 1.2.3\nappVersion: 1.2.3\n",
    "CHANGELOG.md": "# Changelog\n\n## 1.2.3 - 2026-01-31\n\n## 1.2.2\n",
    "README.md": "# gpuwarden\n",
    "docs/develop/performance.md": f"| a scrape | 1 ms | | `bench_scrape` | {TODAY.isoformat()} |\n",
}


def git(root: Path, *words: str) -> None:
    identity = (
        "-c",
        "user.name=n",
        "-c",
        "user.email=n@localhost",
        "-c",
        "tag.gpgSign=false",
        "-c",
        "commit.gpgSign=false",
    )
    subprocess.run(["git", *identity, "-C", root, *words], check=True, capture_output=True)


def commit(root: Path, **changed: str) -> None:
    for name, text in changed.items():
        (root / name).write_text(text, encoding="utf-8")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--allow-empty", "--message", "m")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    for name, text in TREE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    commit(tmp_path)
    return tmp_path


def test_a_complete_tree_lacks_nothing_before_and_after_its_tag(tree: Path) -> None:
    assert list(problems(tree)) == []
    assert list(problems(tree, "v1.2.3")) == []
    git(tree, "tag", "v1.2.3")
    assert list(problems(tree)) == []


def test_a_figure_that_was_measured_long_before_the_commit_is_named_by_its_script(tree: Path) -> None:
    old = (TODAY - OLDEST_FIGURE - timedelta(days=1)).isoformat()
    commit(tree, **{FIGURES: f"| a scrape, p50 | 1 ms (0.9-2) | ≤ 2 ms | `bench_scrape` | {old} |\n"})
    assert list(problems(tree)) == [f"figures of these weeks in {FIGURES}: run bench_scrape again"]


def test_each_figure_of_what_it_costs_names_a_script_that_there_is_and_a_day() -> None:
    table = (ROOT / FIGURES).read_text(encoding="utf-8").partition("| what |")[2].partition("\n\n")[0]
    for row in table.splitlines()[2:]:
        figure = release._FIGURE.match(row)
        assert figure, row
        assert (ROOT / "benchmarks" / f"{figure['by']}.py").exists(), row
        assert date.fromisoformat(figure["on"]), row


@pytest.mark.parametrize(
    ("name", "text", "missing"),
    [
        ("daemon/gpuwarden/__init__.py", "", "one version: daemon/gpuwarden/__init__.py has none, gpuwarden has none"),
        ("job/pyproject.toml", 'version = "1.2.4"\n', "one version: job/pyproject.toml has 1.2.4, gpuwarden has 1.2.3"),
        (
            "kubernetes/chart/Chart.yaml", "version: 1.2.3\nappVersion: 1.2.2\n",
            "one version: kubernetes/chart/Chart.yaml appVersion has 1.2.2, gpuwarden has 1.2.3",
        ),
        ("CHANGELOG.md", "## 1.2.3\n", "CHANGELOG.md: a date, as in '## 1.2.3 - 2026-01-31'"),
        ("CHANGELOG.md", "## Unreleased\n## 1.2.3 - 2026-01-31\n", "CHANGELOG.md: the newest entry is Unreleased, not 1.2.3"),
        ("CHANGELOG.md", "", "CHANGELOG.md: the newest entry is none, not 1.2.3"),
        (
            "README.md", "Status: 1.2.3, not released\n",
            "the status of a version before its release: 'not released' is in README.md",
        ),
        (
            "pyproject.toml", 'Repository = "https://github.com/gpuwarden/gpuwarden"\n',
            "the address of the repository: 'https://github.com/gpuwarden/gpuwarden' is in pyproject.toml",
        ),
    ],
)  # fmt: skip
def test_what_is_missing_is_named_with_its_place(tree: Path, name: str, text: str, missing: str) -> None:
    commit(tree, **{name: text})
    assert missing in list(problems(tree))


def test_what_is_not_committed_is_named(tree: Path) -> None:
    (tree / "README.md").write_text("# changed\n")
    (tree / "new").touch()
    assert list(problems(tree)) == ["a clean tree: README.md, new not committed"]


def test_a_tag_is_the_version_and_no_other_commits(tree: Path) -> None:
    assert list(problems(tree, "v1.2.4")) == ["the tag v1.2.3: v1.2.4 is not the version"]
    git(tree, "tag", "1.2.3")
    assert list(problems(tree)) == ["the tag v1.2.3: 1.2.3 is not the version"]
    git(tree, "tag", "--delete", "1.2.3")
    git(tree, "tag", "v1.2.3")
    commit(tree)
    assert list(problems(tree)) == ["a new version: v1.2.3 is the tag of another commit"]


def test_of_many_files_with_a_placeholder_the_first_are_named(tree: Path) -> None:
    commit(tree, **{f"{number}.md": "git clone REPOSITORY" for number in range(7)})
    (missing,) = problems(tree)
    assert missing.endswith("is in 0.md, 1.md, 2.md, 3.md, 4.md and 2 more")


def test_exit_status_is_1_while_something_is_missing() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools/release.py", "--tag", "v0"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "missing: the tag v" in done.stdout


def test_this_tree_has_one_version() -> None:
    by_place = versions(ROOT)
    assert by_place.keys() == VERSIONS.keys()
    assert len(set(by_place.values())) == 1
    assert all(by_place.values())
