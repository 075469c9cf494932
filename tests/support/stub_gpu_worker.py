"""A worker of an active test without a GPU: it speaks the protocol by a script, and notes what it was given.

The folder STUB_FOLDER has `script.json`: for a UUID, else for "*", a list of steps, or such a list for each of its tests. Of each worker
it leaves `UUID.NUMBER` there.

    {"write": OBJECT}   a line of JSON             {"raw": TEXT}       a text as it is
    {"ask": WHAT}       asks, and waits for the line that answers; it is noted
    {"sleep": SECONDS}  {"exit": CODE}             {"signal": NUMBER}  to itself
    {"deaf": true}      SIGTERM is ignored from here on
    {"open": PATH}      opens a file, which may hang
    {"kernel_line": [PATH, TEXT]}  adds a line to a kernel log, with its process number for PID
    {"wait": PATH}      until there is such a file
    {"name": NAME}      of its process
    {"flood": true}     writes for ever
    {"child": true}     starts a process that outlives it, in its group
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ["STUB_FOLDER"])


class Stub:
    def __init__(self, plan: dict[str, Any]) -> None:
        self.uuid = plan["uuid"]
        self.number = sum(
            1 for _ in FOLDER.glob(f"{self.uuid}.[0-9]")
        )  # one that was killed may have left a note half written
        self.note: dict[str, Any] = {
            "plan": plan, "environment": dict(os.environ), "pid": os.getpid(), "uid": os.getuid(), "answers": [],
            "began": time.monotonic(),
        }  # fmt: skip
        self._lines: list[str] = []
        self._got = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()
        self.keep()

    def _listen(self) -> None:
        for line in sys.stdin:
            with self._got:
                self._lines.append(line.strip())
                self._got.notify()
        os._exit(0)

    def keep(self) -> None:
        fresh = FOLDER / f"{self.uuid}.{self.number}.new"
        fresh.write_text(json.dumps(self.note))
        fresh.replace(FOLDER / f"{self.uuid}.{self.number}")

    def run(self, steps: list[Any]) -> None:
        if steps and isinstance(steps[0], list):
            steps = steps[min(self.number, len(steps) - 1)]
        for step in steps:
            ((name, value),) = step.items()
            getattr(self, f"do_{name}")(value)

    def do_write(self, value: object) -> None:
        self.do_raw(json.dumps(value))

    def do_raw(self, line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    def do_ask(self, question: str) -> None:
        self.do_write({"asks": question})
        with self._got:
            while not self._lines:
                self._got.wait()
            self.note["answers"].append([question, self._lines.pop(0), time.monotonic()])
        self.keep()

    def do_sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def do_exit(self, code: int) -> None:
        os._exit(code)

    def do_signal(self, number: int) -> None:
        os.kill(os.getpid(), number)

    def do_deaf(self, _: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def do_open(self, path: str) -> None:
        os.close(os.open(path, os.O_RDONLY))

    def do_name(self, name: str) -> None:
        ctypes.CDLL(None).prctl(15, name.encode())  # PR_SET_NAME

    def do_kernel_line(self, arguments: list[str]) -> None:
        path, text = arguments
        microseconds = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1e6)
        with Path(path).open("a") as file:
            file.write(f"4,1,{microseconds},-;{text.replace('PID', str(os.getpid()))}\n")

    def do_wait(self, path: str) -> None:
        while not Path(path).exists():
            time.sleep(0.02)

    def do_flood(self, _: object) -> None:
        while True:
            sys.stdout.write("x" * 65536)

    def do_child(self, _: object) -> None:
        self.note["child"] = subprocess.Popen(["sleep", "300"]).pid
        self.keep()


def main() -> None:
    plan = json.loads(sys.argv[1])
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if os.getppid() != plan["parent"]:
        os._exit(0)
    script = json.loads((FOLDER / "script.json").read_text())
    Stub(plan).run(script.get(plan["uuid"]) or script["*"])
    os._exit(0)


if __name__ == "__main__":
    main()
