"""Where a message of HTTP ends: what is read by us in short is what h11 reads, however it is cut into pieces."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.features.dstack.framing import Head, Incoming, NotHttp, Outgoing

HEADERS = (
    b"Host: localhost", b"User-Agent: python-requests/2.34", b"Accept: */*", b"Connection: keep-alive", b"connection: close",
    b"Content-Length: 3", b"content-length:0", b"Content-Length: 12", b"Transfer-Encoding: chunked", b"Upgrade: websocket",
    b"Expect: 100-continue", b"X-Long: " + b"x" * 300, b"Connection: Upgrade", b" folded", b"Odd", b"Content-Length: -1",
)  # fmt: skip
BODIES = (b"", b"abc", b"3\r\nabc\r\n0\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\r\n")
REQUESTS = (
    b"GET /api/instance/health HTTP/1.1", b"GET / HTTP/1.0", b"POST /x HTTP/1.1", b"HEAD / HTTP/1.1", b"GET  / HTTP/1.1", b"odd",
)  # fmt: skip
STATUSES = (
    b"HTTP/1.1 200 OK",
    b"HTTP/1.1 404 Not Found",
    b"HTTP/1.0 200 OK",
    b"HTTP/1.1 204 None",
    b"HTTP/1.1 200 ",
    b"odd",
)


def message(first: bytes, headers: list[bytes], body: bytes) -> bytes:
    return b"\r\n".join([first, *headers, b"", body])


messages = st.builds(
    message, st.sampled_from(REQUESTS), st.lists(st.sampled_from(HEADERS), max_size=5), st.sampled_from(BODIES)
)
answers = st.builds(
    message, st.sampled_from(STATUSES), st.lists(st.sampled_from(HEADERS), max_size=5), st.sampled_from(BODIES)
)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    offsets = sorted({min(cut, len(data)) for cut in cuts})
    return [data[a:b] for a, b in zip([0, *offsets], [*offsets, len(data)], strict=True) if a < b]


def followed(reader: Incoming | Outgoing, parts: list[bytes]) -> tuple[object, ...]:
    """Complete or not, whether more may come on the connection, and how many bytes are beyond it."""
    for number, part in enumerate(parts):
        rest = reader.feed(part)
        if reader.complete:
            return True, reader.keeps, len(rest) + sum(map(len, parts[number + 1 :]))
    return False, None, 0


class ByTheLibrary(Incoming):
    def _plain(self, data: bytes) -> int:
        return 0


class AnswerByTheLibrary(Outgoing):
    def _plain(self, data: bytes) -> int:
        return 0


@given(messages, st.lists(st.integers(0, 400), max_size=3))
def test_a_request_ends_where_h11_ends_it_whatever_its_pieces(data: bytes, cuts: list[int]) -> None:
    try:
        wanted = followed(ByTheLibrary(), [data])
    except NotHttp:
        return  # gpuwarden may take it for HTTP: it is passed on in either case
    assert followed(Incoming(), pieces(data, cuts)) == wanted


@given(answers, st.lists(st.integers(0, 400), max_size=3), st.sampled_from([b"GET", b"HEAD", b"POST"]))
def test_a_response_ends_where_h11_ends_it_whatever_its_pieces(data: bytes, cuts: list[int], method: bytes) -> None:
    head = Head(method, b"/")
    try:
        wanted = followed(AnswerByTheLibrary(head), [data])
    except NotHttp:
        return
    assert followed(Outgoing(head), pieces(data, cuts)) == wanted


def test_the_plain_ones_are_read_without_h11() -> None:
    request = Incoming()
    assert request.feed(message(REQUESTS[0], [HEADERS[0], HEADERS[3]], b"next")) == b"next"
    assert (request._parser, request.head) == (None, Head(b"GET", b"/api/instance/health"))
    answer = Outgoing(Head(b"GET", b"/"), collect=True)
    assert answer.feed(message(STATUSES[0], [b"X: 1", HEADERS[5]], b"abcHTTP")) == b"HTTP"
    assert (answer._parser, bytes(answer.body), answer.headers) == (
        None,
        b"abc",
        ((b"X", b"1"), (b"Content-Length", b"3")),
    )


def test_an_answer_that_is_cut_off_is_none() -> None:
    for status in STATUSES[:2]:
        answer = Outgoing(Head(b"GET", b"/"))
        answer.feed(message(status, [HEADERS[5]], b"ab"))
        with pytest.raises(h11.RemoteProtocolError):
            answer.feed(b"")
