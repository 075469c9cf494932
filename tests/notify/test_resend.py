"""What lasts is sent again after a start, and not by every start of a loop; a stop waits for no receiver that hangs."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from gpuwarden.config.notify import NotifyOptions, WebhookOptions
from gpuwarden.health.model import Event, EventKind
from gpuwarden.health.state import State
from gpuwarden.notify.messages import Origin
from gpuwarden.notify.notifications import RESENT, Notifications
from gpuwarden.notify.resend import SPACING, Spacing, lasting
from gpuwarden_collectors.facts import Stamp
from support.receiving import Receiving

NOW = Stamp(50.0, 2_000_000.0)


def event(kind: str, **data: str) -> Event:
    return Event(kind=kind, at=NOW, boot_id="b", data=data)


def test_health_that_is_bad_exclusions_and_announced_ends_last() -> None:
    checkpoint = [
        event(EventKind.HEALTH, to="healthy"), event(EventKind.HEALTH, to="unknown"), event(EventKind.HEALTH, to="failure"),
        event(EventKind.HELD, actuator="slurm"), event(EventKind.NOTICED, source="aws", id="i"), event(EventKind.BOOT),
    ]  # fmt: skip
    assert [lasting_event.kind for lasting_event in lasting(checkpoint)] == ["health", "excluded", "noticed"]


@pytest.mark.parametrize(
    ("ago", "over"), [(0.0, False), (SPACING - 1.0, False), (SPACING, True), (-5.0, True)], ids=str
)
def test_one_daemon_in_ten_minutes_sends_again(tmp_path: Path, ago: float, *, over: bool) -> None:
    mark = tmp_path / RESENT
    mark.touch()
    os.utime(mark, (NOW.wall - ago, NOW.wall - ago))
    assert Spacing(mark).over(NOW) is over


def test_a_daemon_that_may_not_send_again_at_its_start_does_so_later(tmp_path: Path) -> None:
    Spacing(tmp_path / RESENT).sent()
    wall = (tmp_path / RESENT).stat().st_mtime
    spacing = Spacing(tmp_path / RESENT)
    assert [spacing.over(Stamp(50.0, wall + later)) for later in (1.0, SPACING + 1.0)] == [False, True]


def test_a_daemon_that_began_to_send_again_goes_on_and_a_folder_that_is_not_there_holds_nobody_up(
    tmp_path: Path,
) -> None:
    spacing = Spacing(tmp_path / "nowhere" / RESENT)
    spacing.sent()
    assert spacing.over(NOW)
    other = Spacing(tmp_path / RESENT)
    other.sent()
    assert other.over(NOW)
    wall = (tmp_path / RESENT).stat().st_mtime
    assert not Spacing(tmp_path / RESENT).over(replace(NOW, wall=wall))


def notifications(url: str, folder: Path) -> Notifications:
    options = NotifyOptions(webhook={"pager": WebhookOptions(url=url)})
    return Notifications(options, Origin(node="n1", mode="enforce", boot_id="b"), folder)


async def test_what_had_a_message_since_the_start_is_not_sent_again(tmp_path: Path) -> None:
    """There are two exclusions, and this run made one of them."""
    held = [event(EventKind.HELD, actuator=name) for name in ("slurm", "file")]
    with Receiving() as receiving:
        sending = notifications(receiving.url, tmp_path)
        sending.send([event(EventKind.EXCLUDED, actuator="slurm")], State(boot_id="b"))
        sending.run(lambda: held)
        for _ in range(3):
            sending.send((), State(boot_id="b"))
        await sending.stop(60.0)
        assert [body["subject"] for body in receiving.bodies()] == ["exclusion/slurm", "exclusion/file"]
        assert sending.shown()[0].queued == 0


async def test_a_stop_leaves_a_receiver_that_hangs_to_itself(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:  # it accepts, and reads nothing
        sending = notifications(f"http://127.0.0.1:{listening.getsockname()[1]}/", tmp_path)
        sending.run(list)
        sending.send([event(EventKind.HEALTH, to="failure")], State(boot_id="b"))
        await asyncio.sleep(0)
        await sending.stop(0.1)
        assert sending.shown()[0].queued == 1
