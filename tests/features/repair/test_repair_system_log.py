"""The reason of a reboot is in the system's log before the reboot is ordered."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from support.repair_helper import PATIENCE, Answer, RepairHost


@contextmanager
def system_log(host: RepairHost) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.settimeout(PATIENCE)
        log.bind(str(host.folder / "log"))
        yield log


def reboot(reason: str) -> Answer:
    return {"verb": "step", "id": "try-1", "step": "reboot", "reason": reason}


def test_the_log_has_the_reason_of_a_reboot_whose_order_fails(host: RepairHost) -> None:
    host.settings |= {"slurm": False, "reboot_command": ["/bin/false"]}
    with system_log(host) as log:
        assert not host.ask(reboot("xid 79 of GPU 3 §"))["done"]
        line = log.recv(4096).decode()
    time = r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d"
    assert re.fullmatch(rf"<26>{time} gpuwarden-repair\[\d+\]: reboots this node: xid 79 of GPU 3 §", line)


def test_a_full_log_hinders_no_reboot(host: RepairHost) -> None:
    with system_log(host) as log, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as flood:
        flood.setblocking(False)
        flood.connect(log.getsockname())
        with suppress(BlockingIOError):
            while True:
                flood.send(b"<13>another line")
        assert host.ask(reboot("xid 79"))["done"]
    assert host.effects == ["reboot reason=xid 79 n1"]
