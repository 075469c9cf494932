"""`gpuwarden bundle` as people run it, without a daemon: one archive, whole or not at all, which says what is missing in it."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuwarden.features.bundle.archive import WORK
from gpuwarden.health.model import EventKind
from support.bundling import (
    FINDING,
    LINE,
    SERIAL,
    SLOT,
    USUAL,
    Archive,
    BundleHost,
    happened,
    only_archive,
    pinned,
    raised,
)
from support.commands import COMMAND, SMALL_FILES, environment, gpuwarden
from support.control_server import result, serving
from support.daemons import FakeHost, slots
from support.quick import first_quick

UNKNOWN = "xid.48@gpu/0000:99:00.0"


@pytest.fixture
def host(tmp_path: Path) -> BundleHost:
    host = BundleHost(tmp_path)
    host.remember(pinned(), raised(meaning="Uncontained memory error"), happened(EventKind.RESET, age=10.0))
    return host


@pytest.mark.slow
def test_one_archive_has_all_that_can_be_got_without_a_daemon(host: BundleHost) -> None:
    done = host.bundle()
    assert done.returncode == 0, done.stderr
    (file,) = host.archives
    assert done.stdout.splitlines()[:3] == [
        f"{file} ({file.stat().st_size / (1 << 20):.1f} MiB)",
        f"sha256: {hashlib.sha256(file.read_bytes()).hexdigest()}",
        f"about: {FINDING}",
    ]
    archive = only_archive(host)
    assert archive.manifest["findings"] == [FINDING]
    (board,) = json.loads(archive.read("boards.json"))
    identity = {key: board[key] for key in ("slot", "serial", "part", "vbios", "inforom", "gsp", "module")}
    assert identity == {
        "slot": SLOT, "serial": SERIAL, "part": "692-2G520-0200-000", "vbios": "96.00.5E.00.01", "inforom": "G520.0200.00.05",
        "gsp": "550.54.15", "module": "5",
    }  # fmt: skip
    assert archive.read("kernel.txt") == f"[    5.000000] {LINE}\n"
    assert "Xid 95: Uncontained memory error" in archive.read("xids.txt")
    events = [json.loads(line) for line in archive.read("events.jsonl").splitlines()]
    listed = gpuwarden("events", "--json", "--state-dir", host.state_dir, temporary=host.folder)
    assert events == [json.loads(line) for line in listed.stdout.splitlines()]
    for page in (archive.read("index.html"), archive.read("rma.txt")):
        assert SERIAL in page
        assert "Xid 95: Uncontained memory error" in page
        assert LINE in page.replace("&gt;", ">")
    states = {name: archive.state(name)[0] for name in archive.files}
    assert {name for name, state in states.items() if state == "missing"} == {
        "status.json", "inventory.json", "black-box", "dcgm-health.json", "dcgm-diagnostics.log",
    }  # fmt: skip
    assert "no daemon answers" in archive.state("status.json")[1]
    assert archive.state("dcgm-health.json")[1] == "dcgmi is not installed"
    for name in ("status.json", "black-box", "dcgm-health.json"):
        assert f"missing: {name}: " in done.stdout


@pytest.mark.parametrize(
    ("more", "name"),
    first_quick(1, [(("--output", "named.archive"), "named.archive"), (("--json",), None), ((FINDING,), None)]),
)
def test_name_and_answer_are_as_asked(host: BundleHost, more: tuple[str, ...], name: str | None) -> None:
    words = [str(host.out / word) if word == name else word for word in more]
    done = host.bundle(*words)
    assert done.returncode == 0, done.stderr
    (file,) = host.archives
    assert name in (None, file.name)
    if "--json" in more:
        made = json.loads(done.stdout)
        assert (made["file"], made["findings"]) == (str(file), [FINDING])
        assert made["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--output", "{taken}"), 73, "exists already: name another file, or remove it"),
        (("--output", "{folder}/none/file"), 73, "cannot write the archive to"),
        ((UNKNOWN,), 64, f"no finding '{UNKNOWN}' is in the ledger"),
        (("x" * 500,), 64, "expected the id of a finding, found 500 characters"),
    ],
)
def test_what_cannot_be_made_is_said_at_once_and_leaves_nothing(
    host: BundleHost, words: tuple[str, ...], code: int, said: str
) -> None:
    taken = host.folder / "taken"
    taken.write_text("mine")
    done = host.bundle(*(word.format(taken=taken, folder=host.folder) for word in words))
    assert done.returncode == code
    assert said in done.stderr
    assert (taken.read_text(), host.archives) == ("mine", [])


def test_of_several_findings_those_that_do_not_exist_are_named_and_the_archive_is_about_the_others(
    host: BundleHost,
) -> None:
    done = host.bundle(FINDING, UNKNOWN)
    assert done.returncode == 0, done.stderr
    assert f"about: {FINDING}\nnot found: {UNKNOWN} is not in the ledger\n" in done.stdout
    assert len(host.archives) == 1


def test_where_none_of_the_findings_exists_those_in_force_are_named(host: BundleHost) -> None:
    done = host.bundle(UNKNOWN, "xid.1@node")
    assert (done.returncode, host.archives) == (64, [])
    assert f"no finding '{UNKNOWN}' or 'xid.1@node' is in the ledger. In force: {FINDING}." in done.stderr


@pytest.mark.slow
def test_a_full_disk_is_an_error_and_leaves_nothing(host: BundleHost) -> None:
    command = (*SMALL_FILES, *COMMAND)
    words = ("bundle", "--config", str(host.config), "--output", str(host.out))
    path = {"PATH": f"{host.bin}:/usr/bin:/bin"}
    done = gpuwarden(*words, temporary=host.folder, more=path, command=command)
    assert done.returncode == 73, done.stderr
    assert f"cannot write the archive to {host.out}: File too large" in done.stderr
    assert host.archives == []


@pytest.mark.slow
def test_without_a_ledger_a_configuration_and_every_program_it_is_made_all_the_same(tmp_path: Path) -> None:
    host = BundleHost(tmp_path, programs={})
    for program in host.bin.iterdir():
        if program.name not in ("sh", "gzip"):
            program.unlink()
    host.config.write_text("mode = nonsense")
    done = host.bundle("--state-dir", host.state_dir, "--run-dir", host.folder / "run")
    assert done.returncode == 0, done.stderr
    assert "note: zstd is not installed: the archive is compressed with gzip" in done.stdout
    (file,) = host.archives
    assert file.name.endswith(".tar.gz")
    archive = only_archive(host)
    assert archive.state("configuration.toml") == ("missing", "it has faults (1): gpuwarden config check lists them")
    assert "ledger" in archive.state("events.jsonl")[1]
    assert archive.state("nvidia-smi-q.txt") == ("missing", "nvidia-smi is not installed")
    for said in (done.stdout, archive.read("index.html"), archive.read("rma.txt")):
        assert "neither the daemon nor the ledger could be read" in said
        assert not re.search(r"(?i)\bno(?:ne)?(?: failure)?(?: is)? in force", said)


@pytest.mark.slow
def test_a_requested_finding_that_only_an_unread_ledger_could_have_is_told_as_unknown(tmp_path: Path) -> None:
    host, run_dir = BundleHost(tmp_path), tmp_path / "run"
    status: dict[str, object] = {"findings": [], "gpus": []}
    with serving(run_dir, lambda asked: result(status if asked["verb"] == "status" else [])):
        done = host.bundle(FINDING, "--state-dir", tmp_path / "none", "--run-dir", run_dir)
    assert done.returncode == 0, done.stderr
    archive = only_archive(host)
    for said in (done.stdout, archive.read("index.html"), archive.read("rma.txt")):
        assert "the daemon no longer has what was requested, and the ledger could not be read" in said
        assert not re.search(r"(?i)\bno(?:ne)?(?: failure)?(?: is)? in force", said)


def test_ledger_and_black_box_are_those_of_the_daemon_that_answers(host: BundleHost) -> None:
    """An option or a variable of its unit names its state directory, which is not in the configuration read here."""
    status: dict[str, object] = {"findings": [], "gpus": [], "state_dir": str(host.state_dir)}
    run_dir = host.folder / "run"
    host.config.write_text(host.config.read_text().replace(str(host.state_dir), str(host.folder / "another")))
    with serving(run_dir, lambda asked: result(status if asked["verb"] == "status" else [])):
        done = host.bundle(FINDING)
    assert done.returncode == 0, done.stderr
    assert f"about: {FINDING}\n" in done.stdout
    assert FINDING in only_archive(host).read("events.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "inventory"),
    [({"findings": [{"name": "xid.95"}]}, []), ({"findings": {"xid.95": {}}}, ["GPU"]), ({"gpus": [7]}, {"gpus": 8}), ([], None)],
)  # fmt: skip
def test_a_daemon_of_another_version_costs_its_documents_alone(
    tmp_path: Path, status: object, inventory: object
) -> None:
    host, run_dir = BundleHost(tmp_path), tmp_path / "run"
    host.remember(pinned(), raised())
    with serving(run_dir, lambda asked: result(status if asked["verb"] == "status" else inventory)):
        done = host.bundle("--state-dir", host.state_dir, "--run-dir", run_dir)
    assert done.returncode == 0, done.stderr
    archive = only_archive(host)
    assert archive.manifest["findings"] == [FINDING]
    assert archive.state("status.json")[0] == "missing"
    assert "cannot be read by this version" in archive.state("status.json")[1]


@pytest.mark.slow
def test_a_damaged_ledger_and_a_refused_log_cost_their_parts_alone(host: BundleHost) -> None:
    ledger = host.state_dir / "ledger.db"
    ledger.write_bytes(b"\xff" * ledger.stat().st_size)
    (host.bin / "dmesg").unlink()
    (host.bin / "dmesg").write_text(
        "#!/bin/sh\necho 'dmesg: read kernel buffer failed: Operation not permitted' >&2\nexit 1\n"
    )
    (host.bin / "dmesg").chmod(0o755)
    done = host.bundle()
    assert done.returncode == 0, done.stderr
    archive = only_archive(host)
    state, why = archive.state("events.jsonl")
    assert (state, "ledger" in why) == ("missing", True)
    assert archive.state("nvidia-smi-q.txt")[0] == "complete"
    assert archive.state("dmesg.txt") == (
        "missing",
        "it wrote nothing: dmesg: read kernel buffer failed: Operation not permitted",
    )


@pytest.mark.slow
def test_one_that_was_killed_leaves_nothing_under_the_name_and_the_next_one_removes_what_it_left(
    tmp_path: Path,
) -> None:
    started = tmp_path / "started"
    host = BundleHost(tmp_path, {**USUAL, "nvidia-smi": f"echo > {started}\nexec sleep 600\n"})
    host.remember(raised())
    words = ["bundle", "--config", str(host.config), "--output", str(host.out)]
    killed = subprocess.Popen(
        [*COMMAND, *words], env=environment(host.folder, host.variables), stdout=subprocess.DEVNULL
    )
    try:
        _until(started.exists)
        (left,) = host.archives
        assert left.name.startswith(WORK)
    finally:
        killed.kill()
        killed.wait()
    (host.bin / "nvidia-smi").write_text("#!/bin/sh\necho\n")
    assert host.bundle().returncode == 0
    (file,) = host.archives
    assert file.suffix == ".zst"


@pytest.mark.slow
def test_one_that_is_terminated_removes_what_it_began_and_two_at_once_leave_each_other_alone(tmp_path: Path) -> None:
    started = tmp_path / "started"
    host = BundleHost(
        tmp_path, {**USUAL, "nvidia-smi": f"[ -e {started} ] && echo || {{ echo > {started}; exec sleep 600; }}\n"}
    )
    host.remember(raised())
    words = ["bundle", "--config", str(host.config), "--output", str(host.out)]
    first = subprocess.Popen(
        [*COMMAND, *words], env=environment(host.folder, host.variables), stderr=subprocess.PIPE, text=True
    )
    try:
        _until(started.exists)
        assert host.bundle().returncode == 0
        assert len(host.archives) == 2, "the folder of the first one is left alone"
        first.send_signal(signal.SIGTERM)
        _, said = first.communicate(timeout=150)
    finally:
        first.kill()
        first.wait()
    assert (first.returncode, "ended by SIGTERM: no archive was made" in said) == (143, True)
    (file,) = host.archives
    assert file.suffix == ".zst"
    Archive(file, tmp_path / "unpacked")


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
def test_with_a_daemon_it_has_its_status_and_a_failure_that_the_ledger_may_not_hold_yet(tmp_path: Path) -> None:
    made, host = BundleHost(_folder(tmp_path / "made")), FakeHost(_folder(tmp_path / "host"), gpus=2)
    with host.daemon() as daemon:
        host.xid(1, 95)
        daemon.wait(lambda: daemon.is_now("failure", "xid.95"), "the failure")
        words = ("bundle", "--config", str(host.config), "--output", str(made.out))
        done = gpuwarden(*words, temporary=tmp_path, more={**host.fake.environment, **made.variables})
    assert done.returncode == 0, done.stderr
    archive = only_archive(made)
    finding = f"xid.95@gpu/{slots(2)[1]}"
    assert archive.manifest["findings"] == [finding]
    assert [reported["id"] for reported in json.loads(archive.read("status.json"))["findings"]] == [finding]
    boards = {board["slot"]: board["serial"] for board in json.loads(archive.read("boards.json"))}
    assert set(slots(2)) <= {slot for slot, serial in boards.items() if serial}
    assert len(json.loads(archive.read("inventory.json"))) == 2


def _folder(path: Path) -> Path:
    path.mkdir()
    return path
