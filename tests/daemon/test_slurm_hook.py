"""The HealthCheckProgram says how the node is, starts nothing while it is well, and hands over only what it was told to."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.slurm_hooks import SCRIPTS, SHELLS, HookHost

PATIENCE = 60.0


@pytest.fixture
def host(tmp_path: Path) -> HookHost:
    return HookHost(tmp_path)


@pytest.fixture(params=SHELLS.values(), ids=list(SHELLS))
def shell(request: pytest.FixtureRequest) -> Sequence[str]:
    words: Sequence[str] = request.param
    return words


def said(host: HookHost, shell: Sequence[str], **more: str) -> str:
    """The one line that it prints; it never fails and never complains."""
    done = host.run("healthcheck", shell, **more)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
    return done.stdout.removesuffix("\n")


def test_a_fresh_verdict_is_repeated_in_one_line(host: HookHost, shell: Sequence[str]) -> None:
    host.verdict()
    assert said(host, shell) == "gpuwarden: healthy"
    host.verdict(state="warning", reason="row_remap_pending gpu_x=1")
    assert said(host, shell) == "gpuwarden: warning: row_remap_pending gpu_x=1"
    host.verdict(state="unknown", reason="starting")
    assert said(host, shell) == "gpuwarden: unknown: starting"
    host.verdict(state="failure", reason="gpu_missing", excluded=1, gpus={0: "healthy", 3: "failure"})
    assert said(host, shell) == "gpuwarden: failure: gpu_missing; excluded=1 mode=enforce"
    assert not host.called()


STALE = {
    "older than it may be": ({"age": 17}, "the verdict is 1"),
    "of another boot": ({"boot_id": "0b3c"}, "the verdict is of another boot"),
    "from before the first look": ({"stamp": 0}, "the daemon has only just started"),
    "from the future": ({"age": -3600}, "the verdict is from the future"),
    "of another format": ({"format": 2}, "the verdict cannot be read"),
    "with a stamp that is no number": ({"stamp": "12x"}, "the verdict cannot be read"),
    "with a stamp that a shell takes for octal": ({"stamp": "0189"}, "the verdict cannot be read"),
    "with a stamp beyond every number": ({"stamp": "9" * 30}, "the verdict cannot be read"),
    "with a stamp that would be a command": ({"stamp": "$(touch gone)"}, "the verdict cannot be read"),
    "in a state that there is not": ({"state": "well"}, "the verdict cannot be read"),
}


@pytest.mark.parametrize(("keys", "why"), STALE.values(), ids=STALE)
def test_a_verdict_is_not_believed_if_it_is(
    host: HookHost, shell: Sequence[str], keys: dict[str, object], why: str
) -> None:
    host.verdict(keys)
    line = said(host, shell)
    assert line.startswith(f"gpuwarden: {why}")
    assert line.endswith("nothing is known of this node; is gpuwarden running?")
    assert not host.called()


@pytest.mark.parametrize("content", [b"", b"\0\xff\xfe" * 3000, b"state=healthy", b"=\n" * 5000], ids=range(4))
def test_rubbish_in_place_of_a_verdict_is_not_believed(host: HookHost, shell: Sequence[str], content: bytes) -> None:
    (host.run_dir / "verdict").write_bytes(content)
    done = host.run("healthcheck", shell)  # bash tells of zero bytes
    assert done.returncode == 0
    assert done.stdout.startswith("gpuwarden: the verdict cannot be read")


@pytest.mark.parametrize("instead", ["nothing", "folder", "pipe"])
def test_a_verdict_that_is_no_file_is_none(host: HookHost, shell: Sequence[str], instead: str) -> None:
    path = host.run_dir / "verdict"
    if instead == "folder":
        path.mkdir()
    elif instead == "pipe":
        os.mkfifo(path)
    assert said(host, shell).startswith("gpuwarden: there is no verdict")


def test_simulated_gpus_are_refused_whatever_is_configured(host: HookHost, shell: Sequence[str]) -> None:
    host.verdict(simulated=1, state="failure", reason="gpu_missing")
    host.settings(on_stale="drain", drain_by="hook")
    assert said(host, shell) == "gpuwarden: the verdict is about simulated GPUs: nothing is known of this node"
    assert not host.called()


def test_without_the_name_that_slurmd_gives_it_does_nothing(host: HookHost, shell: Sequence[str]) -> None:
    host.settings(on_stale="drain", drain_by="hook")
    assert "SLURMD_NODENAME is not set" in said(host, shell, SLURMD_NODENAME="")
    assert not host.called()


def test_a_failure_is_handed_over_if_the_hook_is_to_drain(host: HookHost, shell: Sequence[str]) -> None:
    host.settings(drain_by="hook")
    host.verdict(state="failure", reason="gpu_missing")
    assert "handed over" in said(host, shell)
    words = f"slurm healthcheck --node n7 --run-dir {host.run_dir}"
    assert host.called() == [f"SLURM_CONF=/etc/slurm/other.conf {words}"]


def test_a_stale_verdict_is_handed_over_only_on_request(host: HookHost, shell: Sequence[str]) -> None:
    host.verdict(age=100)
    for choice in ("ignore", "refuse"):
        host.settings(on_stale=choice, drain_by="hook")
        assert "nothing is known of this node" in said(host, shell)
    assert not host.called()
    host.settings(on_stale="drain")
    assert said(host, shell).startswith("gpuwarden: the verdict is 10")
    assert len(host.called()) == 1


def test_only_one_check_at_a_time_hands_over(host: HookHost, shell: Sequence[str]) -> None:
    host.settings(on_stale="drain")
    lock = f"{host.run_dir}.hook.lock"
    with subprocess.Popen(
        ["flock", lock, "sh", "-c", "echo locked; read -r end"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdout.readline()
        assert said(host, shell).endswith("an earlier check is still at it")
        holder.stdin.close()
    assert not host.called()


def test_a_command_that_fails_is_told_of(host: HookHost, shell: Sequence[str]) -> None:
    host.settings(on_stale="drain")
    host.answer("echo this goes nowhere; echo this neither >&2; exit 69")
    assert "could not be handed over" in said(host, shell)


def test_settings_of_another_user_are_not_obeyed(host: HookHost, shell: Sequence[str]) -> None:
    if os.geteuid():
        pytest.skip("only root can give a file away")
    host.settings(on_stale="drain")
    os.chown(host.state_dir / "slurm-hooks", 65534, -1)
    assert "nothing is known of this node" in said(host, shell)
    assert not host.called()


def test_what_hangs_is_ended_with_all_its_children_within_the_deadline(host: HookHost, tmp_path: Path) -> None:
    """With a shorter deadline; slurmd would end it after 60 s."""
    quick = tmp_path / "quick"
    quick.write_text((SCRIPTS / "gpuwarden-slurm-healthcheck").read_text().replace("deadline=25", "deadline=1"))
    host.settings(on_stale="drain")
    host.answer(f"sleep 1000 & echo $! >{tmp_path}/child; wait")
    done = subprocess.run(
        [shutil.which("dash") or "sh", str(quick)], env=host.environment(), capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip
    assert "nothing done within 1 s" in done.stdout
    child, end = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/status"), time.monotonic() + PATIENCE
    while runs(child) and time.monotonic() < end:
        time.sleep(0.02)
    assert not runs(child)


def runs(status: Path) -> bool:
    """Nobody may have waited for one that has ended."""
    try:
        return "Z (zombie)" not in status.read_text()
    except OSError:
        return False


def test_the_reading_of_the_verdict_is_the_same_in_both_scripts() -> None:
    def shared(script: str) -> list[str]:
        text = (SCRIPTS / f"gpuwarden-slurm-{script}").read_text()
        begin, end = text.index("# --- the same in"), text.index("# --- what is said and done")
        return text[begin:end].splitlines()[1:]

    assert shared("healthcheck") == shared("prolog")
    assert len(shared("prolog")) > 50
