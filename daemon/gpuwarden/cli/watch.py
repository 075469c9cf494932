"""`gpuwarden watch`: the status of the running daemon, live. It goes on while no daemon answers."""

from __future__ import annotations

import argparse
import os
import signal
import time

from gpuwarden.cli.client import Daemon
from gpuwarden.cli.parser import HEALTH_CODES, NOT_ALLOWED, UNKNOWN, CommandError, Parser, duration
from gpuwarden.cli.watch_text import Known, block, screen

HELP = """
Shows the status of the running daemon live: on a terminal as a screen, elsewhere as a block of lines for each change. While
no daemon responds, it shows that and continues. Ctrl-C or SIGTERM ends it.

exit code: that of the last status: 0 healthy, 1 warning, 2 failure, 3 unknown or no daemon

examples:
  gpuwarden watch
  gpuwarden watch --interval 500ms
  gpuwarden watch >> node.log
"""

POLL = 0.5  # seconds between a response and the next request, at most
USUAL = (80, 24)  # columns and rows of a terminal of unknown size


def arguments(parser: Parser) -> None:
    parser.add_run_dir()
    parser.add_argument(
        "--interval",
        metavar="T",
        type=duration("200ms", "1h"),
        default="2s",
        help="longest time between redraws, 200ms to 1h (default: 2s); a change shows within half a second",
    )


def main(options: argparse.Namespace) -> int:
    watch = Watch(Daemon.chosen(options.run_dir), options.interval)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Blocked, so that a resize between two polls is not lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH})
    try:
        watch.run()
    except KeyboardInterrupt:
        if watch.on_terminal:
            print()  # the shell's prompt starts on a new line
    return watch.code()


class Watch:
    def __init__(self, daemon: Daemon, interval: float) -> None:
        self.on_terminal = os.isatty(1) and os.environ.get("TERM", "dumb") != "dumb"
        self._daemon = daemon
        self._interval = interval
        self._known = Known()

    def code(self) -> int:
        """The exit code of the last known status."""
        if self._known.error or self._known.status is None:
            return UNKNOWN
        return HEALTH_CODES.get(str(self._known.status["status"]), UNKNOWN)

    def run(self) -> None:
        """Show changes until KeyboardInterrupt. Raises CommandError if this user may not connect."""
        self._poll()
        if self.on_terminal:
            print("\n" * (_size()[1] - 1), end="")  # scrolls the screen's content up
        shown: tuple[str, ...] = ()
        due = 0.0  # when to redraw without a change
        while True:
            now = time.monotonic()
            if self._known.content() != shown or (self.on_terminal and now >= due):
                self._show()
                shown, due = self._known.content(), now + self._interval
            if signal.sigtimedwait({signal.SIGWINCH}, min(POLL, self._interval)):
                due = 0.0
            else:
                self._poll()

    def _poll(self) -> None:
        try:
            self._known = self._known.answer(self._daemon.call("status"), time.time())
        except CommandError as error:
            if error.code == NOT_ALLOWED and self._known.status is None:  # waiting would not help
                raise CommandError(str(error), UNKNOWN) from error
            self._known = self._known.silence(str(error), time.time())

    def _show(self) -> None:
        if self.on_terminal:
            print(screen(self._known, time.time(), *_size()), end="", flush=True)
        else:
            print(block(self._known, time.time()), flush=True)


def _size() -> tuple[int, int]:
    """Columns and rows of the terminal now; COLUMNS and LINES do not follow a resize."""
    try:
        columns, rows = os.get_terminal_size(1)
    except OSError:
        return USUAL
    return columns or USUAL[0], rows or USUAL[1]
