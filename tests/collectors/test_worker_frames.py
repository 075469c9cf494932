"""Frames cut out of a stream of bytes."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_collectors.worker.frames import MAX_PAYLOAD, FrameBuffer, FrameError, Kind, pack

MESSAGES = st.lists(st.tuples(st.sampled_from(Kind), st.integers(0, 2**32 - 1), st.text() | st.none()))


@given(MESSAGES, st.integers(1, 50))
def test_frames_come_out_whole_however_the_stream_is_cut(
    messages: list[tuple[Kind, int, str | None]], size: int
) -> None:
    stream = b"".join(pack(*message) for message in messages)
    buffer = FrameBuffer()
    frames = [frame for at in range(0, len(stream), size) for frame in buffer.feed(stream[at : at + size])]
    assert [(frame.kind, frame.sequence, frame.value()) for frame in frames] == messages


@given(st.lists(st.binary()))
def test_bytes_that_are_no_frames_are_refused_or_waited_on(chunks: list[bytes]) -> None:
    buffer = FrameBuffer()
    with contextlib.suppress(FrameError):
        for chunk in chunks:
            buffer.feed(chunk)


def test_half_a_frame_is_none_yet() -> None:
    frame = pack(Kind.ASK, 7)
    buffer = FrameBuffer()
    assert buffer.feed(frame[:-1]) == []
    assert [each.sequence for each in buffer.feed(frame[-1:])] == [7]


def test_a_frame_that_would_be_too_long_is_refused_at_both_ends() -> None:
    with pytest.raises(FrameError, match="is longer than"):
        pack(Kind.FACTS, 1, "x" * MAX_PAYLOAD)
    header = bytes([Kind.FACTS, 0, 0, 0, 1]) + (MAX_PAYLOAD + 1).to_bytes(4, "big")
    with pytest.raises(FrameError, match="no frame starts with"):
        FrameBuffer().feed(header)


def test_a_message_that_is_no_json_is_refused() -> None:
    with pytest.raises(TypeError):
        pack(Kind.FACTS, 1, object())
