"""What systemd does for `gpuwarden-repair.sock`, in one process that has loaded the helper: each connection to SOCKET gets a helper, forked.

python repair_helper_command.py SOCKET HOST, where HOST is a file: paths of a `Host`, fields of `Settings` and variables, as JSON, read for each
connection. Ends with its standard input.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path

from gpuwarden.features.repair.helper.host import Host
from gpuwarden.features.repair.helper.service import serve
from gpuwarden.features.repair.helper.settings import Settings


def helper(connection: socket.socket, file: Path) -> None:
    instructions = json.loads(file.read_text())
    if instructions["kill_after"]:
        _kill_after(instructions["kill_after"], os.getpid())
    os.environ.update(instructions["variables"])
    folder = Path(instructions["folder"])
    boot = (folder / "boot").read_text()
    host = Host(
        folder=folder / "state", proc=folder / "proc", sysfs=folder / "sys", system_log=folder / "log", path=str(folder / "bin"),
        deadlines=instructions["deadlines"], grace=0.2, boot=lambda: boot,
        environment={"HOME": "/", "PATH": "/nowhere"}, now=lambda: float((folder / "now").read_text()),
    )  # fmt: skip
    settings = Settings(**instructions["settings"])
    conf, commands = (path and Path(path) for path in (settings.slurm_conf, settings.slurm_folder))
    command = tuple(settings.reboot_command)
    serve(host, replace(settings, reboot_command=command, slurm_conf=conf, slurm_folder=commands), connection)


def _kill_after(seconds: float, pid: int) -> None:
    if os.fork() == 0:
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
        os._exit(0)


def main() -> None:
    path, file = sys.argv[1:]
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.write(1, b"ready\n")
    while 0 not in select.select([server.fileno(), 0], [], [])[0]:
        connection, _ = server.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            server.close()
            try:
                helper(connection, Path(file))
            finally:
                os._exit(0)
        connection.close()


if __name__ == "__main__":
    main()
