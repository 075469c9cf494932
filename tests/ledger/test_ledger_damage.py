"""Whatever is damaged in a ledger: it is set aside and begun again, or the loss is reported. Nothing is lost without a report."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuwarden.health.model import EventKind
from gpuwarden.ledger.ledger import Ledger
from gpuwarden.ledger.seal import SUFFIX, path_of, read
from support.commands import gpuwarden
from support.ledger_damage import latched, reopened, set_meta, spoilt, written
from support.ledgers import HERE, PATIENCE
from support.quick import first_quick

ROUNDS = 150


def kept(folder: Path) -> Path:
    return folder / "kept/ledger.db"


def set_aside(path: Path) -> bool:
    return any(path.parent.glob("ledger.db.corrupt-*"))


def _schema_text(path: Path) -> None:
    data = path.read_bytes()
    at = data.index(b"CREATE TABLE events")
    path.write_bytes(data[:at] + b"CREATE TABLE ev\xffnts" + data[at + 19 :])


def _name_of_a_table(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"tablemetameta", b"tablem\xfftameta"))


def _row(path: Path) -> None:
    data = path.read_bytes()
    at = data.index(b"uncontained")
    path.write_bytes(data[:at] + b"incontained" + data[at + 11 :])


def _version(path: Path) -> None:
    set_meta(path, "schema", "9.0")


def _no_version(path: Path) -> None:
    set_meta(path, "schema", "")


@pytest.mark.parametrize("ruin", [_schema_text, _name_of_a_table, _row, _version, _no_version])
async def test_damage_that_sqlite_does_not_find_is_found_and_the_ledger_set_aside(
    tmp_path: Path, ruin: Callable[[Path], None]
) -> None:
    await written(tmp_path, running=False)
    ruin(kept(tmp_path))
    reopening = await reopened(tmp_path / "kept")
    assert reopening.memory is not None
    assert reopening.memory.begun
    assert "was corrupt: it was moved aside" in reopening.error
    assert set_aside(kept(tmp_path))
    assert not (await reopened(tmp_path / "kept")).error


@pytest.mark.slow
@pytest.mark.parametrize("running", [False, True])
async def test_random_damage_never_forgets_a_latch_in_silence(tmp_path: Path, running: bool) -> None:
    await written(tmp_path, running=running)
    for number in range(ROUNDS):
        folder, damage = spoilt(tmp_path, number)
        reopening = await reopened(folder)
        assert reopening.memory is not None, f"damage {number}, {damage}: {reopening.error}"
        assert latched().key in reopening.state.tracks or reopening.error, (
            f"damage {number}, {damage}: forgotten in silence"
        )
        shutil.rmtree(folder)


async def test_a_ledger_of_before_the_seal_opens_and_is_sealed(tmp_path: Path) -> None:
    await written(tmp_path, running=False)
    path_of(kept(tmp_path)).unlink()
    assert not (await reopened(tmp_path / "kept")).error
    assert read(kept(tmp_path)) is not None


@pytest.mark.parametrize("number", first_quick(8, range(20)))
async def test_random_damage_to_a_ledger_without_a_seal_ends_in_a_ledger(tmp_path: Path, number: int) -> None:
    await written(tmp_path, running=False)
    path_of(kept(tmp_path)).unlink()
    folder, damage = spoilt(tmp_path, number)
    reopening = await reopened(folder)
    assert reopening.memory is not None, f"{damage}: {reopening.error}"
    assert reopening.state is not None


async def test_a_latch_is_not_in_the_log_alone(tmp_path: Path) -> None:
    await written(tmp_path, running=True)
    log = kept(tmp_path).with_name("ledger.db-wal")
    log.write_bytes(b"\xa5" * log.stat().st_size)
    assert latched().key in (await reopened(tmp_path / "kept")).state.tracks


async def test_a_missing_end_is_reported_and_what_is_left_is_kept(tmp_path: Path) -> None:
    await written(tmp_path, running=False)
    before = shutil.copytree(tmp_path / "kept", tmp_path / "before") / "ledger.db"
    ledger = Ledger(kept(tmp_path), machine=HERE, boot_id="b1")
    await ledger.open(PATIENCE)
    ledger.append([latched(2)] * 3)
    assert await ledger.close(PATIENCE)
    shutil.copy(path_of(kept(tmp_path)), path_of(before))
    reopening = await reopened(before.parent)
    assert latched().key in reopening.state.tracks
    assert "lost its last 3 events" in reopening.error
    assert reopening.memory is not None
    assert any(event.kind == EventKind.LEDGER_LOST for event in reopening.memory.events)
    assert not (await reopened(before.parent)).error


async def test_an_emptied_ledger_is_no_new_one(tmp_path: Path) -> None:
    await written(tmp_path, running=False)
    kept(tmp_path).write_bytes(b"")
    assert "lost its last" in (await reopened(tmp_path / "kept")).error


async def test_a_ledger_that_a_person_removed_is_begun_without_an_error(tmp_path: Path) -> None:
    await written(tmp_path, running=False)
    kept(tmp_path).unlink()
    assert not (await reopened(tmp_path / "kept")).error


@pytest.mark.parametrize("content", [b"", b"\x00" * 40, b"{", b'{"schema": 1}', b"[" * 5000, b'{"era": 1e400}'])
async def test_an_unreadable_seal_is_no_evidence_of_a_loss(tmp_path: Path, content: bytes) -> None:
    await written(tmp_path, running=False)
    path_of(kept(tmp_path)).write_bytes(content)
    reopening = await reopened(tmp_path / "kept")
    assert (reopening.error, latched().key in reopening.state.tracks) == ("", True)


@pytest.mark.parametrize("ruin", first_quick(1, [_schema_text, _name_of_a_table]))
@pytest.mark.parametrize("command", [("exclusions",), ("events",)])
async def test_the_command_line_reports_the_fault_in_one_line(
    tmp_path: Path, ruin: Callable[[Path], None], command: tuple[str, ...]
) -> None:
    await written(tmp_path, running=False)
    ruin(kept(tmp_path))
    done = gpuwarden(*command, "--state-dir", tmp_path / "kept", temporary=tmp_path)
    assert (done.returncode, done.stdout) == (69, "")
    assert "is corrupt" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_seal_lies_beside_the_ledger(tmp_path: Path) -> None:
    assert path_of(tmp_path / "ledger.db").name == f"ledger.db{SUFFIX}"


@pytest.mark.parametrize(
    ("key", "value"), [("era", "7"), ("era", "0"), ("machine", '{"dmi": "another", "machine_id": "b"}')]
)
async def test_a_damaged_name_or_era_is_no_other_machine(tmp_path: Path, key: str, value: str) -> None:
    await written(tmp_path, running=False)
    set_meta(kept(tmp_path), key, value)
    assert "was corrupt: it was moved aside" in (await reopened(tmp_path / "kept")).error
