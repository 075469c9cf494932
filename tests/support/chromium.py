"""A real Chromium without a window, of which a test asks what it shows: `with chromium(tmp_path) as page: page.open(url)`.

It is driven through the DevTools protocol on one socket, which it has as descriptors 3 and 4. It ends with that socket.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.needs import needed

PATIENCE = 150.0
"""Seconds after which a test gives up waiting for an answer or an event."""
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-breakpad",
    "--hide-scrollbars", "--no-first-run", "--remote-debugging-pipe",
)  # fmt: skip


class Page:
    """The one tab of a browser."""

    def __init__(self, ours: socket.socket) -> None:
        self._socket = ours
        self._unread = b""
        self._sent = 0
        self._events: list[dict[str, Any]] = []
        self._session = ""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Log", "Runtime", "Network"):
            self._call(f"{domain}.enable")

    def open(self, url: str, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Open an address in a window of this size, and wait until it is loaded."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        self._events.clear()
        answer = self._call("Page.navigate", url=url)
        assert "errorText" not in answer, answer
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._receive()

    def ask(self, expression: str) -> Any:
        """Return the value of an expression in JavaScript, which also runs where the page itself may run none."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """Return what the browser reported of the open page: console messages, blocked or failed requests, dialogs, exceptions."""
        self.ask("0")  # what came before its answer was read
        kinds = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Network.loadingFailed")
        return [
            json.dumps(event) for event in self._events if event["method"] in (*kinds, "Page.javascriptDialogOpening")
        ]

    def requests(self) -> list[str]:
        """Return the addresses that were asked for the open page."""
        return [e["params"]["request"]["url"] for e in self._events if e["method"] == "Network.requestWillBeSent"]

    def picture(self, file: Path) -> None:
        """Write the whole page as a PNG."""
        answer = self._call("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(answer["data"]))

    def _call(self, method: str, **params: object) -> dict[str, Any]:
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._socket.sendall(json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._sent:
            pass
        assert "result" in answer, f"{method}: {answer}"
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            more = self._socket.recv(1 << 16)
            assert more, "the browser has ended"
            self._unread += more
        first, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        if "method" in message:
            self._events.append(message)
        return message


@contextmanager
def chromium(folder: Path) -> Iterator[Page]:
    """Start it with a profile of its own below `folder`. Nothing of it is left running."""
    command = needed("chromium")
    ours, its = socket.socketpair()
    ours.settimeout(PATIENCE)
    profile, log = folder / "profile", folder / "chromium.log"
    with ours, its, log.open("wb") as printed:
        begin = f'exec "$@" 3<&{its.fileno()} 4>&{its.fileno()}'
        process = subprocess.Popen(
            ["bash", "-c", begin, "bash", command, *OPTIONS, f"--user-data-dir={profile}"],
            pass_fds=[its.fileno()], stdin=subprocess.DEVNULL, stdout=printed, stderr=printed, start_new_session=True,
            env={**os.environ, "HOME": str(folder)},
        )  # fmt: skip
        its.close()
        try:
            yield Page(ours)
        finally:
            ours.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10.0)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
