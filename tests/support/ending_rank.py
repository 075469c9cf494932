"""As saving_rank.py, but it goes when Slurm tells it to: at the second signal, which comes with the requeue.

Who does not is killed by slurmd, no earlier than 5 s later, however short KillWait is.
"""

from __future__ import annotations

import sys

from gpuwarden_job import CheckpointGuard, Interruption
from support import saving_rank


class EndingGuard(CheckpointGuard):
    def check(self, step: int) -> Interruption | None:
        if self.signals > 1:
            sys.exit(75)
        return super().check(step)


if __name__ == "__main__":
    saving_rank.CheckpointGuard = EndingGuard  # type: ignore[attr-defined]
    saving_rank.main()
