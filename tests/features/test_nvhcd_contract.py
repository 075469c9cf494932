"""The client of nvidia-resiliency-ext 0.6.0 itself asks whether a node may take part, and is answered as meant."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.foreign import foreign, python_of
from support.responders import activated, marker, unix, verdict

VERSION = "nvidia-resiliency-ext==0.6.0"
PLATFORMS = ("manylinux_2_39_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
"""Its wheel declares that it needs a newer C library than Debian 12 has; what is used of it needs none."""
WHEEL = (
    *(word for platform in PLATFORMS for word in ("--platform", platform)),
    "--python-version", "3.11", "--implementation", "cp", "--abi", "cp311", "--abi", "abi3", "--only-binary", ":all:",
)  # fmt: skip
BESIDE = (
    "grpcio==1.85.1", "protobuf==7.36.2", "typing-extensions==4.16.0", "defusedxml==0.7.1", "httpx==0.28.1", "idna==3.20",
)  # fmt: skip
SCRIPT = """
import logging, sys
from nvidia_resiliency_ext.shared_utils.health_check import NodeHealthCheck

logged = []
class Kept(logging.Handler):
    def emit(self, record):
        logged.append(record.getMessage())
logging.getLogger().addHandler(Kept())
check = NodeHealthCheck(endpoint=sys.argv[1])
assert check._grpc is not None, "its gRPC client is not there"
for _ in sys.stdin:
    logged.clear()
    print(check(), *logged, flush=True)
"""


class Launcher:
    """Its client checked for the socket when it was made, and asks again and again."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self._process = python_of(folder, SCRIPT, endpoint)

    def asks(self) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def packages() -> Path:
    if sys.version_info[:2] != (3, 11):
        pytest.skip("its wheel that needs no torch to be built is for Python 3.11")
    return foreign("nvhcd", (VERSION, *BESIDE), *WHEEL)


@pytest.fixture
def launcher(packages: Path, tmp_path: Path) -> Iterator[Launcher]:
    """There before the service, as a job may be: the socket is all that it needs to find."""
    listener = unix(tmp_path / "nvhcd.sock")
    with activated(listener, "nvhcd", "--run-dir", tmp_path, folder=tmp_path, GPUWARDEN_NVHCD__ENABLED="true"):
        client = Launcher(packages, f"unix://{tmp_path / 'nvhcd.sock'}")
        yield client
        client.end()


@pytest.mark.slow
def test_ft_launcher_follows_the_daemons_verdict(launcher: Launcher, tmp_path: Path) -> None:
    assert launcher.asks().startswith("True")  # nothing is known
    verdict(tmp_path, "failure")
    assert launcher.asks() == "True\n"
    path = marker(tmp_path, "nvhcd")
    answer = launcher.asks()
    assert answer.startswith("False")
    assert "fail_count=1, failed_checks=['xid']" in answer
    verdict(tmp_path, age=5000)
    assert launcher.asks().startswith("False")
    verdict(tmp_path, "failure", mode="observe")
    assert launcher.asks().startswith("True")
    verdict(tmp_path)
    path.unlink()
    assert launcher.asks().startswith("True")
