"""The host of the soak: 8 simulated GPUs with continuous faults, a Slurm of two shell scripts, a site check whose result
changes, and a count of the tasks in the daemon's loop.

Everything runs 50 times as fast as by default, as far as the configuration allows; the deadline of a pass of NVML (10 s) becomes 1 s,
since in CI the soak has what the tests leave of two cores, where a pass can take 0.4 s. The daemon sees only its own processes in /proc, so that no other process is signalled.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

from support.daemons import OTHERS, FakeHost, RunningDaemon, slots

SPEED = 50
GPUS = 8
_OFF = "".join(f"[collectors.{name}]\nenabled = false\n" for name in OTHERS if name != "memory")
_NODE = "n1"

_TASKS = """
import signal
def dump(*_):
    import asyncio, os
    name = os.environ["SOAK_TASKS"]
    with open(name + ".new", "w") as file:
        file.write(str(len(asyncio.all_tasks())))
    os.replace(name + ".new", name)
signal.signal(signal.SIGUSR2, dump)
"""
"""Loaded by the interpreter itself. The handler runs in the thread of the loop, between two steps of it."""

_SINFO = r"""#!/bin/sh
state=IDLE since=Unknown reason=none
[ -e "$0.drained" ] && { state=IDLE+DRAIN; { read -r since; read -r reason; } <"$0.drained"; }
case "$*" in
*Comment*) printf 'n1\037gpu\037%s\037%s\037gpu:8\037(null)\037(null)\037%s\036' "$state" "$since" "$reason" ;;
*) printf 'n1\037gpu\037%s\037%s\037gpu:8\037%s\036' "$state" "$since" "$reason"
   printf 'n2\037gpu\037IDLE\037Unknown\037gpu:8\037none\036n3\037gpu\037IDLE\037Unknown\037gpu:8\037none\036' ;;
