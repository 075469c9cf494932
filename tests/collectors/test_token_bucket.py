"""How often something may be done."""

from __future__ import annotations

from gpuwarden_collectors.token_bucket import TokenBucket


def test_a_bucket_gives_a_burst_and_then_a_rate() -> None:
    bucket = TokenBucket(3, 0.5, 100.0)
    assert [bucket.wait(100.0) for _ in range(5)] == [0.0, 0.0, 0.0, 0.5, 0.5]
    assert [bucket.wait(101.0) for _ in range(3)] == [0.0, 0.0, 0.5]
    assert [bucket.wait(1000.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]


def test_without_an_interval_there_is_no_limit() -> None:
    assert not any(TokenBucket(0, 0.0, 0.0).wait(1.0) for _ in range(5))
