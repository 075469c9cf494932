"""The storage collector on mount tables, and on real mounts that are full, read-only, gone or hung."""

from __future__ import annotations

import os
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from gpuwarden_collectors.base import CollectorError, SourceAbsent
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.host_collectors.storage import StorageCollector
from gpuwarden_collectors.host_facts import MountFacts, StorageFacts
from gpuwarden_collectors.host_files import text_or_empty
from support import job_world
from support.hung_mounts import hung_mount
from support.mounts import remount, tmpfs
from support.trees import DATA

PROC = Path("/proc")
ANSWER = ("sh", "-c", "echo 4096 1000 500 400 100 60")
NUMBERS = {
    "bytes_total": 4096000, "bytes_free": 2048000, "bytes_available": 1638400, "inodes_total": 100, "inodes_free": 60,
}  # fmt: skip


def table(proc: Path, text: str) -> Path:
    (proc / "self").mkdir(exist_ok=True)
    (proc / "self/mountinfo").write_text(text, encoding="utf-8")
    return proc


def mounted(path: Path, *, options: str = "rw") -> str:
    return f"36 35 0:98 / {path} rw,noatime master:1 - xfs /dev/nvme1n1 {options}\n"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return table(tmp_path, (DATA / "storage/mountinfo").read_text())


def test_a_table_gives_exactly_the_mounts_that_hold_data(node: Path) -> None:
    def mount(path: str, kind: str, source: str) -> MountFacts:
        return MountFacts(path=path, type=kind, source=source, **NUMBERS)  # type: ignore[arg-type]  # all are int

    assert StorageCollector(node, command=ANSWER).read() == StorageFacts(
        mounts=(
            mount("/", "ext4", "/dev/nvme0n1p2"),  # read-only for a sandboxed service, and not itself
            mount("/dev/shm", "tmpfs", "tmpfs"),
            mount("/home", "nfs4", "nas01:/export/home"),
            mount("/lustre/My Data", "lustre", "10.0.1.2@o2ib:/fs1"),
            mount("/run", "tmpfs", "tmpfs"),
            mount("/scratch", "beegfs", "beegfs_nodev"),  # covers what was mounted there before
        )
    )


def test_expected_mounts_come_first_whatever_their_type(node: Path) -> None:
    expected = ["/boot/efi", "/data", "/shared/projects", "/home/", "/shared"]
    mounts = StorageCollector(node, expected=expected, command=ANSWER).read().mounts
    assert [(m.path, m.mounted, m.automount) for m in mounts if m.expected] == [
        ("/boot/efi", True, False),
        ("/data", False, False),
        ("/shared/projects", False, True),
        ("/home", True, False),
        ("/shared", False, True),
    ]
    assert [m.path for m in mounts[5:]] == ["/", "/dev/shm", "/lustre/My Data", "/run", "/scratch"]


def test_a_host_without_a_mount_table_has_no_source(tmp_path: Path) -> None:
    with pytest.raises(SourceAbsent, match="no mount table"):
        StorageCollector(tmp_path).read()


@pytest.mark.parametrize(
    "line",
    [
        "",
        "garbage",
        "36 35 98:0 / /data rw",
        "36 35 98:0 / /data rw - ",
        "x 35 98:0 / /data rw - xfs /dev/sda rw",
        "36 35 - xfs",
        "\0\0\0\0 - \0",
    ],
)
def test_a_line_of_another_form_is_no_mount(tmp_path: Path, line: str) -> None:
    assert StorageCollector(table(tmp_path, f"{line}\n"), command=ANSWER).read() == StorageFacts()


@pytest.mark.parametrize(
    ("written", "path"),
    [
        (rb"/a\040b", "/a b"),
        (rb"/a\134040", "/a\\040"),
        (rb"/\377\376", "/\\xff\\xfe"),
        (b"/\xff", "/\\xff"),
        ("/größe".encode(), "/größe"),
    ],
)
def test_a_path_in_odd_bytes_is_text(tmp_path: Path, written: bytes, path: str) -> None:
    table(tmp_path, "")
    (tmp_path / "self/mountinfo").write_bytes(b"36 35 98:0 / " + written + b" rw - xfs /dev/sda rw\n")
    assert [mount.path for mount in StorageCollector(tmp_path, command=ANSWER).read().mounts] == [path]


