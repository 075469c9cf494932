"""A server that is notified: whatever it answers or does not, nothing is lost that it may still want, and no storm follows."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trustme

from gpuwarden.config.notify import NotifyProgram, WebhookOptions
from gpuwarden.config.secrets import SecretFile
from gpuwarden.features.active_test.gate.state import Gate, GateResult
from gpuwarden.health.conditions import CONDITIONS
from gpuwarden.health.event_data import write
from gpuwarden.health.model import Event, EventKind, Key, gpu
from gpuwarden.notify.delivery import Delivery, Receiver, Result
from gpuwarden.notify.messages import Origin, message
from gpuwarden.notify.program import ProgramReceiver
from gpuwarden.notify.queue import Message
from gpuwarden.notify.webhook import WebhookReceiver
from gpuwarden.notify.worker import DeliveryWorker
from gpuwarden_collectors.facts import Stamp
from support.receiving import Receiving
from support.waiting import until

PATIENCE = 60.0
TARGET = "webhook.pager"
ONE = Message("health", "0123456789abcdef", '{"format":1,"text":"GPU 3 gone: ü"}')


@pytest.fixture
def receiving() -> Iterator[Receiving]:
    with Receiving() as server:
        yield server


def secret(folder: Path, text: str, name: str = "secret") -> SecretFile:
    path = folder / name
    path.write_text(text)
    path.chmod(0o600)
    return SecretFile(str(path))


async def delivered(options: WebhookOptions, *, again: bool = False) -> Delivery:
    receiver = WebhookReceiver(options)
    try:
        return await receiver.deliver(ONE, again=again)
    finally:
        receiver.release()


# --- one request


async def test_a_message_is_signed_and_named_so_that_the_receiver_knows_it_again(
    receiving: Receiving, tmp_path: Path
) -> None:
    options = WebhookOptions(
        url=receiving.url, key=secret(tmp_path, "k3y\n"), token=secret(tmp_path, "t0ken", "token"), timeout=PATIENCE
    )
    assert (await delivered(options)).result is Result.DELIVERED
    (request,) = receiving.requests
    assert (request.path, request.body) == ("/hook?team=gpu", ONE.body.encode())
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["Idempotency-Key"] == ONE.key
    assert request.headers["Authorization"] == "Bearer t0ken"
    stamp = request.headers["X-Gpuwarden-Timestamp"]
    assert abs(float(stamp) - time.time()) < PATIENCE
    signed = hmac.new(b"k3y", f"{stamp}.".encode() + request.body, hashlib.sha256).hexdigest()
    assert request.headers["X-Gpuwarden-Signature"] == f"sha256={signed}"


ANSWERS: dict[int, Result] = {
    **dict.fromkeys((200, 201, 202, 204), Result.DELIVERED),
    **dict.fromkeys((400, 404, 410, 413, 422), Result.REFUSED),
    **dict.fromkeys((401, 403, 301, 302, 307, 308), Result.BARRED),
    **dict.fromkeys((408, 409, 425, 429, 500, 502, 503, 504), Result.LATER),
}


@pytest.mark.parametrize(("status", "result"), ANSWERS.items())
async def test_what_each_answer_means(receiving: Receiving, status: int, result: Result) -> None:
    receiving.answer = status
    receiving.more = {"Location": f"http://127.0.0.1:{receiving.port}/elsewhere"}
    delivery = await delivered(WebhookOptions(url=receiving.url, timeout=PATIENCE))
    assert delivery.result is result
    assert (str(status) in delivery.text) == (result is not Result.DELIVERED)
    assert [request.path for request in receiving.requests] == ["/hook?team=gpu"]


async def test_a_conflict_after_an_earlier_attempt_means_delivered(receiving: Receiving) -> None:
    receiving.answer = 409
    options = WebhookOptions(url=receiving.url, timeout=PATIENCE)
    assert (await delivered(options, again=True)).result is Result.DELIVERED


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [("7", 7, 7), ("Fri, 31 Dec 2199 23:59:59 GMT", 240, 240), ("99999999", 240, 240), ("-3", 0, 0), ("soon", 0, 0)],
)
async def test_a_wish_to_wait_is_heeded_within_bounds(
    receiving: Receiving, text: str, least: float, most: float
) -> None:
    receiving.answer, receiving.more = 429, {"Retry-After": text}
    assert least <= (await delivered(WebhookOptions(url=receiving.url, timeout=PATIENCE))).after <= most


@contextmanager
def serving(answer: Callable[[socket.socket], None], tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """A server that does with each connection what `answer` does, once it was asked something."""
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            try:
                with tls.wrap_socket(connection, server_side=True) if tls else connection as talk:
                    request = b""
                    while not request.endswith(ONE.body.encode()) and (more := talk.recv(65_536)):
                        request += more
                    answer(talk)
                    over.wait(PATIENCE if answer is silence else 0.0)
            except OSError:
                continue

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            over.set()
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def silence(_: socket.socket) -> None:
    pass


def trickle(talk: socket.socket) -> None:
    while True:
        talk.send(b"H")
        time.sleep(0.02)


def half_closed(talk: socket.socket) -> None:
    talk.sendall(b"HTTP/1.1 2")
    talk.shutdown(socket.SHUT_WR)


MISBEHAVIOUR: dict[str, Callable[[socket.socket], None]] = {
    "it accepts and never answers": silence,
    "it answers a byte now and then": trickle,
    "it hangs up without an answer": lambda talk: talk.shutdown(socket.SHUT_RDWR),
    "it closes its half in the middle of its first line": half_closed,
    "it resets the connection": lambda talk: talk.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"),
    "it speaks no HTTP": lambda talk: talk.sendall(b"220 mail.example ESMTP\r\n"),
    "its headers have no end": lambda talk: talk.sendall(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000),
}


@pytest.mark.parametrize("answer", MISBEHAVIOUR.values(), ids=MISBEHAVIOUR)
async def test_a_server_that_misbehaves_is_tried_again_later(answer: Callable[[socket.socket], None]) -> None:
    with serving(answer) as port:
        quick = 0.2 if answer in (silence, trickle) else PATIENCE
        delivery = await delivered(WebhookOptions(url=f"http://127.0.0.1:{port}/", timeout=quick))
    assert delivery.result is Result.LATER
    assert "no response" in delivery.text


async def test_where_nobody_listens_it_is_tried_again_later() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert (await delivered(WebhookOptions(url=f"http://127.0.0.1:{port}/"))).result is Result.LATER


async def test_a_certificate_counts_only_if_it_is_trusted_and_of_that_name(tmp_path: Path) -> None:
    authority, other = trustme.CA(), trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(tls)
    for ca, name in ((authority, "own.pem"), (other, "other.pem")):
        ca.cert_pem.write_to_path(tmp_path / name)
    with serving(lambda talk: talk.sendall(b"HTTP/1.1 204 No Content\r\n\r\n"), tls) as port:

        async def to(host: str, ca: str) -> Delivery:
            return await delivered(WebhookOptions(url=f"https://{host}:{port}/", ca=tmp_path / ca, timeout=PATIENCE))

        assert (await to("localhost", "own.pem")).result is Result.DELIVERED
        for host, trusted in (("localhost", "other.pem"), ("127.0.0.1", "own.pem")):
            delivery = await to(host, trusted)
            assert (delivery.result, "not trusted" in delivery.text) == (Result.BARRED, True)


async def test_no_secret_is_in_the_text_of_a_result(receiving: Receiving, tmp_path: Path) -> None:
    receiving.answer = 500
    url = secret(tmp_path, f"http://127.0.0.1:{receiving.port}/services/T0PS3CRET", "url")
    options = WebhookOptions(url_file=url, key=secret(tmp_path, "k3y"), timeout=PATIENCE)
    later = await delivered(options)
    (tmp_path / "url").write_text("https://user:T0PS3CRET@host/T0PS3CRET")
    odd = await delivered(options)
    missing = await delivered(WebhookOptions(url=receiving.url, key=SecretFile("nocredential")))
    assert (later.result, odd.result, missing.result) == (Result.LATER, Result.BARRED, Result.BARRED)
    assert "T0PS3CRET" not in f"{later}{odd}{options}"
    assert receiving.requests[0].path == "/services/T0PS3CRET"


# --- message after message


@asynccontextmanager
async def delivering(receiver: Receiver, most: float = 0.02) -> AsyncIterator[DeliveryWorker]:
    worker = DeliveryWorker(TARGET, receiver, first=0.01, most=most)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def put(worker: DeliveryWorker, *numbers: int) -> None:
    for n in numbers:
        worker.put(Message(f"finding/{n}", f"key{n}", json.dumps({"n": n})))


def keys(receiving: Receiving) -> list[str]:
    return [request.headers["Idempotency-Key"] for request in receiving.requests]


async def test_everything_is_delivered_once_and_in_order_whatever_errors_occur(receiving: Receiving) -> None:
    receiving.answers = [500, 429, 409, 503, 200, 403, 403, 200, 404]
    async with delivering(WebhookReceiver(WebhookOptions(url=receiving.url, timeout=PATIENCE))) as worker:
        put(worker, *range(6))
        await until(lambda: worker.state.counts.total() and not worker.queue and not worker.state.error)
        put(worker, 6, 7)
        await until(lambda: len(receiving.requests) == 13 and not worker.queue)
        assert list(dict.fromkeys(keys(receiving))) == [f"key{n}" for n in range(8)]
        counts = worker.state.counts
        assert (counts[Result.DELIVERED], counts[Result.REFUSED], counts[Result.BARRED]) == (7, 1, 2)
        assert receiving.connections <= 8  # one more after each attempt that came to nothing


async def test_a_message_that_the_receiver_cannot_take_does_not_keep_the_others_for_ever(receiving: Receiving) -> None:
    receiving.fails_on = b'{"n": 1}'
    async with delivering(WebhookReceiver(WebhookOptions(url=receiving.url, timeout=PATIENCE))) as worker:
        put(worker, *range(5))
        await until(lambda: worker.state.counts[Result.DELIVERED] == 4)
        assert list(dict.fromkeys(keys(receiving))) == [f"key{n}" for n in range(5)]
        assert len(worker.queue) == 1
        receiving.fails_on = None
        await until(lambda: not worker.queue)


async def test_a_refused_login_keeps_the_queue_and_is_reported_until_it_is_fixed(receiving: Receiving) -> None:
    receiving.answer = 401
    async with delivering(WebhookReceiver(WebhookOptions(url=receiving.url))) as worker:
        put(worker, 1, 2, 3)
        await until(lambda: worker.state.counts[Result.BARRED] >= 3)
        assert (len(worker.queue), "401" in worker.state.barred) == (3, True)
        receiving.answer = 200
        await until(lambda: not worker.queue)
        assert (worker.state.barred, worker.state.error) == ("", "")


async def test_a_receiver_that_was_away_gets_the_present_state_of_each_subject_when_it_is_back(
    receiving: Receiving,
) -> None:
    receiving.answer = 503
    async with delivering(WebhookReceiver(WebhookOptions(url=receiving.url, timeout=PATIENCE))) as worker:
        for n in range(3_000):
            worker.put(Message(f"finding/{n % 3}", f"key{n}", "{}"))
        await until(lambda: len(worker.queue) == 3)
        receiving.requests.clear()
        receiving.answer = 200
        await until(lambda: not worker.queue)
        assert set(keys(receiving)) >= {"key2997", "key2998", "key2999"}
        assert worker.queue.dropped + worker.state.counts[Result.DELIVERED] == 3_000


async def test_a_stop_delivers_what_waits(receiving: Receiving) -> None:
    worker = DeliveryWorker(TARGET, WebhookReceiver(WebhookOptions(url=receiving.url, timeout=PATIENCE)))
    put(worker, *range(20))
    worker.finish()
    await asyncio.wait_for(worker.run(), PATIENCE)
    assert (keys(receiving), len(worker.queue)) == ([f"key{n}" for n in range(20)], 0)


async def test_a_stop_tries_a_receiver_that_fails_once_more_without_its_pause(receiving: Receiving) -> None:
    receiving.answer, receiving.more = 503, {"Retry-After": "200"}
    worker = DeliveryWorker(TARGET, WebhookReceiver(WebhookOptions(url=receiving.url, timeout=PATIENCE)))
    put(worker, 1, 2)
    task = asyncio.create_task(worker.run())
    await until(lambda: worker.state.counts[Result.LATER] == 1)
    worker.finish()
    await asyncio.wait_for(task, PATIENCE)
    assert (worker.state.counts[Result.LATER], len(worker.queue)) == (2, 2)


async def test_a_connection_that_the_server_closed_meanwhile_costs_no_message_and_no_pause(
    receiving: Receiving,
) -> None:
    receiver = WebhookReceiver(WebhookOptions(url=receiving.url, timeout=PATIENCE))
    assert (await receiver.deliver(ONE, again=False)).result is Result.DELIVERED
    assert receiver._line is not None
    receiver._line.connection.sock.shutdown(socket.SHUT_RDWR)
    assert (await receiver.deliver(ONE, again=False)).result is Result.DELIVERED
    receiver.release()
    assert receiving.connections == 2


# --- programs


def script(folder: Path, text: str) -> tuple[str, ...]:
    path = folder / "notify"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return (str(path), "a text; $(touch never)")


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ('[ "$(cat)" = \'{"format":1,"text":"GPU 3 gone: ü"}\' ]', Result.DELIVERED),
        ("exit 75", Result.LATER),
        ("kill -9 $$", Result.LATER),
        ("sleep 1000 & sleep 1000", Result.LATER),
        ("echo no such team >&2; exit 3", Result.REFUSED),
        ("exit 127", Result.BARRED),
        ("yes | head -c 1000000; true", Result.DELIVERED),
    ],
)
async def test_what_a_program_s_end_means(tmp_path: Path, text: str, result: Result) -> None:
    timeout = 0.3 if "sleep" in text else PATIENCE
    receiver = ProgramReceiver(NotifyProgram(command=script(tmp_path, text), timeout=timeout))
    delivery = await receiver.deliver(ONE, again=False)
    assert delivery.result is result, delivery.text
    assert ("no such team" in delivery.text) == ("no such team" in text)
    assert not Path("never").exists()


# --- messages


def test_a_finding_that_was_raised_is_sent_with_what_to_do_and_its_runbook() -> None:
    origin = Origin(node="n1", mode="observe", boot_id="b", runbooks="https://wiki.example.org/gpus")
    key = Key("gpu_missing", gpu("0000:4e:00.0"))
    made = [
        message(Event(kind=kind, at=Stamp(1.0, 2.0), boot_id="b", key=key, data={"advice": "inspect_hardware"}), origin)
        for kind in (EventKind.RAISED, EventKind.CLEARED)
    ]
    raised, cleared = (json.loads(each[1].body) for each in made if each is not None)
    assert raised["title"] == CONDITIONS["gpu_missing"].title
    assert raised["to_do"].startswith("Drain the node and power-cycle the machine.")
    assert raised["runbook"] == "https://wiki.example.org/gpus/GpuwardenGpuMissing.md"
    assert not {"title", "to_do", "runbook"} & set(cleared)


def test_each_return_without_a_test_is_notified() -> None:
    origin = Origin(node="n1", mode="enforce", boot_id="b")
    data = write(Gate(failures="xid.79@gpu/0000:42:00.0", result=GateResult.VOID, text="no libcuda"))
    made = [
        message(Event(kind=EventKind.GATE_ENDED, at=Stamp(wall, wall), boot_id="b", data=data), origin)
        for wall in (1.0, 2.0)
    ]
    sent = [json.loads(each[1].body) for each in made if each is not None]
    assert [(each["event"], each["group"], each["subject"]) for each in sent] == [
        ("gate_ended", "exclusion", "exclusion/gate")
    ] * 2
    assert [(each["data"]["result"], each["data"]["text"]) for each in sent] == [("void", "no libcuda")] * 2
    assert sent[0]["id"] != sent[1]["id"]


def test_messages_are_bounded_and_name_their_subject() -> None:
    origin = Origin(node="n1", mode="observe", boot_id="b")
    data = {f"field{n}": "x" * 5_000 for n in range(60)}
    notification = message(Event(kind=EventKind.RAISED, at=Stamp(1.0, 2.0), boot_id="b", data=data), origin)
    assert notification is not None
    assert len(notification[1].body) < 16_384
    assert message(Event(kind=EventKind.RISING, at=Stamp(1.0, 2.0), boot_id="b"), origin) is None
