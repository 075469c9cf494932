"""A machine on which packages of gpuwarden are installed: with GPUs that can fail, and an exclusion that needs no scheduler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.machine import Machine, debian_tree
from support.machine_gpuwarden import FakeGpus
from support.packages import Packages

# It holds its node out without a scheduler: its exclusion is a file. The kernel log is that of all machines on this host.
ACTS = 'mode = "enforce"\n'
BLIND = "[collectors.kernel_log]\nenabled = false\n"
HOLDS = '[nvhcd]\nenabled = true\n[dstack]\nenabled = true\n[breaker]\nuncounted = "allow"\n'
ANSWERING = ("gpuwarden-dstack.socket", "gpuwarden-nvhcd.socket")
ASK_DSTACK = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:10998/api/instance/health', timeout=60).read().decode())"
ASK_NVHCD = """
import asyncio
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.encoding.base import CodecBase

class Bytes(CodecBase):
    __content_subtype__ = "proto"
    def encode(self, message, message_type): return message
    def decode(self, data, message_type): return data

async def ask():
    channel = Channel(path="/run/gpuwarden/nvhcd.sock", codec=Bytes())
    print(await UnaryUnaryMethod(channel, "/nvhcd.HealthCheckService/RunHealthCheck", bytes, bytes)(b"", timeout=60))
    channel.close()

asyncio.run(ask())
"""
MARKER = "/run/gpuwarden/excluded/nvhcd"
LEDGER = "/var/lib/gpuwarden/ledger.db"
KEPT = ("/run/gpuwarden", "/run/gpuwarden/job.sock", "/run/gpuwarden/nvhcd.sock")
"""What containers mount."""


class Node:
    """A machine with two GPUs, and the packages in its /root."""

    def __init__(self, folder: Path, packages: Packages) -> None:
        self.gpus = FakeGpus(folder)
        self.machine = Machine(debian_tree(), folder, binds=self.gpus.binds)
        self.machine.write("/etc/gpuwarden/conf.d/10-site.toml", ACTS + self.gpus.configuration(BLIND + HOLDS))
        self.machine.write("/etc/systemd/system/gpuwarden.service.d/50-fake.conf", self.gpus.environment())
        self.machine.copy(packages.this, "/root/this.deb")
        self.machine.copy(packages.next, "/root/next.deb")

    def apt(self, *words: str) -> str:
        done = self.machine.run("apt-get", "--yes", "--quiet", *words)
        return done.stdout + done.stderr

    def dpkg(self, *words: str) -> str:
        done = self.machine.run("dpkg", *words)
        return done.stdout + done.stderr

    def status(self) -> dict[str, Any]:
        output: dict[str, Any] = json.loads(self.machine.output("gpuwarden", "status", "--json") or "{}")
        return output

    def has(self, path: str) -> bool:
        return self.machine.path(path).exists()

    def wait_until_healthy(self) -> None:
        self.machine.wait(lambda: self.status().get("status") == "healthy", "the node to be healthy")

    def fail(self) -> str:
        """An Xid after which the GPU needs a reset, and its exclusion; since when it is in force."""

        def out() -> bool:
            self.gpus.fake.xid(0, 95)  # a listener that starts later gets the next one
            return " since " in self.machine.output("gpuwarden", "exclusions")

        self.machine.wait(out, "the exclusion")
        assert self.has(MARKER)
        return self.since()

    def since(self) -> str:
        """Wait for the finding, and return its id with the time when it was first seen."""
        sightings: list[tuple[str, str]] = []

        def seen() -> bool:
            findings = self.status().get("findings", ())
            sightings[:] = [
                (finding["id"], finding["first_seen"]) for finding in findings if finding["id"].startswith("xid.95@")
            ]
            return bool(sightings)

        self.machine.wait(seen, "the finding")
        self.finding, since = sightings[0]
        return since

    def pid(self) -> str:
        return self.machine.show("gpuwarden.service", "MainPID")

    def inodes(self) -> list[int]:
        return [self.machine.path(path).stat().st_ino for path in KEPT]

    def answer_others(self) -> None:
        """The agent of dstack, moved away as it should be, and what answers in its place and ft_launcher."""
        self.machine.write("/root/shim/api/instance/health", '{"dcgm":null}')
        serve = ("python3", "-m", "http.server", "--bind=127.0.0.1", "--directory=/root/shim", "10996")
        self.machine.run("systemd-run", "--unit=shim", *serve)
        asks = ("python3", "-c", ASK_DSTACK.replace("10998", "10996"))
        self.machine.wait(lambda: self.machine.run(*asks, check=False).returncode == 0, "the agent of dstack to answer")
        self.machine.run("systemctl", "enable", "--now", *ANSWERING)

    def responses(self) -> tuple[str, str]:
        """Return the answers to dstack and to ft_launcher, each asked by a process with a user of its own."""
        ask = "/opt/gpuwarden/bin/python"
        dstack = self.machine.run("python3", "-c", ASK_DSTACK).stdout.strip()
        return dstack, self.machine.run(ask, "-c", ASK_NVHCD).stdout

    def event_kinds(self) -> set[str]:
        return {json.loads(line)["kind"] for line in self.machine.output("gpuwarden", "events", "--json").splitlines()}

    def ledger(self, script: str) -> None:
        """Run on it while no daemon has it."""
        path = self.machine.path("/root/script.py")
        path.write_text(
            f"import sqlite3\nwith sqlite3.connect({LEDGER!r}) as db: db.executescript({script!r})\ndb.close()\n"
        )
        self.machine.run("python3", "/root/script.py")
