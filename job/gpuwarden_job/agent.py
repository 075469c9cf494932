"""Ends the torchrun agent that started this rank. An agent restarts exited ranks, up to --max-restarts times.

On a node that is about to end the agent must exit, or it would restart the ranks there; the agents of the other nodes
then form a smaller world. SIGTERM ends it. (In PyTorch 2.3 to 2.7 that closes the rendezvous, and all nodes exit.)
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gpuwarden_job.guard import Interruption

_SENT_BY_IT = {"SIGTERM", "SIGINT"}  # the agent sends them before it restarts ranks, and when it exits
_NAMES = (b"torchrun", b"torch.distributed", b"torch/distributed", b"accelerate")
_PARENT = os.getppid()  # at import time: the later parent of an orphan must not be killed


def end_agent(interruption: Interruption | None, environ: Mapping[str, str] = os.environ) -> None:
    """Ends the agent if this node is affected and the agent would restart its ranks. Raises nothing."""
    if interruption is None or environ.get("TORCHELASTIC_MAX_RESTARTS", "0") == "0":
        return
    if interruption.notice is None and not set(interruption.signals) - _SENT_BY_IT:
        return
    with suppress(OSError):
        command = Path(f"/proc/{_PARENT}/cmdline").read_bytes()
        if os.getppid() == _PARENT and any(name in command for name in _NAMES):
            os.kill(_PARENT, signal.SIGTERM)
