"""The way to the API server: files, programs and tokens that are wrong or hang cost neither the daemon nor a secret."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gpuwarden.actuators.base import ActuatorError, ActuatorRefused, ActuatorUnavailable
from gpuwarden.features.kubernetes import connection as module
from gpuwarden.features.kubernetes.node_actuator import KubernetesActuator
from gpuwarden.features.kubernetes.options import KubernetesOptions
from gpuwarden.policy.model import Owner
from gpuwarden_collectors.base import host_clock
from support.kubernetes_api import TOKEN, ApiServer, Fault, garbage, half_closed, node, refusing, silent
from support.whole_lines import whole_lines

SECRET = "eyJhbGciOi-secret"


def actuator(kubeconfig: Path, timeout: float = 30.0) -> KubernetesActuator:
    options = KubernetesOptions(kubeconfig=kubeconfig, node="n1", timeout=timeout)
    return KubernetesActuator(options, clock=host_clock, hostname="n1", inherited={})


def with_plugin(server: ApiServer, folder: Path, script: str) -> Path:
    """A kubeconfig with a credential plugin beside it, named as kubeconfigs name one."""
    path = server.kubeconfig(folder)
    program = folder / "plugin"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    content = yaml.safe_load(path.read_text())
    content["users"][0]["user"] = {
        "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin", "args": ["a b"],
                 "env": [{"name": "TOKEN", "value": TOKEN}]},
    }  # fmt: skip
    path.write_text(yaml.safe_dump(content))
    return path


async def test_a_plugin_of_the_kubeconfig_gives_the_token_and_is_asked_again_when_that_is_not_accepted(
    tmp_path: Path,
) -> None:
    script = f"""echo "$1" >> {tmp_path}/runs
    printf '{{"status":{{"token":"%s"}}}}' "$(cat {tmp_path}/new 2>/dev/null || echo "$TOKEN")" """
    async with ApiServer(node("n1")) as server:
        acts = actuator(with_plugin(server, tmp_path, script))
        for _ in range(3):
            assert (await acts.read()).owner is Owner.NONE
        server.tokens = {"another"}
        (tmp_path / "new").write_text("another")
        assert (await acts.read()).owner is Owner.NONE
        assert (tmp_path / "runs").read_text() == "a b\n" * 2
        await acts.close()


@pytest.mark.slow
async def test_a_plugin_that_hangs_is_ended_with_its_children_and_one_that_fails_does_not_show_what_it_printed(
    tmp_path: Path,
) -> None:
    async with ApiServer(node("n1")) as server:
        path = with_plugin(server, tmp_path, f"echo $$ > {tmp_path}/pid; sleep 1000 & echo $! >> {tmp_path}/pid; wait")
        acts = actuator(path, timeout=5.0)
        async with asyncio.timeout(120):
            while len(pids := whole_lines(tmp_path / "pid").split()) < 2:  # a busy host may not start it in its time
                with pytest.raises(ActuatorUnavailable):
                    await acts.read()
            while any(Path("/proc", pid).exists() for pid in pids):
                await asyncio.sleep(0.01)
        for script in (f"echo {SECRET}; echo no way >&2; exit 3", f"echo {SECRET}"):
            acts = actuator(with_plugin(server, tmp_path, script))
            with pytest.raises(ActuatorUnavailable, match=r"plugin (exits with 3: no way|gives no token)") as caught:
                await acts.read()
            assert SECRET not in str(caught.value)
        await acts.close()


async def test_no_message_has_a_secret_of_a_file_that_is_wrong(tmp_path: Path) -> None:
    async with ApiServer(node("n1")) as server:
        split = server.kubeconfig(tmp_path, token=f"{SECRET}\nof two lines")
        with pytest.raises(ActuatorError, match="no header may have") as caught:
            await actuator(split).read()
        assert SECRET not in str(caught.value)
    broken = tmp_path / "broken"
    broken.write_text(f"users:\n- name: u\n  user:\n    token: {SECRET}\n   odd: [\n")
    with pytest.raises(ActuatorRefused, match="invalid YAML in line 5") as refused:
        await actuator(broken).read()
    assert SECRET not in str(refused.value)


@pytest.mark.slow
async def test_a_kubeconfig_that_hangs_costs_one_thread_and_is_taken_when_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening a pipe that nobody writes takes until somebody does, like a file system that does not answer."""
    made: list[object] = []
    new = module.new_client

    def waits(options: KubernetesOptions) -> module.Client:
        made.append(options)
        (tmp_path / "hangs").read_bytes()
        return new(options)

    monkeypatch.setattr(module, "new_client", waits)
    os.mkfifo(tmp_path / "hangs")
    async with ApiServer(node("n1")) as server:
        acts = actuator(server.kubeconfig(tmp_path), timeout=1.0)
        for _ in range(2):
            with pytest.raises(ActuatorUnavailable, match="no response within 1 s"):
                await acts.read()
        assert len(made) == 1
        (tmp_path / "hangs").write_bytes(b"")
        async with asyncio.timeout(60):
            while True:
                try:
                    assert (await acts.read()).owner is Owner.NONE
                except ActuatorUnavailable:
                    continue
                break
        assert len(made) == 1
        await acts.close()


def _open() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.slow
async def test_three_hundred_calls_that_fail_leave_nothing_open(tmp_path: Path) -> None:
    """A call under way is not cut off by the failure of another one."""
    faults: tuple[Fault, ...] = (garbage, half_closed, refusing(500), refusing(403), refusing(429))
    async with ApiServer(node("n1")) as server:
        acts = actuator(server.kubeconfig(tmp_path))
        await acts.read()
        await acts.close()
        before = _open()
        for number in range(300):
            server.always = faults[number % len(faults)]
            with pytest.raises(ActuatorError):
                await acts.read()
        server.always = None
        await acts.read()
        server.faults += [silent]
        hangs = asyncio.create_task(acts.read())
        async with asyncio.timeout(60):
            while server.faults:
                await asyncio.sleep(0.01)
        server.faults += [refusing(403), None]
        with pytest.raises(ActuatorRefused):
            await acts.read()
        assert not hangs.done()
        hangs.cancel()
        await asyncio.gather(hangs, return_exceptions=True)
        await acts.close()
        async with asyncio.timeout(60):
            while _open() > before + 2:
                await asyncio.sleep(0.01)


def test_without_the_package_the_configuration_error_names_what_to_install(tmp_path: Path) -> None:
    config = tmp_path / "gpuwarden.toml"
    config.write_text("[kubernetes]\nenabled = true\n")
    program = (
        "import sys; sys.modules['lightkube'] = None; from gpuwarden.cli.main import main; "
        f"sys.exit(main(['config', 'check', '--config', '{config}']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "kubernetes.enabled" in done.stderr + done.stdout
    assert "pip install 'gpuwarden[kubernetes]'" in done.stderr + done.stdout
