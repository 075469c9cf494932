"""What a person is told who made a common mistake: one message, with file, line, key and what to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwarden.cli.main import main
from support.commands import gpuwarden

MISTAKES = {
    "a top-level key below a table": (
        '[slurm]\nenabled = false\nmode = "enforce"\n',
        "slurm.mode: unknown key here: mode belongs to no table; write it at the top of the file, above the first [table] (at line 3)",
    ),
    "a key outside its table": (
        '# ours\nstalled_after = "10m"\n',
        "stalled_after: unknown key here: write stalled_after below the line of its table: [jobs] (at line 2)",
    ),
    "a key in another table": (
        '[slurm]\n[log]\nlisten = "127.0.0.1:9839"\n',
        "log.listen: unknown key here: write listen below the line of its table: [publish] (at line 3)",
    ),
    "a key that this table has not, and many others have": (
        '[file]\nenabled = true\npath = "/run/excluded"\n',
        "file.enabled: unknown key; known here are path (at line 2)",
    ),
    "a word without quotes": (
        "# ours\nmode = enforce # now\n",
        'mode = enforce has no quotes: write mode = "enforce" (at line 2)',
    ),
    "a path without quotes": (
        "[run]\ndir = /run/gw\n",
        'dir = /run/gw has no quotes: write dir = "/run/gw" (at line 2)',
    ),
    "a switch as in YAML": (
        "[slurm]\nenabled = yes\n",
        "enabled = yes is not TOML: write enabled = true (at line 2)",
    ),
    "a switch as in Python": (
        "[slurm]\nenabled = False  # for now\n",
        "enabled = False is not TOML: write enabled = false (at line 2)",
    ),
    "a key twice": (
        "[slurm]\nenabled = false\n# later\nenabled = true\n",
        "slurm.enabled is at line 2 and again at line 4: delete one of them",
    ),
    "a table twice": (
        "[slurm]\nenabled = false\n[log]\n[slurm]\n",
        "the table [slurm] is at line 1 and again at line 4: put its keys below the first, and delete the second",
    ),
    "a kind that does not exist": (
        '[notify.slack]\nurl = "https://example.org"\n',
        "notify.slack: no kind of this name; write [notify.webhook.slack] or [notify.exec.slack] (at line 1)",
    ),
    "a severity that does not exist": (
        '[xids.95]\nseverity = "recrod"\n',
        "xids.95.severity: expected one of record, warning, failure, found 'recrod'; did you mean 'record'? (at line 2)",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_message_with_file_line_key_and_what_to_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mistake: str
) -> None:
    text, message = MISTAKES[mistake]
    file = tmp_path / "gpuwarden.toml"
    file.write_text(text)
    assert main(["config", "check", "--config", str(file)]) == 64
    assert capsys.readouterr().err.splitlines()[1:] == [f"  {file}: {message}"]


def test_a_library_that_does_not_exist_is_named(tmp_path: Path) -> None:
    """A missing library is not a fault: a driver may be installed after gpuwarden starts."""
    file = tmp_path / "gpuwarden.toml"
    file.write_text('[collectors.nvml]\nlibrary = "/nowhere/libnvidia-ml.so.1"\n')
    done = gpuwarden("config", "check", "--config", file, temporary=tmp_path)
    assert done.returncode == 0
    assert (
        f"warning: {file}: collectors.nvml.library: /nowhere/libnvidia-ml.so.1 does not exist: write the path of libnvidia-ml.so.1, "
        "or delete the key: the loader then finds it (at line 2)\n"
    ) in done.stdout


@pytest.mark.parametrize(
    "text",
    ['a = """\n[b]\nc = d\n"""\nx = y\n', "[" * 500, "= = =\n", '"a\\u0000" = z\n', "\x00", "[a]\n" * 3000],
    ids=["a long text", "brackets", "signs", "an escaped NUL", "a NUL", "one table"],
)
def test_odd_files_get_a_message(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    file = tmp_path / "gpuwarden.toml"
    file.write_text(text)
    code, shown = main(["config", "check", "--config", str(file)]), capsys.readouterr().err
    assert (code, shown.startswith("gpuwarden config: the configuration has")) == (64, True)
    assert "Traceback" not in shown
