"""While the node is well the scripts start no process: counted by the kernel, through strace."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.needs import needed, root_rights, unmet
from support.slurm_hooks import SCRIPTS, SHELLS, HookHost


@pytest.fixture
def host(tmp_path: Path) -> HookHost:
    return HookHost(tmp_path)


def births(host: HookHost, script: str, shell: Sequence[str], **more: str) -> int:
    """Return how many processes the script starts."""
    strace = needed("strace")
    if subprocess.run([strace, "-qq", "-o", "/dev/null", "true"], capture_output=True, check=False).returncode:
        unmet("this test counts system calls, and no process may be traced here")
    calls = host.folder / "strace"
    words = [shutil.which(shell[0]) or shell[0], *shell[1:], str(SCRIPTS / f"gpuwarden-slurm-{script}")]
    traced = [strace, "-f", "-qq", "-o", str(calls), "-e", "trace=fork,vfork,clone,clone3,execve", *words]
    subprocess.run(traced, env=host.environment(**more), capture_output=True, timeout=60, check=True)
    lines = calls.read_text().splitlines()
    assert any("execve(" in line for line in lines), "strace saw nothing at all"
    return sum("execve(" not in line and "(" in line for line in lines)


JOB = {"SLURM_JOB_ID": "4711", "SLURM_JOB_UID": "1001", "SLURM_JOB_GPUS": "0,3", "SLURM_JOB_USER": "somebody"}


@pytest.mark.parametrize("shell", SHELLS.values(), ids=SHELLS)
@pytest.mark.parametrize("state", ["healthy", "warning", "unknown"])
def test_no_process_is_started_while_the_node_has_not_failed(host: HookHost, shell: Sequence[str], state: str) -> None:
    host.verdict(state=state, gpus=dict.fromkeys(range(8), "healthy"))
    assert births(host, "healthcheck", shell) == 0
    assert births(host, "prolog", shell, **JOB) == 0
    assert (host.notes / "4711").exists()


@pytest.mark.parametrize("shell", SHELLS.values(), ids=SHELLS)
def test_the_epilog_starts_nothing_where_no_daemon_listens(host: HookHost, shell: Sequence[str]) -> None:
    assert births(host, "epilog", shell, **JOB) == 0


@pytest.mark.parametrize("shell", SHELLS.values(), ids=SHELLS)
def test_in_a_run_directory_of_another_user_the_prolog_starts_nothing_either(
    host: HookHost, shell: Sequence[str]
) -> None:
    root_rights()
    host.verdict(state="failure")
    host.give_away()
    assert births(host, "prolog", shell, **JOB) == 0
    assert births(host, "healthcheck", shell) >= 1, "a bounded read is a process"


@pytest.mark.parametrize("shell", SHELLS.values(), ids=SHELLS)
def test_a_healthy_node_is_known_in_a_run_directory_of_another_user_without_a_process(
    host: HookHost, shell: Sequence[str]
) -> None:
    root_rights()
    host.verdict()
    host.mark_healthy(periods=1)
    host.give_away()
    assert births(host, "healthcheck", shell) == 0


def test_the_count_would_show_a_process(host: HookHost) -> None:
    host.verdict(age=100)
    assert births(host, "prolog", SHELLS["dash"], **JOB) > 0  # it logs
