"""`run` and `check`: what a simulation may touch, and that both do what is documented."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuwarden.base.paths import UnsafeFolder, check_private, is_real, make_private, simulation_home
from gpuwarden.cli.parser import CommandError
from gpuwarden.cli.run_main import next_steps
from gpuwarden.cli.sources import configuration
from support.commands import COMMAND, environment, gpuwarden, options


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Yield a folder with a path so short that the socket of a simulation can lie well below it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def test_simulated_gpus_live_in_a_private_folder_of_the_user(tmp_path: Path) -> None:
    config = configuration(options(simulate=8), {"TMPDIR": str(tmp_path)}, secure=make_private)
    home = tmp_path / f"gpuwarden-{os.getuid()}"
    assert (config.run.dir, config.state.dir, config.collectors.nvml.simulate) == (home / "run", home / "state", 8)
    assert home.stat().st_mode & 0o777 == 0o700


def test_simulation_reads_neither_etc_nor_variables(tmp_path: Path) -> None:
    variables = {
        "TMPDIR": str(tmp_path),
        "GPUWARDEN_MODE": "enforce",
        "GPUWARDEN_RUN_DIR": "/run/gpuwarden",
        "GPUWARDEN_X": "1",
    }
    config = configuration(options(simulate=1), variables)
    assert config.mode == "observe"
    assert config.run.dir == tmp_path / f"gpuwarden-{os.getuid()}/run"


def test_a_file_named_with_simulate_is_read(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('node = "n"\nstate.dir = "/elsewhere"\n')
    config = configuration(options(simulate=1, config=tmp_path / "mine.toml"), {"TMPDIR": str(tmp_path)})
    assert (config.node, config.state.dir) == ("n", Path("/elsewhere"))


def test_it_is_told_that_a_scheduler_in_that_file_is_not_used(tmp_path: Path) -> None:
    """Otherwise 'no scheduler is configured', the answer to an exclusion, contradicts the file."""
    (tmp_path / "mine.toml").write_text(
        'mode = "enforce"\nfile.path = "/srv/out"\nbreaker.uncounted = "allow"\nrun.dir = "/elsewhere"\n'
    )
    config = configuration(options(simulate=1, config=tmp_path / "mine.toml"), {"TMPDIR": str(tmp_path)})
    assert "no scheduler, notification, cloud notice or check of the host is used" in next(next_steps(config, {}))
    for verb in ("run", "check", "record"):
        assert "uses no scheduler" in " ".join(gpuwarden(verb, "--help", temporary=tmp_path).stdout.split())


@pytest.mark.parametrize(
    "paths",
    [
        {"run_dir": Path("/run/gpuwarden")},
        {"run_dir": Path("/var/run/gpuwarden/x")},
        {"state_dir": Path("/var/lib/x/../gpuwarden")},
        {"config": Path("/etc/gpuwarden/gpuwarden.toml")},
        {"config": Path("/etc/gpuwarden/conf.d/x.toml")},
    ],
)
def test_simulation_keeps_away_from_the_directories_of_real_gpus(paths: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="is for real GPUs"):
        configuration(options(simulate=1, **paths), {"TMPDIR": str(tmp_path)})


def test_a_link_to_a_real_place_is_that_place(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/run/gpuwarden")
    assert is_real(tmp_path / "link")
    assert not is_real(tmp_path)


def test_a_folder_that_somebody_else_prepared_is_refused(tmp_path: Path) -> None:
    home = simulation_home({"TMPDIR": str(tmp_path)})
    home.symlink_to(tmp_path)
    with pytest.raises(CommandError, match="is not safe to use: it is not a folder"):
        configuration(options(simulate=1), {"TMPDIR": str(tmp_path)})
    home.unlink()
    home.mkdir(mode=0o755)
    with pytest.raises(UnsafeFolder, match=r"others may enter it \(mode 0755\)"):
        make_private(home)
    home.chmod(0o700)
    make_private(home)
    if os.geteuid() == 0:
        os.chown(home, 65534, -1)
        with pytest.raises(UnsafeFolder, match="it belongs to user 65534"):
            check_private(home)


def test_a_temporary_directory_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="No such file or directory; give --run-dir and --state-dir"):
        configuration(options(simulate=1), {"TMPDIR": str(tmp_path / "missing")}, secure=make_private)


def test_reading_the_configuration_creates_nothing(tmp_path: Path) -> None:
    configuration(options(simulate=1), {"TMPDIR": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_check_of_simulated_gpus_is_marked_and_ends_with_their_health(tmp_path: Path) -> None:
    done = gpuwarden("check", "--simulate", "2", temporary=tmp_path)
    assert done.stdout.startswith("SIMULATED")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_run_serves_until_it_is_signalled(tmp_path: Path) -> None:
    command = [*COMMAND, "run", "--simulate", "2", "--listen", "127.0.0.1:0"]
    with (tmp_path / "printed").open("w") as printed:
        daemon = subprocess.Popen(command, env=environment(tmp_path), stdout=printed, stderr=subprocess.DEVNULL)
    with daemon:
        try:
            where = {"GPUWARDEN_RUN_DIR": str(simulation_home({"TMPDIR": str(tmp_path)}) / "run")}
            lost = f"; one with simulated GPUs answers elsewhere: add --run-dir {where['GPUWARDEN_RUN_DIR']}\n"
            while gpuwarden("status", temporary=tmp_path, more=where).returncode != 0:
                assert daemon.poll() is None
                time.sleep(0.1)
            assert gpuwarden("status", "--run-dir", tmp_path, temporary=tmp_path).stderr.endswith(lost)
            assert gpuwarden("inject", "--gpu", "1", "lost", temporary=tmp_path, more=where).returncode == 0
            while (done := gpuwarden("status", temporary=tmp_path, more=where)).returncode != 2:
                time.sleep(0.1)
            assert "FAILURE: gpu_missing" in done.stdout
            while "gpu_missing@gpu" not in gpuwarden("events", temporary=tmp_path, more=where).stdout:
                time.sleep(0.1)
            typed = [line for line in (tmp_path / "printed").read_text().splitlines() if line.startswith("  ")]
            assert [line.split(" --run-dir ")[0].split()[-1] for line in typed] == ["status", "inject"]
            assert all(f" --run-dir {where['GPUWARDEN_RUN_DIR']}" in line for line in typed)
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(60) == 0
        finally:
            daemon.kill()
