"""The cost of a webhook: wake-ups and CPU of an idle queue in a loop that does nothing else, and the time to empty a full queue."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import resource
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from common import spread, table
from gpuwarden.config.notify import NotifyOptions, WebhookOptions
from gpuwarden.notify.messages import Origin
from gpuwarden.notify.notifications import Notifications
from gpuwarden.notify.queue import MESSAGES_MOST, Message
from gpuwarden.notify.webhook import WebhookReceiver
from gpuwarden.notify.worker import DeliveryWorker
from support.receiving import Receiving

WAITING = MESSAGES_MOST
WITHIN = 6.0
TURNS = 3
IDLE = 10.0
TARGET = "webhook.bench"
BODY = json.dumps({"format": 1, "event": "raised", "data": {"text": "x" * 600}})


def serve(talk: Connection) -> None:
    """Run a receiver. Sends its URL, and on request the keys in their order of arrival."""
    with Receiving() as receiving:
        talk.send(receiving.url)
        while talk.recv() == "keys":
            talk.send([request.headers["Idempotency-Key"] for request in receiving.requests])


async def delivered(url: str) -> float:
    """Return the seconds until a full queue is empty."""
    worker = DeliveryWorker(TARGET, WebhookReceiver(WebhookOptions(url=url)))
    for n in range(WAITING):
        worker.put(Message(f"finding/{n % 800}", f"key{n}", BODY))
    began = time.perf_counter()
    worker.finish()
    await worker.run()
    return time.perf_counter() - began


def telling(folder: Path, url: str) -> Notifications:
    options = NotifyOptions(webhook={"bench": WebhookOptions(url=url)})
    return Notifications(options, Origin(node="bench", mode="observe", boot_id="b"), folder)


def idle(talk: Connection, folder: str, url: str) -> None:
    """Return voluntary context switches and milliseconds of CPU in `IDLE` seconds, without a receiver if `url` is empty."""

    async def work() -> None:
        notifying = telling(Path(folder), url) if url else None
        if notifying is not None:
            notifying.run(list)
        await asyncio.sleep(1.0)
        before = resource.getrusage(resource.RUSAGE_SELF)
        await asyncio.sleep(IDLE)
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3
        talk.send((after.ru_nvcsw - before.ru_nvcsw, cpu))
        if notifying is not None:
            await notifying.stop(5.0)

    asyncio.run(work())


def main() -> None:
    context = multiprocessing.get_context("spawn")
    took: list[float] = []
    for _ in range(TURNS):
        ours, theirs = context.Pipe()
        receiver = context.Process(target=serve, args=(theirs,), daemon=True)
        receiver.start()
        url = ours.recv()
        took.append(asyncio.run(delivered(url)))
        ours.send("keys")
        if list(ours.recv()) != [f"key{n}" for n in range(WAITING)]:
            raise RuntimeError("they came in another order, or not once")
        ours.send("end")
        receiver.join()
    table(
        f"{WAITING:,} queued notifications of {len(BODY)} bytes, delivered in order over one connection, {TURNS} turns",
        ("what", "measured", "wanted"),
        [("until the queue is empty, s", spread(took), f"<= {WITHIN:g}"),
         ("a second", spread([WAITING / seconds for seconds in took], 0), "")],
    )  # fmt: skip
    rows = []
    for name, url in (("no webhook", ""), ("a webhook with nothing to tell", "http://127.0.0.1:9/")):
        ours, theirs = context.Pipe()
        with tempfile.TemporaryDirectory(prefix="gw-") as folder:
            process = context.Process(target=idle, args=(theirs, folder, url))
            process.start()
            switches, cpu = ours.recv()
            process.join()
        rows.append((name, switches, f"{cpu:.2f}"))
    table(f"{IDLE:g} s of a loop that has nothing to do", ("with", "wake-ups", "CPU, ms"), rows)


if __name__ == "__main__":
    main()
