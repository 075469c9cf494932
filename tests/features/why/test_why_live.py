"""A real process on a GPU of a real daemon, from its begin to its record, as its own user sees it on the job socket."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.features.why.names import NO_SUCH_JOB
from gpuwarden.publish.sockets.unix_socket import TRY_AGAIN
from support.daemons import OTHERS, PATIENCE, FakeHost, RunningDaemon, slots

ROOT_ONLY = pytest.mark.needs("root")
ALICE, BOB = 61_001, 61_002
BESIDE = "".join(f"[collectors.{name}]\nenabled = false\n" for name in OTHERS if name != "workloads")
CLIENT = """
import json, os, socket, sys
uid, path, asked = json.loads(sys.argv[1])
os.setgroups([]); os.setgid(uid); os.setuid(uid)
with socket.socket(socket.AF_UNIX) as client:
    client.settimeout(60)
    client.connect(path)
    client.sendall(json.dumps({"verb": "why", **asked}).encode() + b"\\n")
    print(client.makefile().readline())
"""


@pytest.fixture
def host() -> Iterator[FakeHost]:
    """A machine in a folder that other users reach."""
    with tempfile.TemporaryDirectory(prefix="gw-why-") as folder:
        Path(folder).chmod(0o755)
        made = FakeHost(Path(folder), 2)
        made.configure(beside=BESIDE)
        yield made


def why(host: FakeHost, uid: int, **asked: str) -> dict[str, Any]:
    """Return the answer that a process of this user gets; empty if there is no such job for it. Told to try again, it does: a user's
    questions are counted, and a busy host reads no ledger in time.
    """
    request = json.dumps([uid, str(host.run_dir / "job.sock"), asked])
    command = ["python3", "-I", "-c", CLIENT, request]
    end = time.monotonic() + PATIENCE
    while True:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
        answer = json.loads(done.stdout)
        if answer["ok"] or answer["code"] == NO_SUCH_JOB:
            return dict(answer.get("result", {}))
        assert answer["code"] == TRY_AGAIN, answer
        assert time.monotonic() < end, answer
        time.sleep(1.0)


def touches(host: FakeHost, name: str) -> list[str]:
    return [touch["what"] for touch in why(host, ALICE, job=name).get("touches", ())]


@pytest.mark.slow
@ROOT_ONLY
def test_a_process_on_a_gpu_is_followed_to_the_xid_that_ends_it(host: FakeHost) -> None:
    with host.daemon() as daemon:
        process = subprocess.Popen(["sleep", "3600"], start_new_session=True, user=ALICE, group=ALICE, extra_groups=[])
        name = f"session/{process.pid}"
        try:
            host.fake.process(1, process.pid, 1 << 30)
            daemon.wait(lambda: why(host, ALICE, job=name), "the process to be known")
            answer = why(host, ALICE)
            assert (answer["job"], answer["running"], answer["uid"]) == (name, True, ALICE)
            assert answer["gpus"] == [{"pci_bus_id": slots(2)[1], "gpu": 1}]
            assert why(host, BOB, job=name) == {}
            bus = slots(2)[1].removesuffix(".0")
            host.kernel_line(f"NVRM: Xid (PCI:{bus}): 31, pid={process.pid}, name=sleep, Ch 00000010, MMU Fault")
            daemon.wait(lambda: "xid" in touches(host, name), "the Xid to touch it")
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            host.fake.clear()
            daemon.wait(lambda: why(host, ALICE, job=name).get("final", False), "its record", patience=2 * PATIENCE)
        finally:
            process.kill()
            process.wait()
        answer = why(host, ALICE)
        assert (answer["answer"]["cause"], answer["answer"]["code"]) == ("job", "xid.31")
        assert answer["end"]["known_from"] == "processes"
        text = host.order("why", name).stdout
        assert text.startswith(f"{name}: ")
        assert "Xid 31" in text
        for line in (
            f'gpuwarden_job_ended_info{{job="{name}",cause="job"',
            'gpuwarden_jobs_ended_total{cause="job"} 1',
        ):
            daemon.wait(partial(shows, daemon, line), line)


def shows(daemon: RunningDaemon, line: str) -> bool:
    """A record is in the ledger, where `why` finds it, before it is on the page."""
    return line in daemon.get("/metrics")[1].decode()
