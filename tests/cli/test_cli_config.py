"""`config`, and the configuration that `run` and `check` make of a command line."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from gpuwarden.cli.parser import CommandError
from gpuwarden.cli.sources import configuration
from support.commands import gpuwarden, options


def test_config_show_is_toml_with_the_source_of_every_value(tmp_path: Path) -> None:
    file = tmp_path / "gpuwarden.toml"
    file.write_text("inventory.expected_gpus = 8\n")
    done = gpuwarden("config", "show", "--config", file, temporary=tmp_path, more={"GPUWARDEN_MODE": "enforce"})
    shown = tomllib.loads(done.stdout)
    assert (shown["mode"], shown["inventory"]["expected_gpus"], shown["publish"]["listen"]) == (
        "enforce",
        8,
        "0.0.0.0:9839",
    )
    assert "# GPUWARDEN_MODE\n" in done.stdout
    assert f"# {file}\n" in done.stdout


@pytest.mark.slow
def test_config_check_lists_what_it_has_read(tmp_path: Path) -> None:
    file = tmp_path / "gpuwarden.toml"
    file.write_text('mode = "observe"')
    done = gpuwarden("config", "check", "--config", file, temporary=tmp_path, more={"GPUWARDEN_NODE": "n"})
    assert (done.returncode, done.stdout) == (0, f"the configuration is valid ({file}, GPUWARDEN_NODE)\n")


@pytest.mark.slow
@pytest.mark.parametrize("words", [("config", "check"), ("config", "show"), ("run",), ("check",)])
def test_configuration_faults_are_printed_one_a_line_and_nothing_is_started(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "gpuwarden.toml"
    file.write_text("mode = 1\nnodes = 2\n")
    done = gpuwarden(*words, "--config", file, temporary=tmp_path)
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr.splitlines() == [
        f"gpuwarden {words[0]}: the configuration has 2 faults:",
        f"  {file}: mode: expected one of observe, enforce, found 1 (a whole number) (at line 1)",
        f"  {file}: nodes: unknown key; did you mean 'node'? (at line 2)",
    ]
    assert list(tmp_path.iterdir()) == [file]


def test_options_of_run_override_everything_and_are_named_in_faults(tmp_path: Path) -> None:
    run_options = options(
        listen="[::]:1", mode="enforce", state_dir=tmp_path / "s", run_dir=tmp_path / "r", config=tmp_path / "f"
    )
    (tmp_path / "f").write_text('mode = "observe"')
    config = configuration(run_options, {"GPUWARDEN_MODE": "observe", "GPUWARDEN_RUN_DIR": "/x"})
    assert (config.mode, str(config.publish.listen)) == ("enforce", "[::]:1")
    assert (config.state.dir, config.run.dir) == (tmp_path / "s", tmp_path / "r")
    with pytest.raises(CommandError, match=r"--listen: publish\.listen: expected host:port"):
        configuration(options(listen="9839"), {})
