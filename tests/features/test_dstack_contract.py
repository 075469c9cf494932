"""The code of dstack's server itself asks through the interposer, and takes from the answers what we meant."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.foreign import foreign, python_of
from support.responders import activated, marker, tcp, verdict
from support.shims import Shim, shim

Json = dict[str, Any]

PACKAGES = (
    "dstack==0.22.5", "gpuhunt==0.1.34", "pydantic==2.14.3", "pydantic-core==2.50.4", "annotated-types==0.8.0",
    "typing-extensions==4.16.0", "typing-inspection==0.4.5", "requests==2.34.2", "requests-unixsocket==0.4.1", "urllib3==2.8.0",
    "idna==3.20", "certifi==2026.10.18", "charset-normalizer==3.5.2", "packaging==26.3", "ignore-python==0.4.2",
    "gitpython==3.2.1", "gitdb==4.0.12", "smmap==5.0.3", "paramiko==5.1.0", "cryptography==50.0.2", "cffi==2.1.1",
    "bcrypt==5.0.0", "pynacl==1.6.2", "filelock==4.2.11", "apscheduler==3.11.3", "tzlocal==5.4.5",
)  # fmt: skip
SCRIPT = """
import json, sys
from dstack._internal.server.services.runner.client import ShimClient, healthcheck_response_to_instance_check

def asked(port):
    client = ShimClient(port=port, hostname="127.0.0.1")
    healthcheck = client.healthcheck(unmask_exceptions=True)
    health = client.get_instance_health()
    check = healthcheck_response_to_instance_check(healthcheck, health)
    return {"reachable": check.reachable, "health": check.get_health_status().value, "message": check.message,
            "recorded": check.has_health_checks()}

for line in sys.stdin:
    try:
        print(json.dumps(asked(int(line))), flush=True)
    except Exception as error:
        print(json.dumps({"error": type(error).__name__}), flush=True)
"""
THEIRS = {
    "system": 4, "health": 20, "error_message": "row remap failed", "error_code": 76, "entity_group_id": 1, "entity_id": 3,
}  # fmt: skip


class Server:
    """A client of dstack's in a process of its own, which queries the port that it is given."""

    def __init__(self, folder: Path) -> None:
        self._process = python_of(folder, SCRIPT)

    async def asks(self, port: int) -> Json:
        found: Json = json.loads(await asyncio.to_thread(self._answer, port))
        return found

    def _answer(self, port: int) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{port}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    found = Server(foreign("dstack", PACKAGES))
    yield found
    found.end()


def dcgm(level: object, *incidents: object) -> bytes:
    return json.dumps({"dcgm": {"overall_health": level, "incidents": list(incidents)}}).encode()


@pytest.mark.slow
async def test_dstack_gets_the_daemons_verdict_from_the_interposer(server: Server, tmp_path: Path) -> None:
    verdict(tmp_path)
    listener, agent = tcp(), Shim()
    port = listener.getsockname()[1]
    words = ("dstack-interposer", "--run-dir", tmp_path)
    async with shim(agent):
        more = {"GPUWARDEN_DSTACK__ENABLED": "true", "GPUWARDEN_DSTACK__SHIM": f"127.0.0.1:{agent.port}"}
        with activated(listener, *words, folder=tmp_path, **more):
            well = {"reachable": True, "health": "healthy", "message": None, "recorded": False}
            assert await server.asks(port) == await server.asks(agent.port) == well

            path = marker(tmp_path, "dstack")
            failed = {
                "reachable": True,
                "health": "failure",
                "message": "gpuwarden: failure gpu=3 xid=79",
                "recorded": True,
            }
            assert await server.asks(port) == failed
            agent.health = dcgm(10, {**THEIRS, "health": 10})
            assert await server.asks(port) == failed
            agent.silent = True
            assert await server.asks(port) == failed
            agent.silent = False
            path.unlink()

            verdict(tmp_path, "warning", reason="thermal_slowdown")
            warned = {
                "reachable": True,
                "health": "warning",
                "message": "gpuwarden: warning thermal_slowdown",
                "recorded": True,
            }
            agent.health = b'{"dcgm":null}'
            assert await server.asks(port) == warned
            agent.health = dcgm(20, THEIRS)
            assert await server.asks(port) == {**failed, "message": "row remap failed"}

            verdict(tmp_path)
            for odd in (dcgm(15), dcgm(20, {"health": 20}), b'{"dcgm":{"overall_health":0,"incidents":null}}', b"[1]"):
                agent.health = odd
                assert "error" in await server.asks(agent.port)
                assert (await server.asks(port))["reachable"]

            verdict(tmp_path, mode="observe")
            agent.health = dcgm(20, THEIRS)
            assert await server.asks(port) == await server.asks(agent.port)
