"""The bundle on hosts: switched to and back from the package for the distribution's Python, upgraded in mid-fault by dpkg and rpm."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuwarden_bundle import baseline
from gpuwarden_deb import contents
from gpuwarden_deb.control import project
from support.bare_root import BareRoot, terminate
from support.bundles import SUCCESSOR, Bundles, made
from support.machine import PATIENCE, debian_tree
from support.machine_gpuwarden import FakeGpus
from support.package_node import ACTS, BLIND, HOLDS, LEDGER, MARKER, Node
from support.packages import Packages

pytestmark = [pytest.mark.xdist_group("package"), pytest.mark.disposable]

OTHER = "gpuwarden-system-python"


@pytest.mark.slow
def test_a_fault_outlasts_the_switch_between_the_packages_in_both_directions(
    tmp_path: Path, packages: Packages, bundles: Bundles
) -> None:
    node = Node(tmp_path, packages)
    node.machine.copy(bundles.deb, "/root/bundle.deb")
    node.machine.copy(bundles.next_deb, "/root/next-bundle.deb")
    with node.machine as machine:
        node.apt("install", "/root/this.deb")
        node.wait_until_healthy()
        machine.run("systemctl", "enable", "--now", "gpuwarden-nvhcd.socket", "gpuwarden-test.timer")
        since, inodes = node.fail(), node.inodes()

        def check(name: str, gone: str) -> None:
            assert machine.output("dpkg-query", "--show", "--showformat=${db:Status-Status}", name) == "installed"
            assert machine.output("dpkg-query", "--show", "--showformat=${db:Status-Status}", gone) != "installed"
            assert node.since() == since
            assert node.has(MARKER)
            assert "restored" not in node.event_kinds()
            assert node.inodes() == inodes, "containers have mounted these"
            assert node.dpkg("--verify", name) == ""
            assert machine.output("systemctl", "is-active", "gpuwarden-test.timer") == "active"

        node.dpkg("--install", "/root/bundle.deb")
        check("gpuwarden", OTHER)
        node.dpkg("--purge", OTHER)
        check("gpuwarden", OTHER)
        node.dpkg("--install", "/root/next-bundle.deb")
        check("gpuwarden", OTHER)
        node.dpkg("--install", "/root/this.deb")
        check(OTHER, "gpuwarden")
        node.dpkg("--purge", "gpuwarden")
        check(OTHER, "gpuwarden")
        # apt removes the one before it installs the other: what containers have mounted is another one then.
        assert f"Removing {OTHER}" in node.apt("install", "/root/bundle.deb")
        inodes = node.inodes()
        check("gpuwarden", OTHER)
        # rpm cannot install into a booted machine here: its scripts are run as rpm runs them at the end of an upgrade.
        pid = node.pid()
        for active in (True, False):
            machine.run("sh", "-s", "1", input=contents.scripts(bundles.root, "rpm")["posttrans"])
            assert (node.pid() not in ("0", pid)) == active
            machine.run("systemctl", "disable", "--now", "gpuwarden.service", "gpuwarden-job.socket")
        node.dpkg("--install", "/root/bundle.deb")
        assert node.pid() == "0", "an administrator disabled it"


class Daemon:
    """gpuwarden on two fake GPUs in a bare root, by the package that is installed there."""

    def __init__(self, bare: BareRoot, gpus: FakeGpus) -> None:
        self.bare, self.gpus = bare, gpus
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        variables = [line.removeprefix("Environment=") for line in self.gpus.environment().splitlines()[1:]]
        with (self.bare.folder / "daemon").open("ab") as log:
            self._process = subprocess.Popen(
                self.bare.command("env", *variables, "gpuwarden", "run"), stdout=log, stderr=log
            )
        self.wait(lambda: self.status().get("status") in ("healthy", "failure"), "the first verdict")

    def stop(self) -> int:
        assert self._process is not None
        return terminate(self._process)

    def status(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(
            self.bare.run("gpuwarden", "status", "--json", check=False).stdout or "{}"
        )
        return document

    def exclusions(self) -> str:
        return self.bare.run("gpuwarden", "exclusions", check=False).stdout

    def fail(self) -> None:
        def out() -> bool:
            self.gpus.fake.xid(0, 95)
            return " since " in self.exclusions()

        self.wait(out, "the exclusion")

    def wait(self, condition: Callable[[], object], awaited: str) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(
                    f"waited {PATIENCE:g} s in vain for {awaited}:\n{(self.bare.folder / 'daemon').read_text()[-5000:]}"
                )
            time.sleep(0.1)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    gpus = FakeGpus(tmp_path)
    with BareRoot(debian_tree(), tmp_path, binds=gpus.binds) as bare:
        if made():
            bare.remove_python()
        conf = bare.path("/etc/gpuwarden/conf.d/10-site.toml")
        conf.parent.mkdir(parents=True)
        conf.write_text(ACTS + gpus.configuration(BLIND + HOLDS))
        yield Daemon(bare, gpus)


@pytest.mark.slow
def test_a_fault_outlasts_an_upgrade_of_the_rpm_and_its_removal_restores_nothing(
    daemon: Daemon, bundles: Bundles
) -> None:
    bare = daemon.bare
    bare.rpm("--install", "--nodeps", str(bundles.rpm))
    assert "gpuwarden:" in bare.path("/etc/passwd").read_text()
    assert bare.path("/etc/systemd/system/multi-user.target.wants/gpuwarden.service").is_symlink()
    daemon.start()
    assert daemon.status()["status"] == "healthy"
    daemon.fail()
    before = daemon.exclusions()
    bare.rpm("--upgrade", "--nodeps", str(bundles.next_rpm))
    assert daemon.stop() == 0
    daemon.start()
    assert daemon.status()["status"] == "failure"
    assert daemon.exclusions() == before
    assert bare.path(MARKER).exists()
    assert bare.rpm("--verify", "--nodeps", "gpuwarden").stdout == ""
    assert bare.rpm("--query", "gpuwarden").stdout.startswith(f"gpuwarden-{SUCCESSOR}-1.")
    assert daemon.stop() == 0
    output = bare.rpm("--erase", "--nodeps", "gpuwarden")
    assert "gpuwarden is removed and lifts nothing" in output.stdout + output.stderr
    assert "nvhcd: in force since" in output.stdout + output.stderr
    assert not bare.path("/opt/gpuwarden").exists()
    assert not bare.path("/etc/systemd/system/multi-user.target.wants/gpuwarden.service").is_symlink()
    assert bare.path(LEDGER).exists()
    assert bare.path("/etc/gpuwarden/conf.d/10-site.toml").exists()


@pytest.mark.slow
def test_the_rpm_requires_what_its_files_need_and_offers_none_of_its_libraries(
    daemon: Daemon, bundles: Bundles
) -> None:
    """A host without them refuses it, by name; other packages must not be linked to what is for gpuwarden alone."""
    refused = daemon.bare.rpm("--install", str(bundles.rpm), check=False)
    assert refused.returncode != 0
    for capability in baseline.rpm_capabilities(bundles.needs):
        assert f"{capability} is needed by gpuwarden-" in refused.stderr
    form = "[%{REQUIRENAME} %{REQUIREFLAGS:deptype}\n]"
    kinds = daemon.bare.rpm("--query", "--package", f"--queryformat={form}", str(bundles.next_rpm)).stdout
    before = {kind for line in kinds.splitlines() if line.startswith("systemd ") for kind in line.split()[1].split(",")}
    assert {"post", "posttrans", "preun"} <= before, "systemd is there before they run, when all of a host is installed"
    provided = daemon.bare.rpm("--query", "--package", "--provides", str(bundles.rpm)).stdout
    assert {line.split()[0].partition("(")[0] for line in provided.splitlines()} == {"gpuwarden"}


@pytest.mark.slow
def test_an_upgrade_on_a_full_disk_fails_and_leaves_the_version_that_was_there(
    tmp_path: Path, bundles: Bundles
) -> None:
    size = sum(-(-file.stat().st_size // 4096) * 4096 for file in bundles.root.rglob("*") if not file.is_symlink())
    with BareRoot(debian_tree(), tmp_path, size=size * 3 // 2, binds={bundles.folder: "/packages"}) as bare:
        bare.run("dpkg", "--install", f"/packages/{bundles.deb.name}")
        failed = bare.run("dpkg", "--install", f"/packages/{bundles.next_deb.name}", check=False)
        assert failed.returncode != 0
        assert "No space left on device" in failed.stderr
        assert bare.run("gpuwarden", "--version").stdout.startswith("gpuwarden 0.")
        version = bare.run("dpkg-query", "--show", "--showformat=${db:Status-Status} ${Version}", "gpuwarden").stdout
        assert version == f"installed {project()[0]}"


@pytest.mark.slow
@pytest.mark.parametrize("manager", ["dpkg", "rpm"])
def test_no_package_is_installed_over_a_gpuwarden_that_none_installed(
    manager: str, tmp_path: Path, bundles: Bundles
) -> None:
    """The files of two would be mixed, and units in /etc would go on starting the one that is not the package's."""
    with BareRoot(debian_tree(), tmp_path, binds={bundles.folder: "/packages"}) as bare:

        def install() -> subprocess.CompletedProcess[str]:
            if manager == "dpkg":
                return bare.run("dpkg", "--install", f"/packages/{bundles.deb.name}", check=False)
            return bare.rpm("--install", "--nodeps", str(bundles.next_rpm), check=False)

        bare.path("/opt/gpuwarden/bin").mkdir(parents=True)
        bare.path("/opt/gpuwarden/bin/gpuwarden").write_text("uv's")
        bare.path("/usr/local/share/gpuwarden").mkdir()
        bare.path("/usr/local/share/gpuwarden/service.json").touch()
        refused = install()
        assert refused.returncode != 0
        assert (
            "Of that one its units are there: gpuwarden service remove, then /opt/gpuwarden is of no" in refused.stderr
        )
        assert bare.path("/opt/gpuwarden/bin/gpuwarden").read_text() == "uv's"
        bare.path("/usr/local/share/gpuwarden/service.json").unlink()
        refused = install()
        assert refused.returncode != 0
        assert "mv /opt/gpuwarden /opt/gpuwarden.old, then install again" in refused.stderr
        bare.run("mv", "/opt/gpuwarden", "/opt/gpuwarden.old")
        assert install().returncode == 0
        assert bare.run("gpuwarden", "--version").stdout.startswith("gpuwarden 0.")


@pytest.mark.slow
def test_a_late_purge_takes_nothing_from_a_gpuwarden_that_was_installed_without_a_package_after_the_removal(
    tmp_path: Path, bundles: Bundles
) -> None:
    """`apt purge '~c'` does this months later: the other gpuwarden runs, with the ledger and the folders that the package had."""
    theirs = (
        "/var/lib/gpuwarden/ledger.db",
        "/run/gpuwarden/verdict",
        "/run/gpuwarden-slurm/jobs/7",
        "/var/lib/gpuwarden-slurm/refuse",
    )
    with BareRoot(debian_tree(), tmp_path, binds={bundles.folder: "/packages"}) as bare:
        bare.run("dpkg", "--install", f"/packages/{bundles.deb.name}")
        bare.run("dpkg", "--remove", "gpuwarden")
        bare.path("/etc/gpuwarden/exclusions-at-removal").touch()  # there were none
        for path in (*theirs, "/usr/local/share/gpuwarden/service.json"):
            bare.path(path).parent.mkdir(parents=True, exist_ok=True)
            bare.path(path).touch()
        bare.run("dpkg", "--purge", "gpuwarden")
        assert [path for path in theirs if not bare.path(path).exists()] == []
