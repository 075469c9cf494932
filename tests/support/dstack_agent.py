"""dstack's agent on a host, as its unit starts it: the routes of its tasks, with the words of dstack 0.22. Needs nothing but Python.

    dstack_agent.py PORT FOLDER

In FOLDER: `accepted`, the id of each task that it took, and `ended`, for each SIGTERM a line with the tasks that it had then.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

UNIT = """[Unit]
Description=dstack-shim
After=network-online.target
StartLimitIntervalSec=3600
StartLimitBurst=1080
[Service]
Type=simple
User=root
Restart=always
RestartSec=3
ExecStart=/usr/bin/python3 /root/dstack_agent.py {port} /root
[Install]
WantedBy=multi-user.target
"""
"""As dstack writes it when it adds a host, but for the program."""

tasks: dict[str, str] = {}
lock = threading.Lock()
folder = Path(sys.argv[2] if __name__ == "__main__" else ".")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        with lock:
            listed = [{"id": name, "status": status} for name, status in tasks.items()]
        match self.path:
            case "/api/healthcheck":
                self.say(200, {"service": "dstack-shim", "version": "0.22.5"})
            case "/api/tasks":
                self.say(200, {"tasks": listed})
            case _:
                self.say(404, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))) or b"{}")
        match self.path.split("/")[2:]:
            case ["tasks"]:
                with lock:
                    tasks[body["id"]] = "running"
                    with (folder / "accepted").open("a") as file:
                        file.write(body["id"] + "\n")
            case ["tasks", name, "terminate"]:
                with lock:
                    tasks[name] = "terminated"
            case ["tasks", name, "remove"]:
                with lock:
                    tasks.pop(name, None)
        self.say(200, {})

    def say(self, status: int, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    server.daemon_threads = True
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    stopped.wait()
    with lock, (folder / "ended").open("a") as file:
        file.write(json.dumps(tasks) + "\n")


if __name__ == "__main__":
    main()
