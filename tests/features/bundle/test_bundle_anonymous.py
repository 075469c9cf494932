"""--anonymise: no planted name is anywhere in the unpacked archive, and what a replacement needs is still there."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.features.bundle.names import Names
from gpuwarden.health.model import EventKind
from support.bundling import (
    FINDING,
    PRINTS_SMI,
    SERIAL,
    SLOT,
    USUAL,
    UUID,
    BundleHost,
    happened,
    only_archive,
    pinned,
    raised,
)
from support.traces import story, write

# Numbers of more than six digits: the manifest is full of digests, and given four digits are in one manifest of fifty.
PLANTED = (
    "gpu-17", "example", "alice", "secret-model", "llama-run", "team-a", "trainer-0", "192.0.2.77", "2001:db8::77", UUID, "471104711", "4194242", "python-of-bob",
)  # fmt: skip
NAMES = Names(["gpu-17.example", "gpu-17"], ["alice", "llama-run"], key=b"k" * 32)


@pytest.mark.slow
def test_no_planted_name_is_left_in_any_file_and_serial_numbers_are(tmp_path: Path) -> None:
    dmesg = "echo 'NVRM: Xid (PCI:0000:4e:00): 31, pid=4194242, name=python-of-bob, gpu-17 alice'; echo 'nfs: server gpu-17.example 192.0.2.77 lost'"
    host = BundleHost(
        tmp_path,
        {**USUAL, "dmesg": dmesg, "nvidia-smi": f"{PRINTS_SMI}echo '    by alice on gpu-17.example at 2001:db8::77'\n"},
    )
    host.kmsg.write_text(
        f"4,1,5000000,-;NVRM: Xid (PCI:{SLOT[:-2]}): 95, pid=4194242, name=python-of-bob, of alice on gpu-17 (192.0.2.77), llama-run\n"
    )
    host.configure('[notify.exec.pager]\ncommand = ["/opt/alice/page"]\n')
    job: dict[str, Any] = {"user": "alice", "job_name": "llama-run", "uid": 471104711, "also": "pod/team-a/trainer-0"}
    host.remember(
        pinned(),
        raised(text="Xid 95 by alice, pid=4194242"),
        happened(EventKind.JOB_ENDED, "job/pod/team-a/trainer-0", **job),
        happened(EventKind.ORDERED, by="alice", reason="llama-run is stuck on gpu-17, says alice"),
    )
    (host.state_dir / "black-box").mkdir()
    write(host.state_dir / "black-box/frozen-1.trace.gz", story("Xid 95", 30.0))
    write(host.state_dir / "black-box/frozen-20261103T021412Z-job_hung-slurm-471104711.trace.gz", story("Xid 95", 30.0))
    done = host.bundle("--anonymise")
    assert done.returncode == 0, done.stderr
    (file,) = host.archives
    assert not re.search("gpu-17|alice", file.name)
    archive = only_archive(host)
    for path in archive.top.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
        assert [name for name in PLANTED if name in text or name in path.name] == [], path
    (board,) = (row for row in json.loads(archive.read("boards.json")) if row["slot"] == SLOT)
    assert (board["serial"], board["vbios"]) == (SERIAL, "96.00.5E.00.01")
    for page in ("index.html", "rma.txt", "kernel.txt"):
        assert "Xid" in archive.read(page)
    assert SERIAL in archive.read("rma.txt")
    left_out = {name for name, entry in archive.files.items() if entry["state"] == "left_out"}
    assert left_out == {
        "nvidia-bug-report.log.gz",
        "dmesg.txt",
        "doctor.json",
        "dcgm-diagnostics.log",
        "configuration.toml",
    }
    assert archive.manifest["findings"] == [FINDING]
    assert archive.state("black-box/frozen-1.trace.gz")[0] == "complete"


@pytest.mark.parametrize(
    "text",
    [
        "driver 550.54.15, kernel 6.1.0-18-amd64, VBIOS 96.00.5E.00.01, InfoROM G520.0200.00.05",
        "10:05:33 0000:4e:00.0 00000000:4E:00.0 00:11:22:33:44:55",
        "127.0.0.1 and ::1 are this host",
        "PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)",
    ],
)
def test_versions_times_and_places_are_no_addresses(text: str) -> None:
    assert NAMES.text(text) == text


def test_the_same_name_gives_the_same_word_and_serial_numbers_stay() -> None:
    document = {
        "user": "alice",
        "serial": SERIAL,
        "chassis_serial": "C1",
        "text": "alice at 192.0.2.77 on gpu-17",
        "uuid": UUID,
    }
    anonymous = NAMES(document)
    assert anonymous["user"] in anonymous["text"]
    assert (anonymous["serial"], anonymous["chassis_serial"]) == (SERIAL, "C1")
    assert anonymous["text"].endswith("on host")
    assert "192.0.2.77" not in anonymous["text"]
    assert anonymous["uuid"] in NAMES.text(f"GPU UUID : {UUID}")


@pytest.mark.parametrize(
    "line",
    [
        "INFO: task train of bob:4242 blocked for more than 120 seconds.",
        "watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [of-bob:4242]",
        "NVRM: Xid (PCI:0000:4e:00): 43, pid=4242, name=of-bob",
        "CPU: 3 PID: 4242 Comm: of-bob Tainted: P 6.1.0 nvidia",
        "[    5.000000] of-bob[4242]: segfault at 0 ip 00007f in libnvidia-ml.so.550.54.15",
        'audit: type=1400 apparmor="DENIED" name="/of-bob" pid=4242 comm="of-bob" nvidia',
    ],
)
def test_a_line_of_the_kernel_names_no_process_and_keeps_the_rest(line: str) -> None:
    beside = "NVRM: GPU at PCI:0000:4e:00: a board, of 8"
    first, hidden, last = NAMES.text(f"{beside}\n{line}\n{beside}").split("\n")
    assert (first, last) == (beside, beside)
    assert not re.search(r"bob|\b4242\b", hidden)
    assert hidden[:6] == line[:6]
    assert NAMES.text(line) == hidden


def test_a_black_box_is_not_named_by_a_job() -> None:
    name = "black-box/frozen-20261103T021412Z-{}.trace.gz"
    hidden = NAMES.text(name.format("job_hung-pod-team-a-trainer-7"))
    assert hidden.startswith("black-box/frozen-20261103T021412Z-job_hung-x")
    assert "trainer" not in hidden
    for kept in ("xid.95-0000-4e-00.0", "plugin_x-node"):
        assert NAMES.text(name.format(kept)) == name.format(kept)


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("nfs: gpu-17.corp.test:/x on gpu-17.", "nfs: host:/x on host."),
        ("gpu-17-bmc.corp.test", "host-bmc"),
        ("gpu-170 is another one, and gpu-17 is 1.5 m away", "gpu-170 is another one, and host is 1.5 m away"),
    ],
)
def test_the_domain_goes_with_the_name_of_this_host(text: str, hidden: str) -> None:
    assert NAMES.text(text) == hidden


def test_no_text_takes_more_than_its_length_to_read() -> None:
    for part in ("\n  ", "frozen-20261103T021412Z-a-", "task x:1", "name=", "1.2.3."):
        assert NAMES.text(part * (300_000 // len(part)))


def test_what_a_site_check_says_is_left_out() -> None:
    finding = {"id": "plugin_storage@node", "evidence": {"text": "nas.corp is slow for bob", "exit_code": 2}}
    event = {"id": "plugin_storage@node", "kind": "raised", "data": {"text": "nas.corp is slow for bob"}}
    assert NAMES(finding)["evidence"] == {"text": "", "exit_code": 2}
    assert NAMES([event])[0]["data"] == {"text": ""}
    assert NAMES({"id": FINDING, "evidence": {"text": "something broke"}})["evidence"]["text"] == "something broke"
