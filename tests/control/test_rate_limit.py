"""Who announces ends without end is held up, nobody else is, and time gives back what was used."""

from __future__ import annotations

from gpuwarden.control.rate_limit import BURST, EVERY, USERS_MOST, Pushes
from gpuwarden_collectors.facts import Stamp


class Hand:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> Stamp:
        return Stamp(self.now, self.now)


def test_each_user_has_an_allowance_that_time_gives_back() -> None:
    clock = Hand()
    pushes = Pushes(clock)
    assert [pushes.wait(1_000) for _ in range(BURST)] == [0.0] * BURST
    assert pushes.wait(1_000) == EVERY
    assert pushes.wait(0) == 0.0, "another one's"
    clock.now += EVERY / 2
    assert pushes.wait(1_000) == EVERY / 2, "who asks in vain loses nothing by it"
    clock.now += EVERY / 2
    assert (pushes.wait(1_000), pushes.wait(1_000) > 0.0) == (0.0, True)
    clock.now += 86_400.0
    assert sum(pushes.wait(1_000) == 0.0 for _ in range(2 * BURST)) == BURST


def test_many_users_are_forgotten_but_the_one_that_asks_all_the_time_is_not() -> None:
    pushes = Pushes(Hand())
    taken = 0
    for uid in range(10 * USERS_MOST):
        taken += pushes.wait(1_000_000) == 0.0
        pushes.wait(uid)
    assert taken == BURST