def test_beyond_the_limit_only_expected_mounts_are_asked(tmp_path: Path) -> None:
    lines = [f"{n} 1 0:{n} / /m{n:03} rw - xfs /dev/sd rw\n" for n in range(20)]
    collector = StorageCollector(table(tmp_path, "".join(lines)), expected=["/m019"], command=ANSWER, max_mounts=2)
    assert [mount.path for mount in collector.read().mounts] == ["/m019", "/m000", "/m001"]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ("echo 1 2 3", "the probe ended with 0"),
        ("echo 1 2 3 4 5 six", "the probe ended with 0"),
        ("yes | head -c 50000", "the probe ended with 0"),
        ("echo 4096 1000 500 400 100 60; exit 7", "4096 1000 500 400 100 60"),
        ("sleep 0.2 & echo nothing", "the probe ended with 0"),  # leaves something behind that holds its pipe
        ("echo 'stat: cannot read file system information: Stale file handle' >&2; exit 1", "Stale file handle"),
        ("kill -9 $$", "the probe ended with -9"),
    ],
)
def test_an_answer_that_is_none_is_an_error_of_that_mount(tmp_path: Path, answer: str, error: str) -> None:
    collector = StorageCollector(table(tmp_path, mounted(tmp_path)), command=("sh", "-c", answer), patience=30.0)
    assert [mount.error for mount in collector.read().mounts] == [error]


def test_only_an_expected_mount_is_at_fault_where_the_user_may_not_access_it(tmp_path: Path) -> None:
    # Below a folder that only its owner may enter, such as /var/lib/kubelet, and without CAP_DAC_READ_SEARCH.
    denies = ("sh", "-c", "echo 'stat: cannot read file system information: Permission denied'; exit 1")
    proc = table(tmp_path, mounted(tmp_path))
    (mount,) = StorageCollector(proc, command=denies).read().mounts
    assert (mount.asked, mount.error) == (False, "")
    (mount,) = StorageCollector(proc, command=denies, expected=[str(tmp_path)]).read().mounts
    assert (mount.asked, mount.error) == (True, "Permission denied")


def test_what_a_file_system_does_not_count_is_not_known(tmp_path: Path) -> None:
    """CephFS has no limit of inodes, and gives -1 for the free ones (Linux, fs/ceph/super.c; ceph-fuse, Client::statfs)."""
    command = ("sh", "-c", "echo 4194304 9 7 7 123 -1")
    (mount,) = StorageCollector(table(tmp_path, mounted(tmp_path)), command=command).read().mounts
    assert (mount.error, mount.bytes_available) == ("", 7 << 22)
    assert (mount.inodes_total, mount.inodes_free) == (123, None)


def test_a_probe_that_cannot_be_started_fails_the_pass(tmp_path: Path) -> None:
    with pytest.raises(CollectorError, match="/no/stat does not start: No such file"):
        StorageCollector(table(tmp_path, mounted(tmp_path)), command=("/no/stat",)).read()


def test_a_hanging_probe_is_aged_not_started_twice_and_its_late_response_is_used(tmp_path: Path) -> None:
    """The probe waits for a file here; further below a real mount hangs."""
    release, starts = tmp_path / "release", tmp_path / "starts"
    slow = f"echo >> {starts}; while [ ! -e {release} ]; do sleep 0.01; done; {ANSWER[2]}"
    minutes = count()
    collector = StorageCollector(
        table(tmp_path, mounted(tmp_path)), command=("sh", "-c", slow), patience=0.3,
        clock=lambda: Stamp(60.0 * next(minutes), 0.0),
    )  # fmt: skip
    assert [collector.read().mounts[0].hung_for for _ in range(3)] == [60.0, 120.0, 180.0]
    job_world.until(starts.exists, "the probe begins")
    assert starts.read_text() == "\n"
    release.touch()
    while (mount := collector.read().mounts[0]).hung_for is not None:
        pass
    assert (mount.bytes_total, mount.error) == (4096000, "")


def test_a_mount_that_hung_and_was_replaced_is_probed_again(tmp_path: Path) -> None:
    begins = f"{{ touch {tmp_path}/hangs; exec sleep 1000; }}"
    command = ("sh", "-c", f"[ -e {tmp_path}/release ] || {begins}; {ANSWER[2]}")
    proc = table(tmp_path, mounted(tmp_path))
    with closing(StorageCollector(proc, command=command, patience=0.3)) as collector:
        assert collector.read().mounts[0].hung_for is not None
        job_world.until((tmp_path / "hangs").exists, "the probe hangs")
        (tmp_path / "release").touch()
        assert collector.read().mounts[0].hung_for is not None
        table(tmp_path, mounted(tmp_path).replace("36 ", "37 ", 1))
        while (mount := collector.read().mounts[0]).hung_for is not None:
            pass
        assert mount.bytes_total == 4096000


