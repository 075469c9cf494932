"""A real dockerd on this machine, and the image of this tree in it. For disposable hosts, as root.

    pytestmark = DOCKER

    def test_x(docker: Docker, image: str):
        container = docker.start(image, "run", "--simulate", "8", flags=["--read-only"])

It lives in mount and PID namespaces of its own, so that all it starts ends with it, and as long as the session. It makes no
network: containers have none, or the host's. It has a higher priority than tests: the daemon waits for its answers for a second only.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

import gpuwarden
from gpuwarden_collectors.simulated_pci import h100, write_tree
from support.daemons import slots
from support.debian_trees import BUILD, made_once, mmdebstrap
from support.disposable import require_disposable_host
from support.fake_nvml_library import CONTROL_VARIABLE, LIBRARY_NAME, FakeNvml
from support.needs import unmet

DOCKER = [pytest.mark.disposable, pytest.mark.xdist_group("docker")]
"""For every test with a container: they share one dockerd."""
PATIENCE = 180.0
"""Seconds after which a test gives up waiting; nothing is asserted about how much of it is used."""
NEEDED = {"dockerd": "docker.io", "docker": "docker.io", "mmdebstrap": "mmdebstrap", "unshare": "util-linux"}
ROOT = Path(__file__).parents[2]
BASE = "debian-of-tests"
_DEBIAN = ("ca-certificates", "libffi8", "libgcc-s1", "libsqlite3-0", "libssl3", "libstdc++6", "python3", "zlib1g")
_INPUTS = (
    *("daemon/gpuwarden", "collectors/gpuwarden_collectors", "packaging", "systemd"),
    *("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"),
)
LIBRARY_IN_CONTAINER = f"/usr/lib/x86_64-linux-gnu/{LIBRARY_NAME}"
"""Where NVIDIA's toolkit mounts the driver's library in a container of Debian."""
TIGHT = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--tmpfs", "/tmp")

_START = """
mount --make-rshared / # in its own namespace: a container may ask for later mounts of the host
mkdir "$FOLDER/memory"
mount -t tmpfs -o size=1g tmpfs "$FOLDER/memory"
exec nice -n -10 dockerd --data-root "$FOLDER/memory/data" --exec-root "$FOLDER/memory/exec" --pidfile "$FOLDER/memory/pid" -H "unix://$FOLDER/docker.sock" \
  --iptables=false --bridge=none --ip-forward=false --ip-masq=false
"""


def require_docker() -> None:
    require_disposable_host()
    missing = [f"{command} (package {package})" for command, package in NEEDED.items() if not shutil.which(command)]
    if missing:
        unmet(f"this test starts containers: no {', no '.join(missing)}")


@pytest.fixture(scope="session")
def docker() -> Iterator[Docker]:
    require_docker()
    with (
        tempfile.TemporaryDirectory(prefix="gw-docker-", ignore_cleanup_errors=True) as folder,
        Docker(Path(folder)) as running,
    ):
        yield running


@pytest.fixture(scope="session")
def image(docker: Docker) -> str:
    """The reference of the image that `packaging/Dockerfile` makes."""
    docker.command("import", str(_base()), BASE)
    reference = f"gpuwarden:{gpuwarden.__version__}"
    arguments = {"BASE": BASE, "VERSION": gpuwarden.__version__, "TARGETARCH": "amd64"}
    build_arguments = [part for name, value in arguments.items() for part in ("--build-arg", f"{name}={value}")]
    file = ROOT / "packaging/Dockerfile"
    docker.command(
        "build", "--network", "none", "--tag", reference, "--file", str(file), *build_arguments, str(_packages())
    )
    return reference


def _base() -> Path:
    """Debian, with all that the Dockerfile would install, and the Python of `_packages`: apt-get needs no archive."""
    options = ("--variant=apt", "--format=tar", '--customize-hook=rm "$1/etc/apt/sources.list"')
    return made_once(BUILD / "image", (_DEBIAN, options), lambda tree: mmdebstrap(tree, "bookworm", _DEBIAN, *options))


def _packages() -> Path:
    """The folder with the .deb: that of `make bundle` (`GPUWARDEN_BUNDLE`), or of this tree for Debian's Python, built if that has changed."""
    if folder := os.environ.get("GPUWARDEN_BUNDLE"):
        return Path(folder).absolute()
    digest = hashlib.sha256()
    for file in sorted(file for name in _INPUTS for file in _files(ROOT / name)):
        digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return made_once(BUILD / "image" / "packages", digest.hexdigest(), _build)


def _build(folder: Path) -> None:
    from gpuwarden_deb.build import build

    for old in folder.parent.iterdir():
        if old.is_dir():
            shutil.rmtree(old)
    package = build(folder)
    package.rename(folder / f"gpuwarden_{gpuwarden.__version__}_amd64.deb")


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    for file in path.rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            yield file


