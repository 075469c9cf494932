"""The command line as a whole: verbs, help, exit codes, what it loads."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from gpuwarden import __version__
from gpuwarden.cli.main import VERBS, main
from gpuwarden.features import FEATURES
from gpuwarden.publish.status import status
from support.commands import COMMAND, environment, gpuwarden
from support.control_server import result, serving
from support.snapshots import UPTIME, at, snapshot

OF_ARGPARSE = {"dataclasses"} if sys.version_info >= (3, 14) else set()
"""Its colours are a dataclass."""
HEAVY = {
    "asyncio",
    "aiohttp",
    "structlog",
    "cattrs",
    "attrs",
    "pynvml",
    "sqlite3",
    "dataclasses",
    "logging",
} - OF_ARGPARSE
EVIDENCE = {"gpuwarden.publish", "gpuwarden.publish.evidence_text"}
NVML = "gpuwarden_collectors.nvml"
NAMED_IN_HELP = {
    "fleet": {"gpuwarden.fleet", "gpuwarden.fleet.status"},
    "inject": {
        "gpuwarden_collectors",
        "gpuwarden_collectors.dataclass",
        NVML,
        f"{NVML}.simulated_faults",
        f"{NVML}.simulated_gpu",
    },
    "test": {"gpuwarden_collectors", "gpuwarden_collectors.active_test", "gpuwarden_collectors.active_test.level"},
    "status": EVIDENCE,
    "watch": EVIDENCE,
}
"""By verb, the tables that its help or the choices of its options are made from. `status` and `watch` are small as a whole."""


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_examples(verb: str, tmp_path: Path) -> None:
    done = gpuwarden(verb, "--help", temporary=tmp_path)
    assert done.returncode == 0
    assert f"usage: gpuwarden {verb}" in done.stdout
    assert f"\n  gpuwarden {verb}" in done.stdout.partition("\nexamples:")[2]


def loaded_for_help() -> dict[str, set[str]]:
    """Return by verb what its parser loads beside the list of verbs, each in a process that has loaded nothing else."""
    script = (
        "import os, sys\nfrom gpuwarden.cli.main import VERBS, parser_of\nbefore = set(sys.modules)\n"
        "for verb in VERBS:\n    if os.fork() == 0:\n        parser_of(verb).format_help()\n"
        "        print(verb, *set(sys.modules) - before, flush=True)\n        os._exit(0)\n    assert os.wait()[1] == 0"
    )
    done = subprocess.run((sys.executable, "-c", script), capture_output=True, text=True, check=True, timeout=60)
    return {verb: set(names) for verb, *names in map(str.split, done.stdout.splitlines())}


def test_help_loads_the_parser_of_its_verb_and_not_what_the_verb_does() -> None:
    loaded = loaded_for_help()
    assert loaded.keys() == VERBS.keys()
    parsers = ("gpuwarden.base.", "gpuwarden.cli.")
    more = {
        verb: {
            name
            for name in names
            if name.endswith("_main") or (name.startswith("gpuwarden") and not name.startswith(parsers))
        }
        - {VERBS[verb][0]}
        for verb, names in loaded.items()
    }
    assert {verb: names for verb, names in more.items() if names} == NAMED_IN_HELP
    assert {verb: names & HEAVY for verb, names in loaded.items() if names & HEAVY - {"dataclasses"}} == {}


def test_without_a_verb_the_verbs_are_listed_and_that_is_bad_usage(tmp_path: Path) -> None:
    done = gpuwarden(temporary=tmp_path)
    assert done.returncode == 64
    assert all(f"\n  {verb} " in done.stderr for verb in VERBS)
    helped = gpuwarden("--help", temporary=tmp_path)
    assert (helped.returncode, helped.stdout) == (0, done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["statsu"], "gpuwarden: unknown verb 'statsu'; did you mean 'status'?"),
        (["-x"], "gpuwarden: unknown verb '-x'; 'gpuwarden --help' lists the verbs"),
        (["status", "--jsn"], "gpuwarden status: unrecognized arguments: --jsn"),
        (["status", "--run-dir", ""], "gpuwarden status: argument --run-dir: expected a folder, found nothing"),
        (["config"], "gpuwarden config: the following arguments are required: action"),
        (["run", "--simulate", "0"], "gpuwarden run: argument --simulate: expected 1 to 64, found '0'"),
        (["--sim", "8"], "gpuwarden run: unrecognized arguments: --sim 8"),
        (["run", "--sim", "8"], "gpuwarden run: unrecognized arguments: --sim 8"),
        (["events", "--since", "soon"], "gpuwarden events: argument --since: expected a duration (2h) or a time (2026-01-31T08:00), found 'soon'"),
    ],
)  # fmt: skip
def test_bad_usage_exits_with_64_and_a_message(words: list[str], message: str, tmp_path: Path) -> None:
    done = gpuwarden(*words, temporary=tmp_path)
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr.splitlines()[-1] == message


def test_the_version_is_one_line(tmp_path: Path) -> None:
    short, long = gpuwarden("-V", temporary=tmp_path), gpuwarden("--version", temporary=tmp_path)
    assert short.stdout == long.stdout
    assert short.stdout.startswith(f"gpuwarden {__version__}, Python 3.")


@pytest.mark.slow
def test_options_alone_run_the_daemon_by_the_names_of_prometheus_exporters(tmp_path: Path) -> None:
    missing = tmp_path / "web.yml"
    words = ("--simulate", "1", "--web.listen-address", ":0", "--web.config.file", missing)
    done = gpuwarden(*words, temporary=tmp_path)
    assert done.returncode == 64
    assert done.stderr.startswith("gpuwarden run: the web configuration (publish.web_config) has a fault:")
    assert str(missing) in done.stderr


def test_status_loads_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    script = "import sys\nfrom gpuwarden.cli.main import main\ncode = main()\nprint(*sys.modules, file=sys.stderr)\nsys.exit(code)"
    with serving(tmp_path / "run", lambda _: result(status(snapshot(), at(UPTIME)))):
        done = gpuwarden(
            "status", "--run-dir", tmp_path / "run", temporary=tmp_path, command=(sys.executable, "-c", script)
        )
    assert done.returncode == 0
    assert "gpu-node01 is HEALTHY" in done.stdout
    loaded = set(done.stderr.split())
    assert loaded & HEAVY == set()
    assert {name for name in loaded if name.startswith("gpuwarden")} == {
        "gpuwarden", "gpuwarden.base", "gpuwarden.base.paths", "gpuwarden.base.peer", "gpuwarden.base.durations", "gpuwarden.cli", "gpuwarden.cli.main", "gpuwarden.cli.parser", "gpuwarden.cli.status",
        "gpuwarden.cli.client", "gpuwarden.cli.status_text", "gpuwarden.cli.enforcement_text",
        "gpuwarden.cli.text", "gpuwarden.features", "gpuwarden.base.printable", "gpuwarden.publish", "gpuwarden.publish.evidence_text",
        *(f"gpuwarden.features.{name}" for name, own in FEATURES.items() if own & {"verbs", "status_text"}),
        *(f"gpuwarden.features.{name}.{module}" for name, own in FEATURES.items() for module in own & {"verbs", "status_text"}),
        "gpuwarden.features.why.text",
    }  # fmt: skip


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error_to_complain_about(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "explain"], env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as command:
        assert command.stdout is not None
        command.stdout.close()
        assert command.stderr is not None
        assert command.stderr.read() == b""
        assert command.wait(60) == 141


@pytest.mark.parametrize("words", [["explain", "xid", "79"], ["explain", "--help"]])
def test_garbage_is_collected_again_once_the_modules_are_loaded(words: list[str]) -> None:
    with suppress(SystemExit):
        main(words)
    assert gc.isenabled()


def test_an_internal_error_is_not_taken_for_the_health_of_a_gpu(tmp_path: Path) -> None:
    with serving(tmp_path / "run", lambda _: result({"status": "healthy"})):
        done = gpuwarden("status", "--run-dir", tmp_path / "run", temporary=tmp_path)
    assert done.returncode == 70
    assert done.stderr.startswith("Traceback")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["explain xid 79", "explain gpu_missing", "config show", "help"])
def test_a_full_disk_under_the_output_is_reported_as_such(words: str, unbuffered: str) -> None:
    run = partial(subprocess.run, timeout=60, check=False, env={**os.environ, "PYTHONUNBUFFERED": unbuffered})
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "gpuwarden", *words.split()]
        done = run(command, stdout=full, stderr=subprocess.PIPE, text=True)
        silent = run(command, stdout=full, stderr=full)
    assert done.stderr == f"gpuwarden {words.split(maxsplit=1)[0]}: cannot write the output: No space left on device\n"
    assert done.returncode == silent.returncode == 74


def test_a_closed_stdout_does_not_change_the_answer(tmp_path: Path) -> None:
    with serving(tmp_path / "run", lambda _: result(status(snapshot(), at(UPTIME)))):
        shell = 'exec "$0" -m gpuwarden status --run-dir "$1" >&-'
        done = subprocess.run(
            ["/bin/sh", "-c", shell, sys.executable, tmp_path / "run"],
            env=environment(tmp_path), capture_output=True, check=False, timeout=60,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_name_that_is_not_utf_8_is_shown_escaped(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "config", "check", "--config", os.fsencode(tmp_path) + b"/\xff.toml"],
        env=environment(tmp_path), capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 64
    assert done.stderr.endswith("\\udcff.toml: does not exist\n")
