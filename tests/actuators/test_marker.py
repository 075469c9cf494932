"""The marker: a file that names who is excluded, written, read back and removed; nothing that is not gpuwarden's is touched."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import time
from pathlib import Path

import pytest

from gpuwarden.actuators.base import ActuatorRefused, ActuatorUnavailable
from gpuwarden.actuators.marker import MarkerActuator
from gpuwarden.actuators.registry import NoCounter
from gpuwarden.policy.model import Act, Intent, NodeState, Owner, Why
from gpuwarden.policy.preconditions import same
from gpuwarden.policy.reasons import operator, termination, unknown
from gpuwarden_collectors.facts import Stamp
from support.enforcement_rig import Rig
from support.policy_story import xid
from support.schedulers import Cluster, Node

BOOT, EARLIER = "1b4e28ba-2fa1-11d2-883f-0016d3cca427", "9e107d9d-372b-4826-881d-8f2a1c6b7e55"
NOW = Stamp(1_000.0, 1_772_366_400.25)
FAILED = "gpuwarden: failure gpu=3 xid=79 row_remap_failed"


def marker(path: Path, boot: str = BOOT, node: str = "n1", *, over_boots: bool = False) -> MarkerActuator:
    counter = NoCounter(node, allowed=True)
    return MarkerActuator(
        "file", path, node=node, boot_id=boot, counter=counter, clock=lambda: NOW, over_boots=over_boots
    )


def intent(act: Act = Act.EXCLUDE, why: Why = Why.FAILURE, reason: str = FAILED) -> Intent:
    return Intent(act=act, actuator="file", why=why, reason=reason, key="k", at=NOW)


async def applied(actuator: MarkerActuator, order: Intent) -> NodeState:
    await actuator.apply(order, await actuator.read())
    return await actuator.read()


@pytest.mark.parametrize(
    ("why", "reason", "cause", "check"),
    [
        (Why.FAILURE, FAILED, "failure", "xid"),
        (Why.FAILURE, "gpuwarden: failure dcgm_nvswitch", "failure", "dcgm_nvswitch"),
        (Why.FAILURE, unknown(["nvml"]), "unknown", ""),
        (Why.FAILURE, unknown(["nvml"], "8f3c6a1e.0"), "unknown", ""),
        (Why.TERMINATION, termination(BOOT, "i-0af01c23"), "termination", ""),
        (Why.OPERATOR, operator("alice", "rack move"), "person", ""),
    ],
)
async def test_a_marker_reads_back_as_it_was_written_with_its_reason(
    tmp_path: Path, why: Why, reason: str, cause: str, check: str
) -> None:
    path = tmp_path / "out"
    node_state = await applied(marker(path), intent(why=why, reason=reason))
    assert (node_state.owner, node_state.why, node_state.reason) == (Owner.OURS, why, reason)
    assert same(reason, NOW.wall, node_state)
    text = path.read_text()
    assert (text.count("\n"), stat.S_IMODE(path.stat().st_mode)) == (1, 0o644)
    written = json.loads(text)
    assert written == {
        "format": 1, "node": "n1", "actuator": "file", "cause": cause, "reason": reason, "check": check,
        "since": "2026-03-01T12:00:00.250Z", "boot_id": BOOT, "owner": "gpuwarden",
    }  # fmt: skip
    assert (await applied(marker(path), intent(Act.RESTORE))).owner is Owner.NONE
    assert list(tmp_path.iterdir()) == []


FOREIGN: dict[str, bytes] = {
    "a note": b"rack move, do not touch\n",
    "empty": b"",
    "half of a marker": b'{"format":1,"node":"n1"',
    "another node's": json.dumps({"format": 1, "owner": "gpuwarden", "actuator": "file", "node": "n2", "reason": FAILED,
                                  "since": "2026-03-01T12:00:00Z", "boot_id": BOOT}).encode(),
    "a reason that would drive a terminal": json.dumps({"format": 1, "owner": "gpuwarden", "actuator": "file", "node": "n1",
                                  "reason": f"{FAILED}\x1b[2J", "since": "2026-03-01T12:00:00Z", "boot_id": BOOT}).encode(),
    "not our reason": json.dumps({"format": 1, "owner": "gpuwarden", "actuator": "file", "node": "n1", "reason": "x",
                                  "since": "2026-03-01T12:00:00Z", "boot_id": BOOT}).encode(),
    "a later format": json.dumps({"format": 2, "owner": "gpuwarden"}).encode(),
    "deep": b"[" * 10_000,
    "large": b" " * 100_000,
    "bytes": bytes(range(256)),
}  # fmt: skip


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
async def test_what_somebody_else_wrote_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "out"
    path.write_bytes(content)
    actuator = marker(path)
    for operation in (
        actuator.read(),
        actuator.apply(intent(), NodeState(at=NOW)),
        actuator.apply(intent(Act.RESTORE), NodeState(at=NOW)),
    ):
        with pytest.raises(ActuatorRefused, match="is not a marker of this node"):
            await operation
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", ["folder", "link", "nowhere", "loop"])
async def test_a_place_that_cannot_hold_one_is_for_a_person_to_mend(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "out"
    if kind == "folder":
        path.mkdir()
    elif kind == "nowhere":
        path = tmp_path / "away" / "out"
    else:
        (tmp_path / "other").write_text("theirs")
        path.symlink_to("out" if kind == "loop" else "other")
    actuator = marker(path)
    with pytest.raises(ActuatorRefused):
        await actuator.apply(intent(), NodeState(at=NOW))
    assert kind != "link" or (tmp_path / "other").read_text() == "theirs"
    assert not (tmp_path / "away").exists()


async def test_a_folder_in_its_place_is_reported_as_no_marker_and_uses_up_no_descriptors(tmp_path: Path) -> None:
    """A container engine makes one where a file that is to be mounted does not exist; it is read for as long as the daemon runs."""
    path = tmp_path / "out"
    path.mkdir()
    actuator = marker(path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        with pytest.raises(ActuatorRefused, match="is not a marker of this node"):
            await actuator.read()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert path.is_dir()


async def test_a_missing_folder_does_not_mean_that_the_exclusion_was_lifted(tmp_path: Path) -> None:
    """A file system that was unmounted; a folder that gpuwarden creates itself may be missing."""
    with pytest.raises(ActuatorRefused, match="No such file or directory; check the folder"):
        await marker(tmp_path / "away" / "out").read()
    counter = NoCounter("n1", allowed=True)
    own = MarkerActuator(
        "dstack", tmp_path / "away" / "dstack", node="n1", boot_id=BOOT, counter=counter, clock=lambda: NOW, make_folder=True
    )  # fmt: skip
    assert (await own.read()).owner is Owner.NONE


@pytest.mark.needs("root")
async def test_where_anybody_may_write_only_what_belongs_to_us_counts(tmp_path: Path) -> None:
    path, actuator = tmp_path / "out", marker(tmp_path / "out")
    await applied(actuator, intent())
    os.chown(path, 1, 1)
    assert (await actuator.read()).owner is Owner.OURS  # a server of files may give what root writes to nobody
    tmp_path.chmod(0o1777)
    for forged in (
        actuator.read(),
        actuator.apply(intent(), NodeState(at=NOW)),
        actuator.apply(intent(Act.RESTORE), NodeState(at=NOW)),
    ):
        with pytest.raises(ActuatorRefused, match=f"belongs to user 1, .* chmod o-w {tmp_path}"):
            await forged
    assert path.exists()


async def test_a_marker_of_an_earlier_boot_is_void_only_where_readers_know_the_boot(
    tmp_path: Path,
) -> None:
    path = tmp_path / "out"
    await applied(marker(path, EARLIER), intent())
    assert (await marker(path).read()).owner is Owner.NONE
    kept = await marker(path, over_boots=True).read()
    assert (kept.owner, kept.reason) == (Owner.OURS, FAILED)
    again = await applied(marker(path), intent(reason="gpuwarden: failure gpu_missing"))
    assert again.reason == "gpuwarden: failure gpu_missing"
    assert json.loads(path.read_text())["boot_id"] == BOOT


async def test_responders_of_other_users_can_read_the_marker_under_any_umask_of_the_daemon(tmp_path: Path) -> None:
    """The responders for dstack and ft_launcher run as other users; the daemon's unit has a umask of 077."""
    path = tmp_path / "excluded" / "file"
    actuator = MarkerActuator(
        "file",
        path,
        node="n1",
        boot_id=BOOT,
        counter=NoCounter("n1", allowed=True),
        clock=lambda: NOW,
        make_folder=True,
    )
    before = os.umask(0o077)
    try:
        await applied(actuator, intent())
    finally:
        os.umask(before)
    assert [stat.S_IMODE(it.stat().st_mode) for it in (path.parent, path)] == [0o755, 0o644]


