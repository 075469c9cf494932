"""The daemon's side of the service that tests before a return: whatever answers, or does not, costs bounded time and gives one line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.base.services import NoAnswer, NoService
from gpuwarden.features.active_test.gate.client import ANSWER_MOST, ask, shown

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def _asked(path: Path, serve: Serve, within: float = 20.0) -> Any:
    ends: list[asyncio.Task[None]] = []

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        ends.append(task)
        try:
            await serve(reader, writer)
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_unix_server(served, path)
    try:
        return await ask(path, {"verb": "test", "level": "gate"}, within)
    finally:
        server.close()
        await asyncio.wait(ends, timeout=20.0)
        await asyncio.sleep(0.05)


def sends(answer: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert json.loads(await reader.readline()) == {"verb": "test", "level": "gate"}
        writer.write(answer)
        await writer.drain()

    return serve


async def _silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read(-1)


async def _endless(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"x" * (1 << 20))
        await writer.drain()


async def test_a_document_is_what_it_answers(tmp_path: Path) -> None:
    assert await _asked(tmp_path / "s", sends(b'{"verdict": "warning"}')) == {"verdict": "warning"}


@pytest.mark.parametrize(
    "answer", [b"", b"[]", b"7", b"{", b"\xff\xfe", b"[" * 100_000, b"x" * (ANSWER_MOST + 1)], ids=lambda a: repr(a[:8])
)
async def test_what_is_no_document_is_no_answer(tmp_path: Path, answer: bytes) -> None:
    with pytest.raises(NoAnswer, match=r"gave no result; see the journal of gpuwarden-test@"):
        await _asked(tmp_path / "s", sends(answer))


@pytest.mark.parametrize(
    ("serve", "within", "why"), [(_silent, 0.3, "has not answered within"), (_endless, 60.0, "gave no")]
)
async def test_silence_ends_in_time_and_a_flood_by_its_size(
    tmp_path: Path, serve: Serve, within: float, why: str
) -> None:
    with pytest.raises(NoAnswer, match=why):
        await _asked(tmp_path / "s", serve, within)


async def test_a_socket_that_does_not_exist_is_told_from_one_that_refuses(tmp_path: Path) -> None:
    with pytest.raises(NoService, match=r"systemctl enable --now gpuwarden-test\.socket"):
        await ask(tmp_path / "s", {}, 5.0)
    server = await asyncio.start_unix_server(_silent, tmp_path / "s")
    server.close()
    await server.wait_closed()
    (tmp_path / "file").touch()
    with pytest.raises(NoAnswer) as refused:
        await ask(tmp_path / "file", {}, 5.0)
    assert not isinstance(refused.value, NoService)


@pytest.mark.parametrize(
    ("document", "line"),
    [
        ({}, "it gave no result"),
        ({"verdict": "nothing_found", "gpus": [{"index": 3, "text": ""}, {"index": 4}]}, "it found nothing on 2 GPUs"),
        ({"obstacle": "busy", "text": "another test runs"}, "busy: another test runs"),
        ({"gpus": [{"index": 3, "obstacle": "busy", "text": "pid 7"}, {"index": 4}]}, "GPU 3: busy: pid 7"),
        ({"gpus": [{"index": 3, "findings": [{"text": "memory: 1 wrong word"}]}]}, "GPU 3: memory: 1 wrong word"),
        ({"gpus": [{"index": n, "text": f"t{n}"} for n in range(5)]}, "GPU 0: t0; GPU 1: t1; GPU 2: t2 and 2 more"),
        ({"gpus": [7, {"findings": 3, "text": ["x"]}], "text": "y\nz"}, "y z"),
    ],
    ids=str,
)
def test_what_came_of_a_test_is_one_line_whatever_the_service_sends(document: dict[str, Any], line: str) -> None:
    assert shown(document) == line
