"""The small processes that answer others with what the daemon published: started by systemd's protocol, stopped, killed."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from support.commands import COMMAND, environment, gpuwarden
from support.needs import systemd_analyze
from support.responders import Activated, activated, marker, memory, tcp, unix, verdict, waited
from support.shims import HEALTH, shim

ROOT = Path(__file__).parents[2]
HEAVY = (
    "gpuwarden.health", "gpuwarden.policy", "gpuwarden.ledger", "gpuwarden.actuators", "gpuwarden.runtime.app", "gpuwarden.config.model.",
    "gpuwarden_collectors", "pynvml", "sqlite3", "aiohttp", "cattrs", "google.protobuf", "grpc.", "grpclib", "yaml", "bcrypt",
)  # fmt: skip
MEMORY_MOST = 30 << 10
"""KiB; half of what the daemon may have. Measured: 16 to 20 MiB."""
SERVES = {"dstack-interposer": "dstack interposer listening", "nvhcd": "node health check listening"}


@pytest.mark.parametrize("verb", SERVES)
def test_it_loads_nothing_of_the_daemon_and_stays_small(
    tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    listener = tcp() if verb == "dstack-interposer" else unix(tmp_path / "nvhcd.sock")
    with activated(listener, verb, "--run-dir", tmp_path, folder=tmp_path, PYTHONVERBOSE="1") as service:
        waited(lambda: SERVES[verb] in service.log(), verb)
        assert service.process is not None
        footprint = memory(service.process.pid)
        assert service.end() == 0
        imported = {line.split()[1].strip("'") for line in service.log().splitlines() if line.startswith("import ")}
    assert "gpuwarden.integrations.published" in imported
    assert not [name for name in imported if f"{name}.".startswith(HEAVY)]
    with capsys.disabled():
        sys.stdout.write(f"\n{verb}: PSS {footprint['Pss'] / 1024:.1f} MiB, {len(imported)} modules\n")
    assert footprint["Pss"] < MEMORY_MOST


def test_nvhcd_names_what_to_install_where_h2_is_missing(tmp_path: Path) -> None:
    (tmp_path / "h2.py").write_text("raise ModuleNotFoundError('no h2')")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [*COMMAND, "nvhcd", "--run-dir", str(tmp_path)], env={**environment(tmp_path), "PYTHONPATH": path},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, "gpuwarden[nvhcd]" in done.stderr) == (69, True)


def test_an_address_in_use_is_reported_with_a_remedy(tmp_path: Path) -> None:
    with tcp() as listener:
        where = f"127.0.0.1:{listener.getsockname()[1]}"
        done = gpuwarden("dstack-interposer", "--listen", where, "--run-dir", tmp_path, temporary=tmp_path)
    assert done.returncode == 69
    assert f"cannot listen on {where}" in done.stderr


async def test_a_faulty_configuration_silences_no_verdict_in_force(tmp_path: Path) -> None:
    """A host that does not respond is unreachable to dstack: what cannot be read keeps its default, and is logged."""
    file = tmp_path / "gpuwarden.toml"
    file.write_text("[dstack\nenabled = true")
    verdict(tmp_path)
    marker(tmp_path, "dstack")
    listener = tcp()
    port = listener.getsockname()[1]
    async with shim() as agent:
        words = ("dstack-interposer", "--config", file, "--run-dir", tmp_path, "--shim", f"127.0.0.1:{agent.port}")
        with activated(listener, *words, folder=tmp_path) as service:
            status, body = await asyncio.to_thread(get, port)
            assert (status, json.loads(body)["dcgm"]["overall_health"]) == (200, 20)
            waited(lambda: "is not valid TOML" in service.log(), "the fault in the log")


def get(port: int, path: str = HEALTH) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


class Load:
    """Clients that ask without pause, each time on a new connection. `outcomes`: how often each kind of end was met."""

    def __init__(self, port: int, clients: int = 4) -> None:
        self.outcomes: Counter[str] = Counter()
        self._port = port
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def wait_for_more(self) -> None:
        seen = self.outcomes["answered"]
        waited(lambda: self.outcomes["answered"] > seen + 20, f"answers; so far: {self.outcomes}")

    def end(self) -> Counter[str]:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        return self.outcomes

    def _ask(self) -> None:
        while not self._stop.is_set():
            try:
                status, body = get(self._port)
                dcgm = json.loads(body)["dcgm"]
                kind = "answered" if (status, dcgm["overall_health"]) == (200, 20) else f"odd: {status} {body[:80]!r}"
            except ConnectionRefusedError:
                kind = "refused"
            except (OSError, http.client.HTTPException):
                kind = "cut off"
            self.outcomes[kind] += 1
            time.sleep(0.005)


@pytest.mark.slow
async def test_while_it_is_restarted_clients_wait_and_none_is_refused_or_cut_off(tmp_path: Path) -> None:
    verdict(tmp_path, "failure")
    marker(tmp_path, "dstack")
    async with shim() as agent:
        listener = tcp()
        words = ("dstack-interposer", "--run-dir", tmp_path, "--shim", f"127.0.0.1:{agent.port}")
        with activated(listener, *words, folder=tmp_path, GPUWARDEN_DSTACK__ENABLED="true") as service:
            stopped = await asyncio.to_thread(under_load, service, listener.getsockname()[1], signal.SIGTERM)
            killed = await asyncio.to_thread(under_load, service, listener.getsockname()[1], signal.SIGKILL)
    assert set(stopped) == {"answered"}
    assert set(killed) <= {"answered", "cut off"}
    assert killed["cut off"] <= 16, "only those whose question was being answered"


def under_load(service: Activated, port: int, number: signal.Signals) -> Counter[str]:
    """Return the outcomes that clients saw while the service was ended twice, and started again."""
    load = Load(port)
    for end in (True, True, False):
        load.wait_for_more()
        if end:
            assert service.end(number) == (0 if number is signal.SIGTERM else -number)
            service.start()
    return load.end()


def test_nvhcd_keeps_its_socket_over_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "nvhcd.sock"
    with activated(unix(path), "nvhcd", "--run-dir", tmp_path, folder=tmp_path) as service:
        waited(lambda: SERVES["nvhcd"] in service.log(), "nvhcd")
        service.end(signal.SIGKILL)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
            service.start()
            client.settimeout(60)
            assert client.recv(100)


UNITS = sorted((ROOT / "systemd").glob("gpuwarden-*.s*"))


def test_the_units_are_sound(tmp_path: Path) -> None:
    """The units are read by systemd; the command that they start is checked where there is one."""
    systemd_analyze()
    own = [unit for unit in UNITS if unit.name.startswith(("gpuwarden-dstack.", "gpuwarden-nvhcd."))]
    assert len(own) == 4
    for unit in own:
        text = unit.read_text().replace("ExecStart=/opt/gpuwarden/bin/gpuwarden ", "ExecStart=/bin/echo ")
        (tmp_path / unit.name).write_text(text)
    names = [str(tmp_path / unit.name) for unit in own]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *names], env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, [line for line in done.stderr.splitlines() if str(tmp_path) in line]) == (0, [])