async def test_a_reader_sees_all_of_it_or_nothing(tmp_path: Path) -> None:
    path, actuator = tmp_path / "out", marker(tmp_path / "out")
    seen = set()
    for number in range(50):
        writing = asyncio.ensure_future(
            actuator.apply(intent(reason=f"gpuwarden: failure gpu={number}"), NodeState(at=NOW))
        )
        while not writing.done():
            await asyncio.sleep(0)
            if path.exists():
                seen.add(json.loads(path.read_text())["owner"])
        await writing
    assert seen <= {"gpuwarden"}


async def test_a_file_system_that_hangs_holds_nobody_up_and_no_second_call_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A FIFO in place of the folder's file would not hang it; a thread that waits represents a dead file system."""
    monkeypatch.setattr("gpuwarden.actuators.marker_file.RESPONSE_WITHIN", 0.05)
    actuator = marker(tmp_path / "out")
    reading, writing = os.pipe()
    with pytest.raises(ActuatorUnavailable, match="does its file system hang"):
        await actuator._file._thread("read", lambda: os.read(reading, 1))
    with pytest.raises(ActuatorUnavailable, match="an earlier call to its file system has not returned"):
        await actuator.read()
    os.write(writing, b"x")
    assert actuator._file._working is not None
    await actuator._file._working
    assert (await actuator.read()).owner is Owner.NONE
    os.close(reading)
    os.close(writing)


async def test_a_fifo_is_no_marker_and_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "out")
    with pytest.raises(ActuatorRefused):
        await marker(tmp_path / "out").read()


async def test_what_is_held_and_refused_ever_since_is_a_finding_and_no_secret() -> None:
    """A node that was renamed finds the marker of another; the scheduler accounts for it."""
    rig = Rig(Cluster(time.time, {"n1": Node()}))
    rig.enforcement.run()
    rig.passes(xid())
    await rig.until(lambda: rig.state.holds and not rig.state.pending)
    rig.client.away = ActuatorRefused("out is not a marker of this node")
    await rig.until(lambda: "fake: out is not a marker of this node" in rig.enforcement.error())
    rig.client.away = None
    await rig.until(lambda: not rig.enforcement.error())
    await rig.kill()
