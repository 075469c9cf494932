"""The daemon's end of the helper: whatever answers, or does not, costs bounded time and leads to one result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpuwarden.base.services import NoAnswer, NotBegun
from gpuwarden.features.repair import client
from gpuwarden.features.repair.client import LINE_MOST, PROBE_WITHIN, Result, probe, request, result
from gpuwarden.features.repair.helper.gpus import DRIVER_WITHIN, HOST_WITHIN
from gpuwarden.features.repair.helper.services import ASK_WITHIN
from gpuwarden.features.repair.model import Outcome, Step, StepKind

REBOOT = Step(StepKind.REBOOT)
WITHIN = 30.0


@asynccontextmanager
async def answering(path: Path, answer: bytes, *, hangs: bool = False) -> AsyncIterator[Path]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(answer)
        if hangs:
            await reader.read()
        writer.close()

    server = await asyncio.start_unix_server(serve, path)
    try:
        yield path
    finally:
        server.close()


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (b'{"progress": "a"}\n{"progress": "b"}\n{"done": true, "text": "ok"}\n', Result(Outcome.DONE, "ok")),
        (b'{"done": false, "refused": true, "why": "MIG is on"}\n', Result(Outcome.REFUSED, "MIG is on")),
        (b'{"done": false, "refused": false, "why": "exit 255"}\n', Result(Outcome.FAILED, "exit 255")),
        (b'{"done": false}\n', Result(Outcome.FAILED, "")),
        (b'{"done": false, "refused": "yes", "why": 7}\n', Result(Outcome.FAILED, "")),
        (b'{"progress": 7}\n{"done": true}\n', Result(Outcome.DONE, "")),
    ],
)
async def test_what_came_of_a_step(tmp_path: Path, answer: bytes, result: Result) -> None:
    said: list[str] = []
    async with answering(tmp_path / "s", answer) as path:
        assert await request(path, "t0", REBOOT, WITHIN, progress=said.append, reason="r") == result
    assert said == (["a", "b"] if b"progress" in answer and result.text else [])


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"\n", b"no JSON\n", b"[1, 2]\n", b"\xff\xfe\n", b'{"progress": "a"}\n', b'{"done": tru', b"[" * 50_000 + b"\n",
        b"x" * (2 * LINE_MOST),
    ],
)  # fmt: skip
async def test_what_is_no_answer_is_not_taken_for_one(tmp_path: Path, answer: bytes) -> None:
    async with answering(tmp_path / "s", answer) as path:
        with pytest.raises(NoAnswer) as error:
            await request(path, "t0", REBOOT, WITHIN, progress=lambda _: None)
        assert not isinstance(error.value, NotBegun), "it may have been done"


async def test_a_helper_that_hangs_costs_its_time_and_no_more(tmp_path: Path) -> None:
    async with answering(tmp_path / "s", b'{"progress": "a"}\n', hangs=True) as path:
        with pytest.raises(NoAnswer, match="has not answered"):
            await request(path, "t0", REBOOT, 0.2, progress=lambda _: None)


async def test_without_a_helper_nothing_was_sent(tmp_path: Path) -> None:
    with pytest.raises(NotBegun, match="does not exist: systemctl enable --now"):
        await request(tmp_path / "s", "t0", REBOOT, WITHIN, progress=lambda _: None)
    (tmp_path / "file").touch()
    with pytest.raises(NotBegun, match="cannot use"):
        await request(tmp_path / "file", "t0", REBOOT, WITHIN, progress=lambda _: None)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (b'{"state": "running"}\n', None),
        (b'{"state": "done"}\n', Outcome.DONE),
        (b'{"state": "failed"}\n', Outcome.FAILED),
        (b'{"state": "refused"}\n', Outcome.REFUSED),
        (b'{"state": "unknown"}\n', Outcome.REFUSED),
        (b'{"state": 7}\n', Outcome.UNKNOWN),
    ],
)
async def test_what_it_did(tmp_path: Path, answer: bytes, outcome: Outcome | None) -> None:
    async with answering(tmp_path / "s", answer) as path:
        assert (await result(path, "t0")).outcome is outcome


async def test_what_it_can_do_and_why_not_the_rest(tmp_path: Path) -> None:
    answer = b'{"able": ["reboot", 7], "unable": {"reset_gpu": "nvidia-smi is\\u001b missing"}}\n'
    async with answering(tmp_path / "s", answer) as path:
        host = await probe(path)
    assert host == client.Probed(able=frozenset({"reboot"}), unable={"reset_gpu": "nvidia-smi is  missing"})
    async with answering(tmp_path / "t", b'{"able": null, "unable": []}\n') as path:
        assert await probe(path) == client.Probed()


def test_the_daemon_waits_for_a_probe_longer_than_the_helper_for_a_driver_that_hangs() -> None:
    killed = 2 * 3.0
    assert DRIVER_WITHIN + killed + HOST_WITHIN + ASK_WITHIN < PROBE_WITHIN
