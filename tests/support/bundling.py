"""A host on which archives are made: a ledger, a kernel log in a file, and stand-ins for the programs of the driver in a PATH of their own."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
import subprocess
import tarfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuwarden.health.event_data import write
from gpuwarden.health.events import Raised
from gpuwarden.health.model import Advice, Event, EventKind, Key, Latch, Pin, Severity, Subject
from gpuwarden.health.state import pin_event
from gpuwarden.ledger.ledger import Ledger
from gpuwarden_collectors.base import host_clock
from gpuwarden_collectors.facts import Stamp
from support.commands import gpuwarden
from support.ledgers import HERE, opened

SLOT = "0000:4e:00.0"
FINDING = f"xid.95@gpu/{SLOT}"
SERIAL = "1652223000078"
UUID = "GPU-4e3c9e1a-7d42-4b8f-a1c6-5e0f2d9b8a37"
BOOT = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
LINE = f"NVRM: Xid (PCI:{SLOT[:-2]}): 95, pid=1234, name=python, Uncontained: something broke"
SMI = f"""\
Timestamp : now
GPU 00000000:4E:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Serial Number                         : {SERIAL}
    GPU UUID                              : {UUID}
    VBIOS Version                         : 96.00.5E.00.01
    Board Part Number                     : 692-2G520-0200-000
    Inforom Version
        Image Version                     : G520.0200.00.05
    GSP Firmware Version                  : 550.54.15
    Platform Info
        Module ID                         : 5
    Processes
        Process ID                        : 4194242
            Name                          : /home/alice/secret-model/train.py
