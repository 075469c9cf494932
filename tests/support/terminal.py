"""A command of gpuwarden on a pseudo terminal of its own, as a person has it, and what is on the screen."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.commands import COMMAND, environment
from support.daemons import PATIENCE

CTRL_C = b"\x03"
_FRAME = re.compile(r"\x1b\[H(.*?)\x1b\[\?7h", re.DOTALL)
_ESCAPE = re.compile(r"\x1b\[[?\d;]*[A-Za-z]")


class Terminal:
    """`process` runs on it. Screens are drawn from the upper left corner, each as a whole."""

    def __init__(self, process: subprocess.Popen[bytes], keyboard: int) -> None:
        self.process = process
        self._keyboard = keyboard
        self._shown = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # EIO: the command has ended
            while chunk := os.read(self._keyboard, 1 << 16):
                self._shown += chunk

    def screens(self) -> list[list[str]]:
        """All that were drawn so far: their lines, without what moves the cursor."""
        drawn = _FRAME.findall(bytes(self._shown).decode().replace("\r\n", "\n"))
        return [_ESCAPE.sub("", screen).splitlines() for screen in drawn]

    def printed(self) -> str:
        """Return all that was printed so far, with what moves the cursor."""
        return bytes(self._shown).decode()

    def wait_shows(self, *texts: str) -> list[str]:
        """The first screen from now on, the present one included, with all of these."""
        seen = max(len(self.screens()) - 1, 0)
        end = time.monotonic() + PATIENCE
        while True:
            for screen in self.screens()[seen:]:
                if all(text in "\n".join(screen) for text in texts):
                    return screen
            assert self.process.poll() is None, bytes(self._shown[-3000:]).decode()
            assert time.monotonic() < end, (texts, self.screens()[-1:])
            time.sleep(0.02)

    def resize(self, columns: int, rows: int) -> None:
        _resize(self._keyboard, columns, rows)

    def type(self, keys: bytes) -> None:
        os.write(self._keyboard, keys)

    def wait_ended(self) -> int:
        return self.process.wait(PATIENCE)


def _resize(terminal: int, columns: int, rows: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


@contextmanager
def on_a_terminal(*words: str | Path, temporary: Path, columns: int = 100, rows: int = 30) -> Iterator[Terminal]:
    """`gpuwarden WORDS` as the foreground of a terminal of that size; ended, whatever it does, when this is left."""
    keyboard, line = pty.openpty()
    _resize(line, columns, rows)
    with subprocess.Popen(
        ["setsid", "--ctty", *COMMAND, *map(str, words)],
        env=environment(temporary, {"TERM": "xterm"}), stdin=line, stdout=line, stderr=line,
    ) as process:  # fmt: skip
        os.close(line)
        try:
            yield Terminal(process, keyboard)
        finally:
            process.kill()
            process.wait()
            os.close(keyboard)
