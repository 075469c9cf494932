"""Messages that wait for delivery: bounded, and of everything the latest state stays."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.notify.queue import BYTES_MOST, MESSAGES_MOST, Message, MessageQueue


def put(queue: MessageQueue, subjects: list[int], size: int = 10) -> None:
    for n, subject in enumerate(subjects):
        queue.put(Message(f"finding/{subject}", f"{n}", "x" * size))


def waiting(queue: MessageQueue) -> list[Message]:
    """Return the waiting messages, and empty the queue."""
    messages = []
    while (message := queue.head()) is not None:
        messages.append(message)
        queue.done(message)
    return messages


@settings(deadline=None, max_examples=60)
@given(subjects=st.lists(st.integers(0, 5), max_size=120), most=st.integers(6, 40))
def test_it_is_bounded_and_the_latest_of_each_subject_stays_in_order(subjects: list[int], most: int) -> None:
    queue = MessageQueue(messages_most=most)
    put(queue, subjects)
    assert len(queue) <= most
    left, dropped = waiting(queue), queue.dropped
    assert len(left) + dropped == len(subjects)
    latest = {f"finding/{subject}": f"{n}" for n, subject in enumerate(subjects)}
    assert {message.subject: message.key for message in left} == latest
    numbers = [int(message.key) for message in left]
    assert numbers == sorted(numbers)
    if len(subjects) <= most:
        assert dropped == 0


def test_where_nothing_is_superseded_the_oldest_go() -> None:
    queue = MessageQueue(messages_most=4)
    put(queue, list(range(6)))
    assert ([message.key for message in waiting(queue)], queue.dropped) == (["2", "3", "4", "5"], 2)


def test_an_hour_of_the_largest_messages_takes_no_more_memory_than_the_bound() -> None:
    queue = MessageQueue()
    put(queue, [n % 500 for n in range(6_000)], size=16_000)
    left = waiting(queue)
    assert sum(len(message.body) for message in left) <= BYTES_MOST
    assert [message.key for message in left] == [str(n) for n in range(6_000 - len(left), 6_000)]


def test_many_small_messages_are_bounded_by_their_number() -> None:
    queue = MessageQueue()
    put(queue, list(range(3 * MESSAGES_MOST)), size=1)
    assert (len(queue), queue.dropped) == (MESSAGES_MOST, 2 * MESSAGES_MOST)


def test_a_message_that_was_dropped_while_it_was_delivered_takes_no_other_with_it() -> None:
    queue = MessageQueue(messages_most=2)
    put(queue, [0, 1])
    taken = queue.head()
    assert taken is not None
    put(queue, [2])
    queue.done(taken)
    assert [message.subject for message in waiting(queue)] == ["finding/1", "finding/2"]