"""
PRINTS_SMI = "cat << 'END'\n" + SMI + "END\n"
REPORTS = """\
while [ $# -gt 1 ]; do shift; [ "$1" != --output-file ] || file=$2; done
echo 'the report' | gzip -c > "$file.gz"
"""
USUAL = {"nvidia-smi": PRINTS_SMI, "nvidia-bug-report.sh": REPORTS}
SYSTEM = ("cat", "dmesg", "echo", "gzip", "head", "sh", "sleep", "tail", "yes", "zstd")


def before(seconds: float) -> Stamp:
    now = host_clock()
    return Stamp(now.boottime - seconds, now.wall - seconds)


def raised(finding: str = FINDING, age: float = 60.0, **evidence: Any) -> Event:
    key, at = Key.parse(finding), before(age)
    data = Raised(
        evidence=evidence, count=1, severity=Severity.FAILURE, advice=Advice.RESET_GPU, latch=Latch.RESET, first=at
    )
    return Event(kind=EventKind.RAISED, at=at, boot_id=BOOT, key=key, data=write(data))


def pinned() -> Event:
    pin = Pin(slot=SLOT, uuid=UUID, name="NVIDIA H100 80GB HBM3", serial=SERIAL, first_seen=before(7200))
    return pin_event(EventKind.GPU_PINNED, pin.first_seen, BOOT, pin)


def happened(kind: EventKind, subject: str = "", age: float = 30.0, **data: Any) -> Event:
    key = Key("job", Subject.parse(subject)) if subject else None
    return Event(kind=kind, at=before(age), boot_id=BOOT, key=key, data=data)


class BundleHost:
    """`programs`: by name, the text of the shell script that stands for each."""

    def __init__(self, folder: Path, programs: Mapping[str, str] = USUAL) -> None:
        self.folder = folder
        self.out, self.bin, self.state_dir = folder / "out", folder / "bin", folder / "state"
        for made in (self.out, self.bin, self.state_dir):
            made.mkdir()
        for name, text in programs.items():
            file = self.bin / name
            file.write_text(f"#!/bin/sh\n{text}")
            file.chmod(0o755)
        for name in SYSTEM:
            program = next((path for path in (Path("/usr/bin", name), Path("/bin", name)) if path.exists()), None)
            if program is not None and name not in programs:
                (self.bin / name).symlink_to(program)
        self.kmsg = folder / "kmsg"
        self.kmsg.write_text(f"4,1,5000000,-;{LINE}\n6,2,5000001,-;eth0: link is up\n")
        self.config = folder / "gpuwarden.toml"
        self.configure()

    def configure(self, more: str = "") -> None:
        self.config.write_text(
            f'node = "gpu-17.example"\n[paths]\nkmsg = "{self.kmsg}"\nsysfs = "{self.folder}/sys"\n'
            f'[run]\ndir = "{self.folder}/run"\n[state]\ndir = "{self.state_dir}"\n{more}'
        )

    def remember(self, *events: Event) -> None:
        asyncio.run(self._remember(events))

    async def _remember(self, events: Iterable[Event]) -> None:
        ledger = Ledger(self.state_dir / "ledger.db", machine=HERE, boot_id=BOOT, capacity=10_000)
        await opened(ledger)
        ledger.append(tuple(events))
        await ledger.close(30)

    @property
    def variables(self) -> dict[str, str]:
        return {"PATH": str(self.bin)}

    def bundle(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        more = () if "--output" in words else ("--output", self.out)
        return gpuwarden("bundle", *words, *more, "--config", self.config, temporary=self.folder, more=self.variables)

    @property
    def archives(self) -> list[Path]:
        """All that lies in the folder of archives, hidden files too."""
        return sorted(self.out.iterdir())


class Archive:
    """An archive, unpacked and compared with its manifest."""

    def __init__(self, file: Path, folder: Path) -> None:
        assert file.stat().st_mode & 0o777 == 0o600
        folder.mkdir()
        if file.name.endswith(".zst"):
            plain = folder / "plain.tar"
            subprocess.run(["zstd", "-q", "-d", str(file), "-o", str(plain)], check=True)
            file = plain
        with tarfile.open(file) as tar:  # not extractall(): its filters are newer than Debian 12's Python
            for member in tar:
                assert member.isfile() or member.isdir(), member.name
                assert ".." not in Path(member.name).parts
                where = folder / member.name
                (where if member.isdir() else where.parent).mkdir(parents=True, exist_ok=True)
                if content := tar.extractfile(member):
                    where.write_bytes(content.read())
        (self.top,) = (entry for entry in folder.iterdir() if entry.is_dir())
        self.manifest: dict[str, Any] = json.loads(self.read("manifest.json"))
        self.files = {entry["name"]: entry for entry in self.manifest["files"]}
        listed = {name: entry["sha256"] for name, entry in self.files.items() if entry["sha256"] is not None}
        there = {
            str(entry.relative_to(self.top)): hashlib.sha256(entry.read_bytes()).hexdigest()
            for entry in self.top.rglob("*")
            if entry.is_file() and entry.name != "manifest.json"
        }
        assert there == listed
        assert all(entry["why"] for entry in self.files.values() if entry["state"] != "complete")
        assert all(
            entry["sha256"] is None for entry in self.files.values() if entry["state"] in ("missing", "left_out")
        )

    def read(self, name: str) -> str:
        return (self.top / name).read_text()

    def state(self, name: str) -> tuple[str, str]:
        return self.files[name]["state"], self.files[name]["why"]


def only_archive(host: BundleHost) -> Archive:
    (file,) = host.archives
    return Archive(file, host.folder / f"unpacked-{os.urandom(4).hex()}")


@contextmanager
def answering(path: Path, *answers: bytes | None) -> Iterator[list[bytes]]:
    """A service that gives these answers, one a connection; None: it says nothing until its end. Yields the requests."""
    asked: list[bytes] = []
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    over = threading.Event()

    def serve_all() -> None:
        for each in answers:
            try:
                connection, _ = listener.accept()
            except OSError:  # the test ended without asking
                return
            with connection:
                asked.append(connection.recv(1 << 16))
                if each is None:
                    over.wait(60.0)
                else:
                    connection.sendall(each)

    thread = threading.Thread(target=serve_all)
    thread.start()
    try:
        yield asked
    finally:
        over.set()
        listener.shutdown(socket.SHUT_RDWR)  # it wakes a thread that still accepts
        thread.join()
        listener.close()
