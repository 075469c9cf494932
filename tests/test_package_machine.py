"""The package on a Debian that was booted for it: installed, upgraded and downgraded in mid-fault, removed, purged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from gpuwarden_deb.paths import REQUIREMENTS
from gpuwarden_deb.sbom import canonical
from support.package_node import ANSWERING, LEDGER, MARKER, Node
from support.packages import Packages

pytestmark = [pytest.mark.xdist_group("package"), pytest.mark.disposable]

NEWER = Path(__file__).parent / "data/ledger/newer.sql"


def test_the_bill_of_materials_names_all_that_is_in_it_by_the_hashes_of_the_lock(packages: Packages) -> None:
    """The hash of gpuwarden alone is in no lock, since it is built from the tree."""
    (site,) = (packages.root / "opt/gpuwarden/lib").glob("python3*/site-packages")
    bill = json.loads((packages.root / "usr/share/doc/gpuwarden/sbom.cdx.json").read_text())
    named = {(part["name"], part["version"]): part["hashes"][0]["content"] for part in bill["components"]}
    installed = {(canonical(each.metadata["Name"]), each.version) for each in metadata.distributions(path=[str(site)])}
    assert named.keys() == installed
    lock = REQUIREMENTS.read_text()
    assert [name for (name, _), digest in named.items() if f"sha256:{digest}" not in lock] == ["gpuwarden"]
    references = {part["bom-ref"] for part in (bill["metadata"]["component"], *bill["components"])}
    assert {row["ref"] for row in bill["dependencies"]} == references
    assert {ref for row in bill["dependencies"] for ref in row["dependsOn"]} <= references
    assert all(part["licenses"] and part["purl"].startswith("pkg:pypi/") for part in bill["components"])


def test_it_depends_on_the_python_that_it_was_built_with_and_on_the_libraries_it_is_linked_to(
    packages: Packages,
) -> None:
    depends = packages.field("Depends").split(", ")
    python = Path("/usr/bin/python3").resolve().name
    assert depends[:3] == ["systemd", "init-system-helpers (>= 1.54~)", python]
    assert any(word.startswith("libc6 (>= ") for word in depends)
    assert (packages.root / "opt/gpuwarden/bin/python").readlink() == Path(python)
    assert (packages.root / f"opt/gpuwarden/bin/{python}").readlink() == Path("/usr/bin", python)


@pytest.fixture
def node(tmp_path: Path, packages: Packages) -> Iterator[Node]:
    node = Node(tmp_path, packages)
    with node.machine:
        yield node


@pytest.mark.slow
def test_a_fault_outlasts_restart_upgrade_and_downgrade_and_nothing_is_restored(node: Node, packages: Packages) -> None:
    machine = node.machine
    node.apt("install", "/root/this.deb")
    assert machine.show("gpuwarden.service", "ActiveState") == "active"
    assert machine.output("systemctl", "is-enabled", "gpuwarden.service") == "enabled"
    node.wait_until_healthy()
    assert machine.run("gpuwarden", "config", "check").stdout.startswith("the configuration is valid")
    node.answer_others()
    dstack, nvhcd = node.responses()
    assert dstack == '{"dcgm":null}'
    assert '"fail_count":0' in nvhcd
    since, inodes = node.fail(), node.inodes()

    def check(last: str) -> str:
        assert node.since() == since
        assert node.has(MARKER)
        dstack, nvhcd = node.responses()
        assert json.loads(dstack)["dcgm"]["overall_health"] == 20
        assert '"fail_count":1' in nvhcd
        assert node.inodes() == inodes
        assert "restored" not in node.event_kinds()
        assert node.pid() not in ("0", last)
        return node.pid()

    pid = check("")
    machine.run("systemctl", "restart", "gpuwarden")
    pid = check(pid)
    node.dpkg("--install", "/root/next.deb")
    assert (
        machine.output("dpkg-query", "--show", "--showformat=${Version}", "gpuwarden-system-python")
        == f"{packages.version}+next"
    )
    pid = check(pid)
    machine.run("systemctl", "stop", "gpuwarden.service", "gpuwarden-job.socket")
    node.ledger(NEWER.read_text())
    node.dpkg("--force-downgrade", "--install", "/root/this.deb")
    inodes = node.inodes()  # a socket that was stopped is another one
    check(pid)
    assert node.dpkg("--verify", "gpuwarden-system-python") == "", "nothing that was installed has changed, and it ran"


@pytest.mark.slow
def test_a_shell_with_the_python_of_a_module_of_the_site_starts_it_all_the_same(node: Node) -> None:
    """Lmod and conda set these for all that is typed; what it starts to read the GPUs inherits them, too."""
    node.dpkg("--install", "/root/this.deb")
    node.machine.write("/root/other/typing.py", "raise ImportError('of another Python')\n")
    site = ("env", "PYTHONHOME=/opt/conda", "PYTHONPATH=/root/other")
    assert node.machine.run(*site, "gpuwarden", "check").returncode == 0


@pytest.mark.slow
def test_a_purge_keeps_the_ledger_while_an_exclusion_is_in_force_and_shows_it(node: Node) -> None:
    node.dpkg("--install", "/root/this.deb")
    node.wait_until_healthy()
    node.machine.run("systemctl", "enable", "--now", *ANSWERING)
    since = node.fail()
    node.machine.write("/etc/slurm/slurm.conf", "Prolog=/usr/libexec/gpuwarden/gpuwarden-slurm-prolog\n")
    output = node.apt("remove", "gpuwarden-system-python")
    assert "a prolog that is\nmissing drains the node" in output
    assert "removed and lifts nothing" in output
    assert "dstack reaches this host through gpuwarden" in output
    assert "nvhcd: in force since" in output
    assert (node.has("/opt/gpuwarden"), node.has(MARKER), node.has(LEDGER)) == (False, True, True)
    output = node.dpkg("--purge", "gpuwarden-system-python")
    assert "The ledger stays in /var/lib/gpuwarden" in output
    assert "nvhcd: in force since" in output
    assert node.has(LEDGER)
    assert node.machine.output("find", "/etc/systemd/system", "-name", "gpuwarden-*.socket") == "", (
        "nothing that was enabled"
    )
    node.dpkg("--install", "/root/this.deb")
    assert node.since() == since
    # As long as no pass of the new daemon was without it, it counts as still seen.
    node.machine.wait(
        lambda: node.machine.run("gpuwarden", "ack", node.finding, check=False).returncode == 0, "the acknowledgement"
    )
    node.machine.run("gpuwarden", "restore")
    node.machine.wait(lambda: not node.has(MARKER), "the restoration")
    node.machine.wait(lambda: node.machine.run("gpuwarden", "exclusions", check=False).returncode == 0, "the ledger")
    assert "stays" not in node.dpkg("--purge", "gpuwarden-system-python")
    assert [node.has(path) for path in ("/var/lib/gpuwarden", "/run/gpuwarden", "/opt/gpuwarden")] == [False] * 3
    assert node.machine.output("find", "/etc/gpuwarden", "-type", "f") == "/etc/gpuwarden/conf.d/10-site.toml"


@pytest.mark.slow
def test_on_a_ledger_of_another_major_version_nothing_starts_and_only_force_purges_it(node: Node) -> None:
    node.dpkg("--install", "/root/this.deb")
    node.machine.run("systemctl", "enable", "--now", *ANSWERING)
    node.dpkg("--remove", "gpuwarden-system-python")
    assert node.machine.output("systemctl", "is-active", *ANSWERING).split() == ["inactive"] * 2
    node.dpkg("--install", "/root/this.deb")
    assert node.machine.output("systemctl", "is-active", *ANSWERING).split() == ["active"] * 2
    node.wait_until_healthy()
    node.machine.run("systemctl", "stop", "gpuwarden.service", "gpuwarden-job.socket")
    node.ledger("UPDATE meta SET value = '2.0' WHERE key = 'schema'; PRAGMA wal_checkpoint(TRUNCATE)")
    node.machine.run(
        "rm", "/var/lib/gpuwarden/ledger.db-seal"
    )  # gpuwarden's own, which a newer version replaces by its own
    before = node.machine.path(LEDGER).read_bytes()
    assert "gpuwarden does not start" in node.dpkg("--install", "/root/next.deb")
    assert node.machine.show("gpuwarden.service", "ExecMainStatus") == "64"
    assert "has version 2.0, this gpuwarden reads 1.x: install the newer gpuwarden again" in node.machine.journal()
    assert node.machine.path(LEDGER).read_bytes() == before
    node.machine.write("/etc/gpuwarden/purge-anyway", "")
    node.machine.run("sh", "-ec", "mv /etc/gpuwarden /srv; ln -s /srv/gpuwarden /etc/gpuwarden")
    assert "has version 2.0" in node.dpkg("--purge", "gpuwarden-system-python")
    assert not node.has("/var/lib/gpuwarden")
    assert node.has("/srv/gpuwarden/conf.d/10-site.toml"), "the site's folder stays, which a link led to"
