"""The HealthCheckProgram prints how the node is, starts nothing while it is well, and asks the daemon to act where it is not."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.publish.files.healthy_mark import PERIOD
from support.needs import root_rights
from support.slurm_hooks import PATIENCE, SCRIPTS, HookHost, uptime


def printed(host: HookHost, shell: Sequence[str], **more: str) -> str:
    """The one line that it prints; it never fails and never complains."""
    done = host.run("healthcheck", shell, **more)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
    return done.stdout.removesuffix("\n")


def test_a_fresh_verdict_is_repeated_in_one_line(host: HookHost, shell: Sequence[str]) -> None:
    host.verdict()
    assert printed(host, shell) == "gpuwarden: healthy"
    host.verdict(state="warning", reason="row_remap_pending gpu_x=1")
    assert printed(host, shell) == "gpuwarden: warning: row_remap_pending gpu_x=1"
    host.verdict(state="unknown", reason="starting")
    assert printed(host, shell) == "gpuwarden: unknown: starting"
    host.verdict(state="failure", reason="gpu_missing", excluded=1, gpus={0: "healthy", 3: "failure"})
    assert (
        printed(host, shell) == "gpuwarden: failure: gpu_missing; excluded=1 mode=enforce; the daemon is asked to act"
    )


STALE = {
    "older than it may be": ({"age": 1010, "fresh_for": 1000}, "the verdict is 10"),
    "of another boot": ({"boot_id": "0b3c"}, "the verdict is of another boot"),
    "from before the first pass": ({"stamp": 0}, "the daemon has only just started"),
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
    line = printed(host, shell)
    assert line.startswith(f"gpuwarden: {why}")
    assert line.endswith("nothing is known of this node; is gpuwarden running?")


@pytest.mark.parametrize("content", [b"", b"\0\xff\xfe" * 3000, b"state=healthy", b"=\n" * 5000], ids=range(4))
def test_rubbish_in_place_of_a_verdict_is_not_believed(host: HookHost, shell: Sequence[str], content: bytes) -> None:
    (host.run_dir / "verdict").write_bytes(content)
    done = host.run("healthcheck", shell)  # bash warns of zero bytes
    assert done.returncode == 0
    assert done.stdout.startswith("gpuwarden: the verdict cannot be read")


@pytest.mark.parametrize("instead", ["nothing", "folder", "pipe"])
def test_a_verdict_that_is_no_file_is_none(host: HookHost, shell: Sequence[str], instead: str) -> None:
    host.put_in_place_of_the_verdict(instead)
    assert printed(host, shell).startswith("gpuwarden: there is no verdict")


def test_simulated_gpus_give_no_health_of_this_node(host: HookHost, shell: Sequence[str]) -> None:
    host.verdict(simulated=1, state="failure", reason="gpu_missing")
    assert printed(host, shell) == "gpuwarden: the verdict is about simulated GPUs: nothing is known of this node"
    assert not host.called()


CALL = "slurm healthcheck --run-dir {}"


def test_the_daemon_is_asked_to_act_on_a_failure(host: HookHost, shell: Sequence[str]) -> None:
    host.verdict(state="failure", reason="gpu_missing")
    assert printed(host, shell).endswith("the daemon is asked to act")
    assert host.wait_for_call() == [CALL.format(host.run_dir)]


def test_the_daemon_is_asked_where_it_could_write_no_verdict(host: HookHost, shell: Sequence[str]) -> None:
    """The run directory may be full: the daemon knows all the same."""
    host.verdict(age=100)
    assert "nothing is known of this node" in printed(host, shell)
    assert host.wait_for_call() == [CALL.format(host.run_dir)]


def test_without_a_run_directory_nobody_is_asked(host: HookHost, shell: Sequence[str]) -> None:
    host.run_dir.rmdir()
    assert printed(host, shell).startswith("gpuwarden: there is no verdict")
    assert not host.called()


def test_only_one_check_at_a_time_asks(host: HookHost, shell: Sequence[str]) -> None:
    lock = ["flock", f"{host.run_dir}.hook.lock", "sh", "-c", "echo locked; read -r end"]
    with subprocess.Popen(lock, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as earlier:
        assert earlier.stdin is not None
        assert earlier.stdout is not None
        earlier.stdout.readline()
        host.verdict(state="failure", reason="gpu_missing")
        printed(host, shell)
        host.wait_for_sessions()
        earlier.stdin.close()
    assert not host.called()


def test_what_it_starts_is_waited_for_by_nobody_and_outlives_its_group(host: HookHost) -> None:
    """Slurmd waits until nobody has the output open any more, and then ends the process group."""
    host.answer(f"read -r end <{host.folder}/gate; echo ended >>{host.calls}")
    os.mkfifo(host.folder / "gate")
    host.verdict(state="failure", reason="gpu_missing")
    check = subprocess.Popen(
        [shutil.which("dash") or "sh", str(SCRIPTS / "gpuwarden-slurm-healthcheck")], env=host.environment(),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    output, _ = check.communicate(timeout=PATIENCE)
    assert output.count(b"\n") == 1
    with pytest.raises(ProcessLookupError):
        os.killpg(check.pid, 15)
    host.wait_for_call()
    (host.folder / "gate").write_text("go\n")
    end = time.monotonic() + PATIENCE
    while "ended" not in host.called() and time.monotonic() < end:
        time.sleep(0.02)
    assert "ended" in host.called()


def test_a_verdict_of_another_user_is_repeated_too(host: HookHost, shell: Sequence[str]) -> None:
    root_rights()
    host.verdict(gpus=dict.fromkeys(range(16), "healthy"))
    host.give_away()
    assert printed(host, shell) == "gpuwarden: healthy"
    host.verdict(state="failure", reason="gpu_missing")
    assert printed(host, shell).startswith("gpuwarden: failure: gpu_missing;")


@pytest.mark.parametrize("instead", ["nothing", "folder", "pipe", "link to a pipe", "link to nothing", "endless file"])
def test_what_another_user_put_in_its_place_is_neither_followed_nor_waited_for(
    host: HookHost, shell: Sequence[str], instead: str
) -> None:
    root_rights()
    host.put_in_place_of_the_verdict(instead)
    host.give_away()
    assert printed(host, shell).startswith("gpuwarden: there is no verdict")


# --- the mark of a healthy node, where the run directory is another user's


def marked(host: HookHost, shell: Sequence[str], **mark: Any) -> str:
    """Return the output of the hook with this mark beside a verdict that is unknown."""
    root_rights()
    host.verdict(state="unknown", reason="starting")
    host.mark_healthy(**mark)
    host.give_away()
    return printed(host, shell)


@pytest.mark.parametrize("periods", [0, 1])
def test_a_mark_of_the_present_period_or_the_next_means_healthy(
    host: HookHost, shell: Sequence[str], periods: int
) -> None:
    period = -1
    while period != uptime() // PERIOD:  # the script has run within one
        period = uptime() // PERIOD
        said = marked(host, shell, periods=periods)
    assert said == "gpuwarden: healthy"


MARKS: dict[str, dict[str, Any]] = {
    "of an earlier period": {"periods": -1},
    "of a period far ahead": {"periods": 4},
    "of another boot": {"boot_name": "0badb007"},
    "that is a file": {"make": Path.touch},
    "that is a folder": {"make": Path.mkdir},
    "that is a pipe": {"make": os.mkfifo},
}


@pytest.mark.parametrize("mark", MARKS.values(), ids=MARKS)
def test_no_other_mark_counts_and_the_verdict_is_read(
    host: HookHost, shell: Sequence[str], mark: dict[str, Any]
) -> None:
    assert marked(host, shell, **mark) == "gpuwarden: unknown: starting"


def test_a_mark_is_not_followed(host: HookHost, shell: Sequence[str]) -> None:
    """A link may lead anywhere, such as to a file system that hangs: here to itself, where following it never ends."""
    assert marked(host, shell, periods=1, make=lambda path: path.symlink_to(path.name)) == "gpuwarden: healthy"


def test_where_the_run_directory_is_its_own_the_verdict_goes_before_a_mark(
    host: HookHost, shell: Sequence[str]
) -> None:
    host.verdict(state="failure", reason="gpu_missing")
    host.mark_healthy()
    assert printed(host, shell).startswith("gpuwarden: failure: gpu_missing;")


def test_the_reading_of_the_verdict_is_the_same_in_both_scripts() -> None:
    def shared(script: str) -> list[str]:
        text = (SCRIPTS / f"gpuwarden-slurm-{script}").read_text()
        begin, end = text.index("# --- the same in"), text.index("# --- what is")
        return text[begin:end].splitlines()[1:]

    assert shared("healthcheck") == shared("prolog")
    assert len(shared("prolog")) > 50
