"""The agent of torchrun that started this rank. It starts ranks again that have left, up to --max-restarts times.

On a node that is taken away it has to end, or it would do so there; the agents of the other nodes then form a smaller
world. It ends by SIGTERM. (PyTorch from 2.3 to 2.7 then closes the rendezvous, and all nodes end.)
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gpuwarden_job.guard import Interruption

_SENT_BY_IT = {"SIGTERM", "SIGINT"}  # before it starts the ranks again in a world of another size, and when it ends
_NAMES = (b"torchrun", b"torch.distributed", b"torch/distributed", b"accelerate")
_PARENT = os.getppid()  # when this was imported: an orphan has a parent that is not to be ended


def end_agent(interruption: Interruption | None, environ: Mapping[str, str] = os.environ) -> None:
    """Ends the agent if this node is meant and the agent would start its ranks again. Raises nothing."""
    if interruption is None or environ.get("TORCHELASTIC_MAX_RESTARTS", "0") == "0":
        return
    if interruption.notice is None and not set(interruption.signals) - _SENT_BY_IT:
        return
    with suppress(OSError):
        command = Path(f"/proc/{_PARENT}/cmdline").read_bytes()
        if os.getppid() == _PARENT and any(name in command for name in _NAMES):
            os.kill(_PARENT, signal.SIGTERM)