def test_this_host_has_a_root_that_answers() -> None:
    (root,) = [mount for mount in StorageCollector(PROC, patience=60.0).read().mounts if mount.path == "/"]
    seen = os.statvfs("/")
    assert (root.bytes_total, root.inodes_total) == (seen.f_blocks * seen.f_frsize, seen.f_files)


# --- Real mounts ---------------------------------------------------------------------------------------------------


def facts_of(path: Path, collector: StorageCollector) -> MountFacts:
    (mount,) = [mount for mount in collector.read().mounts if mount.path == str(path)]
    return mount


@pytest.mark.disposable
def test_a_full_mount_is_seen_in_bytes_and_inodes(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "full", "64k,nr_inodes=4") as full:
        (full / "file").write_bytes(bytes(65536))
        mount = facts_of(full, StorageCollector(PROC, expected=[str(full)], patience=60.0))
    assert (mount.bytes_total, mount.bytes_available, mount.inodes_total, mount.inodes_free) == (65536, 0, 4, 2)


@pytest.mark.disposable
def test_a_file_system_that_became_read_only_is_seen_and_a_mount_of_it_that_is_does_not_count(
    tmp_path: Path,
) -> None:
    with tmpfs(tmp_path / "data", "64k") as data:
        collector = StorageCollector(PROC, expected=[str(data)], patience=60.0)
        remount(data, "bind,ro")
        assert not facts_of(data, collector).read_only
        remount(data, "ro")
        assert facts_of(data, collector).read_only


@pytest.mark.disposable
def test_a_mount_that_is_taken_away_is_missing(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "data", "64k") as data:
        collector = StorageCollector(PROC, expected=[str(data)], patience=60.0)
        assert facts_of(data, collector).mounted
    assert not facts_of(data, collector).mounted


@pytest.mark.parametrize(
    ("options", "read_only"),
    [
        ("rw", False),
        ("rw,errors=remount-ro", False),
        ("ro,errors=remount-ro", True),  # Linux up to 6.11, after an error
        ("rw,emergency_ro", True),  # from 6.15 on
        ("rw,shutdown", True),  # the disk is gone
    ],
)
def test_a_file_system_that_stopped_by_itself_takes_no_writes(tmp_path: Path, options: str, *, read_only: bool) -> None:
    node = table(tmp_path, mounted(Path("/data"), options=options))
    (mount,) = StorageCollector(node, expected=["/data"], command=ANSWER).read().mounts
    assert mount.read_only is read_only


def probes(mount: Path) -> set[str]:
    """The processes of the collector that probe this mount."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {pid for pid in children if f"\0{mount}\0" in text_or_empty(Path(f"/proc/{pid}/cmdline"))}


@pytest.mark.slow
@pytest.mark.disposable
@pytest.mark.parametrize("killable", [True, False])
def test_a_hung_mount_costs_one_process_and_keeps_no_other_from_answering(tmp_path: Path, *, killable: bool) -> None:
    with (
        closing(
            StorageCollector(PROC, expected=[str(tmp_path / n) for n in ("gone", "here")], patience=1.0)
        ) as collector,
        hung_mount(tmp_path / "gone", killable=killable) as gone,
        tmpfs(tmp_path / "here", "64k") as here,
    ):

        def read() -> dict[str, MountFacts]:
            return {mount.path: mount for mount in collector.read().mounts}

        for _ in range(3):
            while (mounts := read())[str(here)].hung_for is not None:
                pass  # on a machine so busy that it seemed to hang, too
            assert mounts[str(gone)].hung_for is not None
            assert mounts[str(here)].bytes_total == 65536
            assert len(probes(gone)) == 1
        collector.close()
        assert len(probes(gone)) == (0 if killable else 1)


@pytest.mark.disposable
def test_a_probe_outlives_its_mount_no_longer_than_it_must(tmp_path: Path) -> None:
    with closing(StorageCollector(PROC, expected=[str(tmp_path / "gone")], patience=0.5)) as collector:
        with hung_mount(tmp_path / "gone", killable=False) as gone:
            assert facts_of(gone, collector).hung_for is not None
        while probes(gone):
            assert not facts_of(gone, collector).mounted
