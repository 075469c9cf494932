"""`events`: from the daemon, from the ledger it left, and as they occur."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.features.active_test.judging.lease import LEASE
from gpuwarden.health.model import Event, EventKind, Evidence, Key, Subject, gpu
from gpuwarden.ledger.store import Entry, Store
from gpuwarden.publish.status import event
from gpuwarden_collectors.facts import Stamp
from support.commands import COMMAND, environment, gpuwarden
from support.control_server import result, serving

SLOT = "0000:4e:00.0"


def raised(wall: float, xid: int = 79, text: str = "fallen off the bus") -> Event:
    key = Key("xid", gpu(SLOT), str(xid))
    data: Evidence = {"text": text, "severity": "failure", "first_wall": 1.5, "advice": ""}
    return Event(kind=EventKind.RAISED, at=Stamp(5.0, wall), boot_id="a-boot", key=key, data=data)


def test_events_come_from_the_daemon_in_its_order_and_with_what_a_person_needs(tmp_path: Path) -> None:
    served = [event(raised(1_800_000_000.5)), event(Event(kind="boot", at=Stamp(1, 1_700_000_000), boot_id="b"))]
    with serving(tmp_path / "run", lambda _: result(served)) as asked:
        done = gpuwarden("events", "--run-dir", tmp_path / "run", "--since", "2026-01-31T08:00Z", temporary=tmp_path)
    assert asked == [{"verb": "events", "since": 1769846400.0, "limit": 10_000, "newest": True}]
    assert done.stdout.splitlines() == [
        f"2027-01-15 08:00:00 UTC  raised         xid.79@gpu/{SLOT}  text=fallen off the bus severity=failure",
        "2023-11-14 22:13:20 UTC  boot           -",
    ]


def test_json_is_one_event_on_a_line_with_everything(tmp_path: Path) -> None:
    served = [event(raised(1_800_000_000.5)), event(raised(1_800_000_001, 94))]
    with serving(tmp_path / "run", lambda _: result(served)):
        done = gpuwarden("events", "--json", "--run-dir", tmp_path / "run", temporary=tmp_path)
    assert [json.loads(line) for line in done.stdout.splitlines()] == served


def test_what_the_judge_only_remembers_is_left_out_of_the_text(tmp_path: Path) -> None:
    at = Stamp(5.0, 1_800_000_000.0)
    remembered = [
        event(Event(kind=kind, at=at, boot_id="b", key=key))
        for kind, key in (
            (EventKind.HOST_LEARNED, Key("host", Subject("board", part="GPU-1"))),
            (EventKind.HOST_FORGOTTEN, Key("host", Subject("job", part="4242"))),
            (EventKind.COUNTED, Key("nvlink_link_errors", gpu(SLOT))),
            (EventKind.COUNTED, Key("infiniband_flapping", Subject("port", part="mlx5_0/1"))),
        )
    ]
    port = event(
        Event(kind=EventKind.HOST_LEARNED, at=at, boot_id="b", key=Key("host", Subject("port", part="mlx5_0/1")))
    )
    data: Evidence = {"level": "quick", "workers": "1 2"}
    again = event(Event(kind=EventKind.TEST_BEGUN, at=at, boot_id="b", key=LEASE, data=data))
    with serving(tmp_path / "run", lambda _: result([*remembered, again, port])):
        text = gpuwarden("events", "--run-dir", tmp_path / "run", temporary=tmp_path)
        everything = gpuwarden("events", "--json", "--run-dir", tmp_path / "run", temporary=tmp_path)
    assert text.stdout.split()[3:] == ["host_learned", "host@port/mlx5_0/1"]
    assert len(everything.stdout.splitlines()) == 6


def test_text_of_events_cannot_move_the_cursor(tmp_path: Path) -> None:
    with serving(tmp_path / "run", lambda _: result([event(raised(1.0, text="\x1b[31m\n"))])):
        done = gpuwarden("events", "--run-dir", tmp_path / "run", temporary=tmp_path)
    assert "text=\\x1b[31m\\n " in done.stdout


def test_more_events_than_are_asked_for_are_not_passed_over_in_silence(tmp_path: Path) -> None:
    served = [event(raised(1.0))] * 10_000
    with serving(tmp_path / "run", lambda _: result(served)):
        done = gpuwarden("events", "--run-dir", tmp_path / "run", temporary=tmp_path)
    assert "only the newest 10000 events" in done.stderr


def ledger(state_dir: Path, *events: Event) -> None:
    state_dir.mkdir()
    store = Store.open(state_dir / "ledger.db", now=time.time())
    store.append([Entry(events=events)])
    store.close()


def test_the_last_ones_can_be_asked_for(tmp_path: Path) -> None:
    served = [event(raised(1_800_000_000.0 + n, xid)) for n, xid in enumerate((94, 95, 79))]
    with serving(tmp_path / "run", lambda _: result(served)):
        for option in ("--last", "--limit"):
            done = gpuwarden("events", option, "2", "--json", "--run-dir", tmp_path / "run", temporary=tmp_path)
            assert [json.loads(line) for line in done.stdout.splitlines()] == served[1:]
    refused = gpuwarden("events", "--last", "0", temporary=tmp_path)
    assert (refused.returncode, "expected a whole number from 1 to 10000" in refused.stderr) == (64, True)


def test_the_last_ones_are_those_of_a_ledger_of_more_events_than_are_read(tmp_path: Path) -> None:
    now = time.time()
    ledger(tmp_path / "state", *(raised(now - 60 + n / 1000, n) for n in range(10_001)))
    words = ("events", "--state-dir", tmp_path / "state", "--last", "1", "--json")
    done = gpuwarden(*words, temporary=tmp_path)
    assert json.loads(done.stdout)["id"] == f"xid.10000@gpu/{SLOT}"
    assert done.stderr == ""


@pytest.mark.slow
def test_a_ledger_that_is_named_is_read_and_not_changed(tmp_path: Path) -> None:
    now = time.time()
    ledger(tmp_path / "state", raised(now - 7200, 48), raised(now - 60))
    before = {file.name: file.read_bytes() for file in (tmp_path / "state").iterdir()}
    words = ("events", "--run-dir", tmp_path / "run", "--state-dir", tmp_path / "state", "--since", "1h", "--json")
    with serving(tmp_path / "run", lambda _: result([])) as asked:
        done = gpuwarden(*words, temporary=tmp_path)
    assert asked == []
    assert done.stderr == ""
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [f"xid.79@gpu/{SLOT}"]
    assert {file.name: file.read_bytes() for file in (tmp_path / "state").iterdir()} == before


@pytest.mark.slow
def test_without_a_daemon_they_come_from_the_ledger_of_the_configuration(tmp_path: Path) -> None:
    ledger(tmp_path / "state", raised(time.time()))
    more = {"GPUWARDEN_STATE__DIR": str(tmp_path / "state")}
    assert SLOT in gpuwarden("events", "--run-dir", tmp_path, temporary=tmp_path, more=more).stdout
    wrong = gpuwarden("events", "--run-dir", tmp_path, temporary=tmp_path, more={"GPUWARDEN_STATE__DIR": "state"})
    assert wrong.returncode == 69
    assert "GPUWARDEN_STATE__DIR: state.dir: expected an absolute path" in wrong.stderr


@pytest.mark.slow
def test_with_neither_daemon_nor_ledger_both_are_named(tmp_path: Path) -> None:
    more = {"GPUWARDEN_STATE__DIR": str(tmp_path)}
    done = gpuwarden("events", "--run-dir", tmp_path, temporary=tmp_path, more=more)
    assert done.returncode == 69
    assert f"no daemon answers at {tmp_path}/control.sock, and cannot use ledger {tmp_path}/ledger.db" in done.stderr


@pytest.mark.slow
def test_following_prints_each_event_once_also_when_the_clock_was_set_back_or_the_daemon_restarted(
    tmp_path: Path,
) -> None:
    now = time.time()
    served: list[dict[str, Any]] = [event(raised(now, 1))]
    command = [*COMMAND, "events", "--follow", "--json", "--run-dir", str(tmp_path / "run")]
    variables = environment(tmp_path, {"GPUWARDEN_STATE__DIR": str(tmp_path)})
    with (
        serving(tmp_path / "run", lambda _: result(served)),
        subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as follower,
    ):
        try:
            assert follower.stdout is not None
            numbers = (json.loads(line)["id"] for line in follower.stdout)
            assert next(numbers) == f"xid.1@gpu/{SLOT}"
            served += [event(raised(now + 1, 2)), event(raised(now - 5, 3))]
            assert [next(numbers), next(numbers)] == [f"xid.2@gpu/{SLOT}", f"xid.3@gpu/{SLOT}"]
            (tmp_path / "run/control.sock").rename(tmp_path / "run/away")
            time.sleep(1.5)
            served += [event(raised(now + 2, 4))]
            (tmp_path / "run/away").rename(tmp_path / "run/control.sock")
            assert next(numbers) == f"xid.4@gpu/{SLOT}"
        finally:
            follower.kill()
