"""The real daemon and root's real helper: from a failure through the drain and the reset to the verdict after it."""

from __future__ import annotations

import copy
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from support.daemons import FakeHost, RunningDaemon
from support.needs import host_pid_namespace
from support.repair_helper import BEFORE, Helpers, RepairHost

BAD = 1
RESET = "reset 00000000:28:00.0"
DONE = "done", "the GPU at 0000:28:00.0 was reset, and NVML lists 2 GPUs with their UUIDs"

pytestmark = pytest.mark.slow


class LiveHost(FakeHost):
    """A daemon and a helper that see the same two GPUs; a file is the actuator. `root`: what the helper sees of the host."""

    def __init__(self, folder: Path, made: Helpers, step: str = "reset_gpu") -> None:
        host_pid_namespace()
        for name in ("daemon", "root"):
            (folder / name).mkdir()
        super().__init__(folder / "daemon", gpus=2)
        self.root = RepairHost(folder / "root", made)
        self.fake = self.root.fake
        self.seclude()
        rebooter = str(self.root.folder / "bin/rebooter")
        self.root.settings |= {"reboot_command": (rebooter,), "slurm": False}
        self.marker = folder / "out"
        self._repairs = (
            f'[test]\ngate_socket = "{folder}/nobody.sock"\n'
            f'[repair]\nsteps = ["{step}"]\nreboot_command = ["{rebooter}"]\nsocket = "{self.root.tell()}"\n'
        )
        self._repairing()

    def _repairing(self) -> None:
        self.configure(
            f'[policy]\nrestore_passes = 2\nrestore_after = "0s"\nlook_often = "5s"\n'
            f'[breaker]\nuncounted = "allow"\n[file]\npath = "{self.marker}"\n{self._repairs}'
        )

    def another(self) -> LiveHost:
        """Return the same host as a second daemon has it, which somebody installed beside the first."""
        other = copy.copy(self)
        other.run_dir, other.state_dir = self.folder / "run-2", self.folder / "state-2"
        other.config, other.marker = self.folder / "other.toml", self.folder / "out-2"
        other._repairing()
        return other

    def acting(self) -> Any:
        return self.daemon(more={"GPUWARDEN_MODE": "enforce"})

    def waits_in_reset(self, daemon: RunningDaemon) -> int:
        """Return the helper, once the GPU has failed and its reset runs, which does not end before `resets`."""
        self.root.reset_mode("waits")
        self.xid(BAD, 95)
        waiting = self.root.folder / "waiting"
        daemon.wait(waiting.exists, "the reset")
        assert self.marker.exists()
        return int(waiting.read_text())

    def resets(self) -> None:
        self.kernel_line("nvidia 0000:28:00.0: reset done")
        self.root.set("go")


@pytest.fixture
def host(tmp_path: Path, made: Helpers) -> LiveHost:
    return LiveHost(tmp_path, made)


def events(daemon: RunningDaemon, kind: str) -> list[dict[str, Any]]:
    """Return what the daemon recorded of repairs."""
    recorded = json.loads(daemon.get("/v1/events?since=0")[1])["events"]
    return [event["data"] for event in recorded if event["kind"] == kind]


def ended(daemon: RunningDaemon) -> list[tuple[str, str]]:
    """Return outcome and text of each step that has ended."""
    return [(data["outcome"], data.get("text", "")) for data in events(daemon, "repair_ended")]


def stays_out_and_is_healthy(host: LiveHost, daemon: RunningDaemon) -> None:
    daemon.wait_status("healthy")
    assert host.marker.exists()
    assert "repair: step begins" in daemon.lines()
    assert "events not handed on" not in daemon.lines()
    assert host.root.effects.count(RESET) == 1
    assert host.root.running == BEFORE


def test_a_failed_gpu_is_reset_and_the_node_waits_for_a_look(host: LiveHost) -> None:
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        host.waits_in_reset(daemon)
        host.resets()
        daemon.wait(lambda: ended(daemon), "the repair")
        assert ended(daemon) == [DONE]
        stays_out_and_is_healthy(host, daemon)


def test_a_helper_that_is_killed_in_the_reset_leaves_the_truth_and_no_second_reset(host: LiveHost) -> None:
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        os.kill(host.waits_in_reset(daemon), signal.SIGKILL)
        daemon.wait(lambda: "asking for its state" in daemon.lines(), "the daemon to notice")
        assert not ended(daemon), "the reset still runs"
        host.resets()
        host.root.settled(events(daemon, "repair_begun")[0]["id"])  # systemd would, once the helper is gone
        daemon.wait(lambda: ended(daemon), "the look")
        ((outcome, text),) = ended(daemon)
        assert (outcome, "its effect is unknown; what it had stopped runs again" in text) == ("failed", True)
        stays_out_and_is_healthy(host, daemon)


def test_a_reboot_says_why_to_the_log_and_to_the_site_s_command_and_is_recognised_after_it(
    tmp_path: Path, made: Helpers
) -> None:
    host = LiveHost(tmp_path, made, step="reboot")
    boot_id = host.boots("aaaaaaaa-0000-4000-8000-000000000001")
    reason = "gpuwarden: failure gpu=1 xid=95 - reset the GPU when it is empty"
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        host.xid(BAD, 95)
        daemon.wait(lambda: host.root.effects, "the order")
        assert host.root.effects == [f"reboot: {reason}"]
        assert "repair: step begins" in daemon.lines()
        assert not ended(daemon)
        assert daemon.stop() == 0
    boot_id.write_text("bbbbbbbb-0000-4000-8000-000000000002\n")
    host.root.set("boot", "boot-2")
    host.kmsg.write_text("")
    with host.acting() as daemon:
        daemon.wait(lambda: ended(daemon), "the look")
        assert ended(daemon) == [("rebooted", "")]
        daemon.wait_status("healthy")
        assert host.marker.exists()
        assert len(host.root.effects) == 1


def test_two_daemons_on_one_node_have_a_gpu_reset_once(host: LiveHost) -> None:
    other = host.another()
    with host.acting() as first, other.acting() as second:
        for daemon in (first, second):
            daemon.wait_status("healthy")
        host.root.reset_mode("waits")
        host.xid(BAD, 95)
        first.wait((host.root.folder / "waiting").exists, "the reset, whoever asks for it first")
        first.wait(
            lambda: any("another step runs" in either.lines() for either in (first, second)), "the refusal of the other"
        )
        host.resets()
        first.wait(lambda: [*ended(first), *ended(second)].count(DONE) == 1, "the repair")
        for daemon in (first, second):
            daemon.wait_status("healthy")
            daemon.wait_passes(10)
        assert host.marker.exists()
        assert other.marker.exists()
        assert host.root.effects.count(RESET) == 1
