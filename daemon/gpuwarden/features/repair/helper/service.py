r"""The helper's side of `gpuwarden-repair.sock`: one request a connection, one JSON object a line, answers likewise.

    {"verb": "probe", "step": "…"}      ->  {"able": ["reset_gpu", …], "unable": {"reboot": "why not"}}
    {"verb": "step", "id": "…", "step": "restart_service", "service": "fabric_manager"}
    {… "step": "reset_gpu", "slot": "0000:4e:00.0", "uuid": "GPU-…"}, {… "step": "reset_all"}, {… "step": "reload_driver"},
    {… "step": "reboot", "reason": "…"}
                                        ->  {"progress": "what it does now"}, as often as it begins something, then
                                            {"done": true, "text": "…"} or {"done": false, "refused": true or false, "why": "…"}
    {"verb": "result", "id": "…"}         ->  {"state": "unknown", "running", "done", "failed" or "refused", "text": "…"}

An id identifies one try: a second request returns its result, and does nothing. A step that was refused before it began
is not recorded, so its result is `unknown`: nothing was done. A step continues if its connection closes, and does not
begin if it closed before. So a step that `result` does not find is never done.

systemd runs `main` for each connection, and `main` with `--settle` after it, so that what a killed helper has stopped runs again.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from gpuwarden.base.paths import CONFIG_FILE
from gpuwarden.config.model import ConfigError, load
from gpuwarden.config.sources import Sources
from gpuwarden.features.repair.helper.checks import Refused
from gpuwarden.features.repair.helper.host import Host
from gpuwarden.features.repair.helper.notebook import Entry, Notebook, NotebookError
from gpuwarden.features.repair.helper.probe import lacking, not_allowed, probe
from gpuwarden.features.repair.helper.request import MOST, BadRequest, Request, request_of
from gpuwarden.features.repair.helper.restore import settle
from gpuwarden.features.repair.helper.settings import Settings, settings_of
from gpuwarden.features.repair.helper.work import Work

REQUEST_WITHIN = 5.0
FOLLOWS = 1800.0
"""Seconds for which a second request waits for the end of a running step."""
TURN_WITHIN = 5.0
"""Seconds. Another helper may hold the lock for a moment, to check what a killed one left."""
_AGAIN = 0.1

Answer = Mapping[str, Any]


def serve(host: Host, settings: Settings, connection: socket.socket) -> None:
    """Answer the one request of `connection`."""
    with connection:
        try:
            request = request_of(_line(connection))
            answer = _answered(host, settings, request, lambda text: _send(connection, {"progress": text}))
        except BadRequest as error:
            answer = _refused(str(error))
        except NotebookError as error:
            answer = {"done": False, "refused": False, "why": str(error)}
        _send(connection, answer)
    if answer.get("state") == "running":  # a query of a result does not wait until all services run again
        settle(host, Notebook(host.folder))


def _line(connection: socket.socket) -> bytes:
    """Return the first line that is sent. Raises BadRequest."""
    data, end = b"", time.monotonic() + REQUEST_WITHIN
    while b"\n" not in data:
        connection.settimeout(max(end - time.monotonic(), 0.001))
        try:
            part = connection.recv(MOST + 1 - len(data))
        except OSError:
            raise BadRequest(f"no request came within {REQUEST_WITHIN:g} s") from None
        data += part
        if not part or len(data) > MOST:
            raise BadRequest(f"a request is one line of at most {MOST} bytes")
    return data.partition(b"\n")[0]


def _send(connection: socket.socket, answer: Answer) -> bool:
    """Return False if the client has closed its connection."""
    try:
        connection.settimeout(REQUEST_WITHIN)
        connection.sendall(json.dumps(answer).encode() + b"\n")
    except OSError:
        return False
    return True


def _answered(host: Host, settings: Settings, request: Request, say: Callable[[str], bool]) -> Answer:
    notebook = Notebook(host.folder)
    if request.verb == "probe":
        return probe(host, settings, request.step)
    notebook.check()
    settle(host, notebook, boots_only=request.verb == "result")
    if request.verb == "result":
        return _state(notebook, request.id)
    if (entry := notebook.find(request.id)) is None:
        return _step(host, settings, request, notebook, say)
    end = time.monotonic() + FOLLOWS
    while entry is not None and entry.state == "running" and time.monotonic() < end:
        time.sleep(_AGAIN)
        settle(host, notebook)
        entry = notebook.find(request.id)
    return _result(entry) if entry else _refused("the step is no longer known")


def _step(host: Host, settings: Settings, request: Request, notebook: Notebook, say: Callable[[str], bool]) -> Answer:
    if why := not_allowed(request.step, settings) or lacking(request.step, host, settings):
        return _refused(why)
    with notebook.lock("helper", host.within("turn", TURN_WITHIN)) as alone:
        if alone is None:
            return _refused("another step runs on this node")
        return _step_alone(host, settings, request, notebook, say)


def _step_alone(
    host: Host, settings: Settings, request: Request, notebook: Notebook, say: Callable[[str], bool]
) -> Answer:
    with notebook.lock("commands") as held:
        if (entry := notebook.find(request.id)) is not None:
            return _result(entry)
        if held is None and request.step != "reboot":
            return _refused(
                "a command of an earlier step has not ended: if it hangs in the kernel, only a reboot ends it"
            )
        try:
            return _result(Work(host, settings, notebook, request, held, say).done())
        except Refused as error:
            return _refused(str(error))


def _result(entry: Entry) -> Answer:
    if entry.state == "done":
        return {"done": True, "text": entry.text}
    return {"done": False, "refused": entry.refused, "why": entry.text or "it still runs: ask again"}


def _state(notebook: Notebook, wanted: str) -> Answer:
    busy = notebook.is_locked("helper")  # before the entry is searched: a helper checks first, and then writes it
    if (entry := notebook.find(wanted)) is not None:
        return {"state": "refused" if entry.refused else entry.state, "text": entry.text}
    if busy:
        return {"state": "running", "text": "a helper checks a step, which may be this one"}
    return {"state": "unknown", "text": "nothing was begun under this id"}


def _refused(why: str) -> Answer:
    return {"done": False, "refused": True, "why": why}


def main() -> None:
    """Serve the connection on standard input; with `--settle` put back what a killed helper left."""
    if sys.argv[1:] == ["--settle"]:
        notebook = Notebook(Host().folder)
        notebook.check()
        settle(Host(), notebook)
        return
    signal.signal(signal.SIGTERM, lambda *_: None)  # a step that has begun is finished, and its services are started
    connection = socket.socket(fileno=os.dup(0))
    try:
        config = load(Sources(file=CONFIG_FILE, required=False))
    except ConfigError as error:
        with suppress(BadRequest):
            _line(connection)  # closing it with an unread request would reset it and lose the answer
        _send(connection, _refused(f"the configuration has a fault: {error}"))
        return
    serve(Host(sysfs=config.paths.sysfs), settings_of(config), connection)


if __name__ == "__main__":
    try:
        main()
    except NotebookError as error:
        sys.exit(str(error))
