"""The whole daemon with a web-config file: served over TLS, reported as a finding when it turns bad, checked by the doctor."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from support.commands import COMMAND, environment, gpuwarden
from support.daemons import FakeHost, RunningDaemon, listening_port
from support.disposable import require_disposable_host
from support.web_certificates import Site, trusting, users

LOGIN = {"Authorization": f"Basic {base64.b64encode(b'alice:hunter2').decode()}"}


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path, 1)


@pytest.fixture
def site(host: FakeHost, tmp_path: Path) -> Site:
    (tmp_path / "tls").mkdir()
    site = Site(tmp_path / "tls")
    text = host.config.read_text()
    host.config.write_text(text.replace("[publish]\n", f'[publish]\nweb_config = "{site.path}"\n'))
    return site


def heartbeat(daemon: RunningDaemon) -> dict[str, Any]:
    connection = http.client.HTTPSConnection("localhost", daemon.port, timeout=60, context=trusting())
    try:
        connection.request("GET", "/heartbeat", headers=LOGIN)
        document: dict[str, Any] = json.loads(connection.getresponse().read())
        return document
    finally:
        connection.close()


@pytest.mark.slow
def test_a_fault_in_the_file_is_a_finding_while_scrapes_go_on(host: FakeHost, site: Site) -> None:
    site.write(site.serve(), users(alice="hunter2"))
    with host.daemon() as running:
        running.wait(lambda: heartbeat(running)["status"] == "healthy", "healthy, over TLS")
        assert running.get("/heartbeat")[0] == 400
        site.write("basic_auth_users: {alice: hunter2}")
        running.wait(lambda: heartbeat(running)["reasons"] == ["web_config_faulty"], "the fault")
        output = host.order("status").stdout
        assert "basic_auth_users.alice: expected a bcrypt hash" in output
        site.write(site.serve(), users(alice="hunter2"))
        running.wait(lambda: heartbeat(running)["status"] == "healthy", "the end of the fault")
        assert running.stop() == 0
        assert "hunter2" not in output + running.lines()


@pytest.mark.slow
def test_a_fault_in_the_file_at_a_start_closes_the_port_until_it_is_mended(
    host: FakeHost, site: Site, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        service = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "GPUWARDEN_STATE__DIR": str(host.state_dir)}

        def daemon() -> RunningDaemon:
            return RunningDaemon(host, more=service)

        def status() -> str:
            return host.order("status").stdout

        site.write("basic_auth_users: {alice: hunter2}")
        assert daemon().process.wait(60) == 64, "the first start ever"
        site.write(site.serve(), users(alice="hunter2"))
        running = daemon()
        running.find_port()
        assert running.stop() == 0
        site.write("basic_auth_users: {alice: hunter2}")
        running = daemon()
        try:
            running.wait(lambda: "nothing is served until it is corrected" in status(), "the finding")
            assert "web_config_faulty" in status()
            assert listening_port(running.process.pid) == 0
            site.write(site.serve(), users(alice="hunter2"))
            running.find_port()
            running.wait(lambda: heartbeat(running)["status"] == "healthy", "healthy, over TLS")
            assert "hunter2" not in running.lines()
        finally:
            running.kill()


@pytest.mark.slow
@pytest.mark.parametrize("started_by", ["systemd", "kubelet"])
def test_a_service_whose_port_another_process_has_judges_and_serves_once_it_is_free(
    host: FakeHost, tmp_path: Path, started_by: str
) -> None:
    """A job shares the network of its host, and a pod may, too: with the port it must not take the node out of sight."""
    service = {
        "systemd": {"NOTIFY_SOCKET": str(tmp_path / "notify")},
        "kubelet": {"KUBERNETES_SERVICE_HOST": "192.0.2.1"},
    }[started_by]

    def status() -> str:
        return host.order("status").stdout

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, socket.create_server(("127.0.0.1", 0)) as job:
        manager.bind(str(tmp_path / "notify"))
        address = f"127.0.0.1:{job.getsockname()[1]}"
        host.config.write_text(host.config.read_text().replace("127.0.0.1:0", address))
        running = RunningDaemon(host, more=service)
        try:
            running.wait(lambda: "output_failed.port@node" in status(), "the finding")
            host.plug(1, missing=frozenset({0}))
            host.xid(0, 95)
            running.wait(lambda: "is FAILURE: xid 95" in status(), "the dead GPU to be found all the same")
            assert f"cannot listen on {address}: another process has this port" in status()
            job.close()
            running.find_port()
            running.wait(lambda: running.heartbeat()["status"] == "failure", "the heartbeat")
        finally:
            running.kill()


@pytest.mark.slow
def test_the_doctor_shows_what_is_served_and_until_when(host: FakeHost, site: Site) -> None:
    def rows() -> list[tuple[str, str, str]]:
        shown = json.loads(host.command("doctor", "--json", "--config", host.config).stdout)["rows"]
        about = ("web", "certificate")
        return [(row["check"], row["grade"], row["found"]) for row in shown if row["check"] in about]

    site.write(site.serve(), site.demand(), users(alice="hunter2"))
    (_, listens, state), (_, certificate, until) = rows()
    assert (listens, certificate) == ("ok", "ok")
    assert state.endswith("web.yml: TLS, client certificates required, 1 with a password")
    assert until.startswith("valid until 20")
    site.write(site.serve(life=timedelta(days=2), old=True), "http_server_config: {http2: true}")
    assert [(check, grade) for check, grade, _ in rows()] == [("web", "ok"), ("certificate", "warn"), ("web", "warn")]
    site.write("tls_server_config: {cert_file: a, key_file: b}")
    assert [(check, grade) for check, grade, _ in rows()] == [("web", "fail"), ("web", "fail")]


WITHOUT_IPV6 = """
ip link set lo up
sysctl -qw net.ipv6.conf.all.disable_ipv6=1
printf '127.0.0.1 localhost\\n::1 localhost\\n' >"$1"
mount --bind "$1" /etc/hosts
shift
exec "$@"
"""
"""A host with the /etc/hosts of Debian and RHEL."""


def inside(tmp_path: Path) -> tuple[str, ...]:
    """Return what begins a command on such a host."""
    require_disposable_host()
    return ("unshare", "--net", "--mount", "sh", "-ec", WITHOUT_IPV6, "sh", str(tmp_path / "hosts"))


@pytest.mark.disposable
@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_a_name_is_listened_on_at_the_addresses_that_this_host_has(name: str, tmp_path: Path) -> None:
    folders = ("--run-dir", str(tmp_path / "run"), "--state-dir", str(tmp_path / "state"))
    command = (*inside(tmp_path), *COMMAND, "run", "--simulate", "1", "--listen", f"{name}:9840", *folders)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(tmp_path)
    ) as daemon:
        assert daemon.stdout is not None
        events = (json.loads(line) for line in daemon.stdout if line.startswith("{"))
        first = next(event for event in events if event["event"] in ("serving", "cannot start"))
        daemon.terminate()
    assert first.get("listen") == [["127.0.0.1", 9840]], first


@pytest.mark.disposable
def test_the_doctor_asks_for_the_addresses_that_this_host_has(tmp_path: Path) -> None:
    words = ("doctor", "--json", "--run-dir", tmp_path / "run")
    more = {"GPUWARDEN_PUBLISH__LISTEN": "localhost:9840"}
    done = gpuwarden(*words, temporary=tmp_path, more=more, command=(*inside(tmp_path), *COMMAND))
    (row,) = (row for row in json.loads(done.stdout)["rows"] if row["check"] == "port")
    assert (row["grade"], row["found"]) == ("ok", "localhost:9840 is free")