class Docker:
    """A Docker daemon that runs inside `with`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "docker.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        alone = (
            "unshare",
            "--mount",
            "--propagation",
            "slave",
            "--pid",
            "--fork",
            "--mount-proc",
            "--kill-child",
            "/bin/sh",
            "-ec",
            _START,
        )
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *alone],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env={**os.environ, "FOLDER": str(self.folder)},
            )  # fmt: skip
        try:
            wait(self._is_up, "dockerd to answer", lambda: (self.folder / "log").read_text(errors="replace"))
        except BaseException:
            self.__exit__()
            raise
        return self

    def _is_up(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            log = (self.folder / "log").read_text(errors="replace")
            raise AssertionError(f"dockerd ended with {self._process.returncode}:\n{log[-3000:]}")
        return self.socket.exists() and self.run("version").returncode == 0

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            for container in self.run("ps", "--quiet", "--all").stdout.split():
                self.run("rm", "--force", container)
            self._process.send_signal(signal.SIGKILL)  # and so all that is in its PID namespace
            self._process.wait(PATIENCE)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "DOCKER_HOST": f"unix://{self.socket}"}
        return subprocess.run(
            ["docker", *arguments], env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE
        )

    def command(self, *arguments: str) -> str:
        """Run docker, assert that it succeeds, and return its output."""
        done = self.run(*arguments)
        assert done.returncode == 0, f"docker {' '.join(arguments)}:\n{done.stdout}{done.stderr}"
        return done.stdout

    def start(self, image: str, *arguments: str, flags: Sequence[str] = ()) -> Container:
        """A container, which runs; `arguments` are behind the image's entrypoint. It has no network unless a flag gives it one."""
        network = [] if any(flag.startswith("--network") for flag in flags) else ["--network", "none"]
        return Container(self, self.command("run", "--detach", *network, *flags, image, *arguments).strip())


class Container:
    def __init__(self, docker: Docker, name: str) -> None:
        self.docker = docker
        self.id = name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.docker.command("rm", "--force", "--volumes", self.id)

    def exec(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the container. dockerd may hang for a container that ends at that moment, whose log then shows the reason."""
        try:
            return self.docker.run("exec", self.id, *command)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"docker exec {' '.join(command)} hangs:\n{self.logs()[-3000:]}") from error

    def logs(self) -> str:
        done = self.docker.run("logs", self.id)
        return done.stdout + done.stderr

    def state(self) -> dict[str, Any]:
        (description,) = json.loads(self.docker.command("inspect", self.id))
        state: dict[str, Any] = description["State"]
        return state

    def status(self, *where: str) -> dict[str, Any]:
        """Empty while the daemon in it does not answer yet."""
        assert self.state()["Running"], self.logs()
        done = self.exec("gpuwarden", "status", "--json", *where)
        document: dict[str, Any] = json.loads(done.stdout) if done.stdout.startswith("{") else {}
        return document

    def wait_status(self, status: str, *where: str) -> dict[str, Any]:
        wait(lambda: self.status(*where).get("status") == status, f"the daemon to be {status}", self.logs)
        return self.status(*where)

    def stop(self) -> int:
        """SIGTERM, and its exit code: 137 if it did not end by that."""
        self.docker.command("stop", "-t", "30", self.id)
        return int(self.state()["ExitCode"])

    def processes(self) -> list[int]:
        """Return the container's processes as this host numbers them."""
        pids = []
        for folder in Path("/proc").iterdir():
            try:
                if folder.name.isdecimal() and self.id in (folder / "cgroup").read_text():
                    pids.append(int(folder.name))
            except OSError:
                continue
        return sorted(pids)


def injected(fake: FakeNvml) -> list[str]:
    """Flags of a container with the driver's library as NVIDIA's toolkit mounts it, of the node that `fake` is, and its eight GPUs on the bus."""
    folder = fake.control.parent
    write_tree(folder / "sys", [h100(slot) for slot in slots(8)])
    environment = {
        CONTROL_VARIABLE: fake.control,
        "GPUWARDEN_PATHS__SYSFS": folder / "sys",
        "GPUWARDEN_COLLECTORS__NVML__INTERVAL": "500ms",
    }
    variables = [part for name, value in environment.items() for part in ("--env", f"{name}={value}")]
    return ["--volume", f"{fake.library}:{LIBRARY_IN_CONTAINER}:ro", "--volume", f"{folder}:{folder}", *variables]


def wait(condition: Callable[[], object], awaited: str, shown: Callable[[], str]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {PATIENCE:g} s in vain for {awaited}:\n{shown()[-3000:]}")
        time.sleep(0.1)


if __name__ == "__main__":
    _base()
    _packages()
