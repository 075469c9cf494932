"""A process that runs one worker whose reader misbehaves as given in argv, prints the worker's pid and waits to be killed."""

from __future__ import annotations

import asyncio
import sys

from gpuwarden_collectors.worker.life import WorkerLimits
from gpuwarden_collectors.worker.worker import Worker
from support.worker_readers import Options, ReaderFacts


async def main(how: str) -> None:
    worker = Worker(
        "test",
        "support.worker_readers:Reader",
        ReaderFacts,
        limits=WorkerLimits(deadline=1.0, init_deadline=1000.0),
        on_event=lambda _: None,
        options=Options(how=how, where="connect"),
    )
    seen = await worker.observe()
    print(seen.worker.pid if seen.worker else None, flush=True)  # noqa: T201 - it is what the test reads
    await asyncio.sleep(1000)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
