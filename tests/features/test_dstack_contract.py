"""The code of dstack's server itself asks through the interposer, and takes from the answers what we meant."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

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
PARSER = """
import json, sys
from dstack._internal.core.models.configurations import parse_apply_configuration

parsed = parse_apply_configuration(json.load(sys.stdin))
print(json.dumps({"kind": type(parsed).__name__, "parsed": json.loads(parsed.json())}))
"""
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "job/examples/dstack/train.dstack.yml"
FLEET = ROOT / "docs/use/dstack.md"
THEIRS = {
    "system": 4, "health": 20, "error_message": "row remap failed", "error_code": 76, "entity_group_id": 1, "entity_id": 3,
}  # fmt: skip


class Server:
    """A client of dstack's in a process of its own, which queries the port that it is given."""

    def __init__(self, folder: Path) -> None:
        self._process = python_of(folder, SCRIPT)

    async def asks(self, port: int) -> Json:
        answer: Json = json.loads(await asyncio.to_thread(self._answer, port))
        return answer

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
    dstack_server = Server(foreign("dstack", PACKAGES))
    yield dstack_server
    dstack_server.end()


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


def parsed(text: str) -> Json:
    """Return a configuration as dstack's own parser has it. Raises AssertionError where that refuses it."""
    process = python_of(foreign("dstack", PACKAGES), PARSER)
    out, _ = process.communicate(json.dumps(yaml.safe_load(text)))
    assert process.returncode == 0
    configuration: Json = json.loads(out)
    return configuration


@pytest.mark.slow
def test_dstack_parses_the_training_of_the_examples_and_mounts_its_sources() -> None:
    configuration = parsed(EXAMPLE.read_text())
    task = configuration["parsed"]
    assert (configuration["kind"], task["nodes"], task["resources"]["gpu"]["count"]["min"]) == (
        "TaskConfiguration",
        2,
        8,
    )
    assert task["retry"] == {"on_events": ["no-capacity", "error", "interruption"], "duration": 4 * 3600}
    assert {"instance_path": "/run/gpuwarden", "path": "/run/gpuwarden", "optional": False} in task["volumes"]
    (repo,) = task["repos"]
    for source in ("job/examples/train_torch.py", "job/pyproject.toml"):
        assert (EXAMPLE.parent / repo["local_path"] / source).is_file()


def test_dstack_parses_the_fleet_of_the_page_with_the_shim_s_new_port() -> None:
    (text,) = [block for block in FLEET.read_text().split("```")[1::2] if block.startswith("yaml\ntype: fleet")]
    configuration = parsed(text.removeprefix("yaml\n"))
    assert configuration["kind"] == "FleetConfiguration"
    assert configuration["parsed"]["env"] == {"DSTACK_SHIM_HTTP_PORT": "10996"}


def test_dstack_refuses_a_key_that_it_does_not_know() -> None:
    """The parser knows each key of what the tests above parse, since it refuses unknown ones."""
    with pytest.raises(AssertionError):
        parsed(EXAMPLE.read_text() + "\nshim_port: 10996\n")