esac
"""
_SCONTROL = r"""#!/bin/sh
here=${0%scontrol}sinfo.drained
case "$*" in
*"show partition"*) echo "PartitionName=gpu State=UP TotalNodes=3" ;;
*"show config"*) printf 'ClusterName             = soak\nSLURM_VERSION           = 24.11.5\n' ;;
*State=DRAIN*) for word; do case $word in Reason=*) reason=${word#Reason=} ;; esac; done
  { date +%s; echo "$reason"; } >"$here.new" && mv "$here.new" "$here"; echo drain >>"${0%scontrol}writes" ;;
*State=UNDRAIN*|*State=RESUME*) rm -f "$here"; echo undrain >>"${0%scontrol}writes" ;;
*) echo "scontrol: error: not pretended here: $*" >&2; exit 1 ;;
esac
"""
_CHECK = "#!/bin/sh\ncase $(date +%s) in *[0-6]) exit 0 ;; *7) echo warm; exit 1 ;; *) echo bad; exit 2 ;; esac\n"


class SoakHost(FakeHost):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, GPUS)
        self.lines = 0
        self.slurm = folder / "slurm"
        self.slurm.mkdir()
        for name, text in (("sinfo", _SINFO), ("scontrol", _SCONTROL), ("check", _CHECK)):
            (self.slurm / name).write_text(text)
            (self.slurm / name).chmod(0o755)
        (self.slurm / "slurm.conf").touch()
        (folder / "sitecustomize.py").write_text(_TASKS)
        self.seclude()
        (self.proc / "meminfo").symlink_to("/proc/meminfo")
        self.configure_soak()

    def configure_soak(self, passes: int = 12) -> None:
        """`passes`: clean passes until the node comes back; a reload puts it in force."""
        self.configure(
            f'mode = "enforce"\n[policy]\nrestore_passes = {passes}\nrestore_after = "0s"\nrestores_per_day = 1000\n'
            'lifted_for = "0s"\nlook_every = "60s"\nlook_often = "5s"\n'
            '[breaker]\npercent = 100\ncount = 1000\nrecount_after = "1s"\n'
            f'[slurm]\nenabled = true\nnode = "{_NODE}"\nfolder = "{self.slurm}"\nconf = "{self.slurm}/slurm.conf"\njobs = false\n'
            f'[termination]\nsources = []\n[plugins.soak]\ncommand = ["{self.slurm}/check"]\ninterval = "1200ms"\n',
            interval=f"{5000 // SPEED}ms", deadline="1s",
            beside=f'{_OFF}[collectors.memory]\ninterval = "1s"\n',
        )  # fmt: skip
        text = self.config.read_text().replace('interval = "500ms"', f'interval = "{10_000 // SPEED}ms"')
        mode, _, rest = text.partition('mode = "enforce"\n')
        self.config.write_text(f'mode = "enforce"\n{mode}{rest}')

    def variables(self) -> dict[str, str]:
        path = os.pathsep.join([str(self.folder), *sys.path])
        return {"PYTHONPATH": path, "SOAK_TASKS": str(self.folder / "tasks")}

    def break_something(self, gpu: int, number: int) -> None:
        """Write the line of an Xid to the kernel log, and count it."""
        self.xid(gpu, number)
        self.lines += 1

    def storm(self, gpu: int, *numbers: int) -> None:
        for number in numbers:
            self.break_something(gpu, number)

    def is_gone(self, gpu: int) -> None:
        self.fake.vanish(gpu)
        self.plug(GPUS, frozenset({gpu}))

    def memory_fails(self, gpu: int) -> None:
        self.fake.reading(gpu, "ecc_uncorrected_volatile", 3)
        self.break_something(gpu, 48)

    def mend(self, gpu: int) -> None:
        self.kernel_line(f"nvidia {slots(GPUS)[gpu]}: reset done")
        self.fake.clear()
        self.plug(GPUS)

    def writes(self) -> dict[str, int]:
        """The writes to the scheduler."""
        try:
            words = (self.slurm / "writes").read_text().split()
        except FileNotFoundError:
            words = []
        return {word: words.count(word) for word in ("drain", "undrain")}


def stories(host: SoakHost) -> Iterator[tuple[str, Callable[[int], object]]]:
    """Yield faults of a given GPU for ever, one after the other. Each story ends its own fault.

    Four numbers of Xids on eight GPUs are as many as the metric has at a time (`XIDS_MOST`): of more the oldest would be left out.
    """
    fake = host.fake
    orders: dict[str, Callable[[int], object]] = {
        "an Xid that latches": lambda gpu: host.break_something(gpu, 95),
        "a GPU that is gone": host.is_gone,
        "an application's Xids": lambda gpu: host.storm(gpu, 13, 31, 13, 13, 31),
        "a reading that is too high": lambda gpu: fake.reading(gpu, "temperature", 96),
        "a driver that hangs": lambda gpu: fake.hang(gpu, "nvmlDeviceGetTemperature"),
        "errors in its memory": host.memory_fails,
        "a library that crashes": lambda gpu: fake.crash(gpu, "nvmlDeviceGetTemperature", once=True),
        "a storm of lines": lambda gpu: host.storm(gpu, *[31] * 200),
        "a GPU that is lost": fake.lost,
    }
    return cycle(orders.items())


def tasks(daemon: RunningDaemon, host: SoakHost, patience: float = 300.0) -> int:
    """Return the number of tasks in the daemon's loop now."""
    file = host.folder / "tasks"
    file.unlink(missing_ok=True)
    daemon.process.send_signal(signal.SIGUSR2)
    end = time.monotonic() + patience
    while not file.exists():
        if time.monotonic() > end:
            raise TimeoutError("the daemon's loop does not report its number of tasks")
        time.sleep(0.005)
    return int(file.read_text())


def talk(path: Path, verb: str, **arguments: object) -> bool:
    """Ask one question on a socket of the daemon, and return True if the answer is not an error."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(300.0)
        client.connect(os.fspath(path))
        client.sendall(json.dumps({"verb": verb, **arguments}).encode() + b"\n")
        with client.makefile("rb") as answer:
            return bool(json.loads(answer.readline())["ok"])
