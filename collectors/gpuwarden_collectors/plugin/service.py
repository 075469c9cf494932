r"""Client for site checks that another process runs (`site_check.py`): the daemon only sends the name of a check.

    nhc\n  ->  {"exit_code": 0, "stdout": "…", "stderr": "…", "error": ""}

One request per connection. The answer follows when the check has ended; closing the connection cancels the check. JSON
texts contain bytes as Latin-1 characters.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from gpuwarden_collectors.plugin.run import Run

_ANSWER_MOST = 128 << 10  # bytes: two streams of 4 KiB, each byte up to six characters, and the keys
_SLACK = 15.0
"""Seconds in addition to the check's timeout, for starting and killing it."""


def packed(done: Run) -> bytes:
    document = {
        "exit_code": done.exit_code,
        "stdout": done.stdout.decode("latin-1"),
        "stderr": done.stderr.decode("latin-1"),
        "error": done.error,
    }
    return json.dumps(document).encode()


async def run_by_service(path: str, name: str, timeout: float) -> Run:  # noqa: ASYNC109 - says so, instead of raising
    """Runs a check as `run.run` does, by the service that listens on the socket at `path`. Raises nothing."""
    try:
        async with asyncio.timeout(timeout + _SLACK):
            reader, writer = await asyncio.open_unix_connection(path, limit=_ANSWER_MOST)
            try:
                writer.write(f"{name}\n".encode())
                return _run(await reader.read(-1))
            finally:
                writer.close()
    except TimeoutError:
        return Run(None, error=f"{path} has not answered within {timeout + _SLACK:g} s")
    except (ValueError, ConnectionResetError, BrokenPipeError):
        return Run(None, error=f"{path} gave no answer; see the journal of gpuwarden-checks@")
    except OSError as error:
        why = error.strerror or error
        return Run(None, error=f"cannot be started by way of {path}: {why}; is gpuwarden-checks.socket up?")


def _run(answer: bytes) -> Run:
    """Return the run that the answer describes. Raises ValueError if it describes none."""
    document: Any = json.loads(answer[:_ANSWER_MOST])
    if not isinstance(document, dict):
        raise ValueError("no object")  # noqa: TRY004 - whatever it is instead, it is no answer
    code, texts = document.get("exit_code"), [document.get(key) for key in ("stdout", "stderr", "error")]
    if not (code is None or isinstance(code, int)) or not all(isinstance(text, str) for text in texts):
        raise ValueError("no run")
    stdout, stderr, error = map(str, texts)
    return Run(code, stdout.encode("latin-1", "replace"), stderr.encode("latin-1", "replace"), error)
