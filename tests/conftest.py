"""For all tests."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from support.disposable import require_disposable_host
from support.docker import docker, image  # noqa: F401 - fixtures
from support.loops import close_leftover_connections
from support.needs import needed, not_run, root_rights, unmet
from support.slurm import slurm, slurm_rig  # noqa: F401 - fixtures

if TYPE_CHECKING:
    from support.bundles import Bundles
    from support.packages import Packages

# A shell that runs the suite in the background has it ignore SIGINT, and all that it starts would.
signal.signal(signal.SIGINT, signal.default_int_handler)

# With that of a careful administrator, 077, other users would not reach what tests make for them.
os.umask(0o022)

close_leftover_connections()

gc.disable()

settings.register_profile("loaded", deadline=None, print_blob=True)  # the machine is shared: a slow example is no fault
settings.register_profile("few", settings.get_profile("loaded"), max_examples=20)
settings.load_profile("loaded")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder with a short name: a Unix socket below it must fit in 107 bytes, and pytest's own are long under xdist."""
    with tempfile.TemporaryDirectory(prefix="gw-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    """Return the built packages, for tests of the xdist group "package"."""
    from support.packages import Packages

    return Packages(tmp_path_factory.mktemp("packages"))


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory, packages: Packages) -> Bundles:
    from gpuwarden_bundle.build import COMMANDS
    from support.bundles import Bundles

    if missing := [
        f"{command} (package {package})" for command, package in COMMANDS.items() if not shutil.which(command)
    ]:
        unmet(f"this test makes an RPM and a .deb: no {', no '.join(missing)}")
    return Bundles(tmp_path_factory.mktemp("bundles"), packages)


SLOW_GROUPS = ("slurm", "package", "docker")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the groups of tests that begin with setting up something large, so that they can be chosen or left out."""
    for item in items:
        group = item.get_closest_marker("xdist_group")
        name = "" if group is None else str(group.args[0])
        if name.startswith("slurm"):
            item.add_marker("slurm")
        if name.startswith(SLOW_GROUPS):
            item.add_marker("slow")


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("disposable"):
        require_disposable_host()
    for mark in item.iter_markers("needs"):
        for thing in mark.args:
            root_rights() if thing == "root" else needed(thing)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if lines := list(not_run(terminalreporter.getreports("skipped"))):
        terminalreporter.section("not run")
        terminalreporter.write("".join(f"{line}\n" for line in lines))
