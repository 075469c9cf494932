"""`gpuwarden test` on a host of the test: workers are processes that speak the protocol, without a GPU."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import pwd
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from gpuwarden.features.active_test.tester.host_order import excluded_by
from gpuwarden.features.active_test.tester.lock import make
from gpuwarden.features.active_test.tester.occupancy import Asked, Memory, occupancy
from gpuwarden_collectors.process_stat import process_stat
from support.active_test_hosts import (
    LONG,
    MEASURED,
    PASSES,
    WRONG_ONCE,
    ActiveHost,
    ended,
    gone,
    wait,
)
from support.daemons import PATIENCE, Json, children
from support.fake_nvml_library import uuid_of
from support.hung_mounts import hung_mount


def gpu_of(document: Json, index: int) -> Json:
    return next(gpu for gpu in document["gpus"] if gpu["index"] == index)


@pytest.mark.slow
def test_gpus_on_which_nothing_is_found_exit_with_0_and_are_never_called_healthy(host: ActiveHost) -> None:
    code, document = host.alone()
    assert (code, document["verdict"]) == (0, "nothing_found")
    assert [gpu["verdict"] for gpu in document["gpus"]] == ["nothing_found"] * 2
    assert "judged without earlier results" in document["notes"][0]
    printed = host.begin("--i-know-nobody-is-here").communicate(timeout=PATIENCE)[0]
    assert "nothing found" in printed
    assert "3,060.0 GB/s" in printed
    assert "not tested: reads between GPUs" in printed
    assert "is healthy" not in printed.replace("does not prove that a GPU is healthy", "")


@pytest.mark.slow
def test_a_wrong_result_is_tested_three_more_times_and_a_repeat_is_a_failure(host: ActiveHost) -> None:
    wrong = [*PASSES[:-1], {"write": {"measured": WRONG_ONCE}}]
    host.script({"*": PASSES, uuid_of(1): [wrong, PASSES, PASSES, PASSES]})
    code, document = host.alone()
    assert (code, document["verdict"]) == (1, "warning")
    assert [len(gpu["tests"]) for gpu in document["gpus"]] == [1, 4]

    host.script({"*": PASSES, uuid_of(1): wrong})
    host.forget_notes()
    code, document = host.alone()
    assert (code, document["verdict"]) == (2, "failure")
    assert "SM 17" in gpu_of(document, 1)["findings"][0]["text"]


@pytest.mark.slow
def test_of_several_gpus_the_worst_counts_and_a_failure_is_worse_than_no_verdict(host: ActiveHost) -> None:
    bad = {**MEASURED, "memory": {**MEASURED["memory"], "mismatches": 3}}
    host.script({uuid_of(0): [{"exit": 1}], uuid_of(1): [{"write": {"measured": bad}}]})
    code, document = host.alone()
    assert [gpu["verdict"] for gpu in document["gpus"]] == ["no_verdict", "failure"]
    assert code == 2


# --- which GPUs


@pytest.mark.slow
@pytest.mark.parametrize("name", ["1", "00000000:28:00.0"])
def test_a_gpu_is_named_by_index_uuid_or_slot(host: ActiveHost, name: str) -> None:
    _, document = host.alone("--gpu", name)
    assert [gpu["index"] for gpu in document["gpus"]] == [1]
    assert host.workers == [f"{uuid_of(1)}.0"]


@pytest.mark.slow
def test_a_gpu_that_is_not_here_is_bad_usage(host: ActiveHost) -> None:
    process = host.begin("--gpu", "7")
    _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 64
    assert "no GPU '7' here; there are 0 (0000:1b:00.0), 1 (0000:28:00.0)" in stderr


# --- obstacles


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reading", "value", "obstacle", "text"),
    [
        ("compute_mode", 2, "unsupported", "compute mode is prohibited: nvidia-smi -c 0"),
        ("confidential_computing", 1, "unsupported", "confidential computing"),
        ("remapped_rows_pending", 1, "reset_first", "reset it, then test"),
        ("recovery_action", 4, "reset_first", "drain and reset the GPU"),
    ],
)
def test_a_gpu_in_this_state_is_not_tested_and_it_says_what_to_do(
    host: ActiveHost, reading: str, value: int, obstacle: str, text: str
) -> None:
    host.fake.reading("*", reading, value)
    code, document = host.alone()
    assert code == 3
    assert {gpu["obstacle"] for gpu in document["gpus"]} == {obstacle}
    assert text in document["gpus"][0]["text"]
    assert host.workers == []


@pytest.mark.slow
def test_a_gpu_with_mig_a_lost_one_and_a_used_one_are_left_alone_and_the_others_tested(tmp_path: Path) -> None:
    host = ActiveHost(tmp_path, 4)
    host.fake.mig(0, 1, 0, "1g.10gb", 9000).lost(1).process(2, os.getpid(), 1 << 30)
    code, document = host.alone()
    assert code == 3
    obstacles = {gpu["index"]: gpu["obstacle"] for gpu in document["gpus"]}
    assert obstacles == {0: "unsupported", 1: "reset_first", 2: "busy", 3: None}
    assert host.workers == [f"{uuid_of(3)}.0"]


@pytest.mark.slow
def test_a_process_that_draws_with_the_gpu_uses_it_too(host: ActiveHost) -> None:
    host.fake.add(f"graphics 0 {os.getpid()} none")
    code, document = host.alone()
    assert (code, gpu_of(document, 0)["obstacle"], gpu_of(document, 1)["obstacle"]) == (3, "busy", None)
    assert f"used by process {os.getpid()}" in gpu_of(document, 0)["text"]


@pytest.mark.slow
def test_an_mps_server_is_named_since_processes_behind_it_cannot_be_seen(host: ActiveHost, tmp_path: Path) -> None:
    server = tmp_path / "nvidia-cuda-mps-server"
    server.symlink_to("/bin/sleep")
    with subprocess.Popen([server, "300"]) as process:
        try:
            wait(lambda: Path(f"/proc/{process.pid}/comm").read_text().startswith("nvidia"), "the server")
            host.fake.process(0, process.pid, 1 << 20)
            _, document = host.alone()
        finally:
            process.kill()
    assert "MPS server" in gpu_of(document, 0)["text"]


@pytest.mark.slow
def test_without_the_driver_it_is_3_and_says_why(host: ActiveHost) -> None:
    host.fake.init_error(9)
    code, document = host.alone()
    assert (code, document["obstacle"], document["gpus"]) == (3, "unsupported", [])
    assert "Driver Not Loaded" in document["text"]


@pytest.mark.slow
def test_a_driver_that_hangs_costs_the_deadline_of_its_initialisation_and_no_more(host: ActiveHost) -> None:
    host.configure(init="2s", deadline="2s")
    host.fake.hang("*", "nvmlInitWithFlags", hard=True)
    code, document = host.alone()
    assert (code, document["obstacle"]) == (3, "unsupported")
    assert "within 2 s" in document["text"]


@pytest.mark.slow
def test_counters_that_grew_meanwhile_are_in_the_result(host: ActiveHost) -> None:
    grew = host.folder / "grew"
    host.script({"*": [{"write": {"phase": "int8"}}, {"wait": str(grew)}, *PASSES]})
    process = host.begin("--json", "--i-know-nobody-is-here")
    host.wait_note(0)
    host.fake.reading(0, "ecc_uncorrected_volatile_dram", 2).reading(0, "ecc_uncorrected_volatile", 2)
    grew.touch()
    code, document = ended(process)
    grown = {growth["reading"]: growth["by"] for growth in gpu_of(document, 0)["tests"][0]["growth"]}
    assert grown["ecc_uncorrected_volatile"] == 2
    assert (code, gpu_of(document, 0)["verdict"], gpu_of(document, 1)["verdict"]) == (2, "failure", "nothing_found")


@pytest.mark.slow
def test_a_gpu_that_vanishes_meanwhile_is_named(host: ActiveHost) -> None:
    vanished = host.folder / "vanished"
    host.script({"*": PASSES, uuid_of(1): [{"wait": str(vanished)}, {"exit": 1}]})
    process = host.begin("--json", "--i-know-nobody-is-here")
    host.wait_note(1)
    host.fake.vanish(1)
    vanished.touch()
    code, document = ended(process)
    assert code == 3
    assert "GPU 1 (0000:28:00.0) no longer answers: see gpuwarden status" in document["notes"]
    assert "growth" not in gpu_of(document, 1)["tests"][0]


def test_a_gpu_that_vanishes_once_its_own_test_has_ended_has_not_passed(host: ActiveHost) -> None:
    vanished = host.folder / "vanished"
    host.script({"*": PASSES, uuid_of(0): [{"wait": str(vanished)}, *PASSES]})
    process = host.begin("--json", "--i-know-nobody-is-here")
    host.wait_note(1)
    host.fake.vanish(1)
    vanished.touch()
    code, document = ended(process)
    assert (gpu_of(document, 0)["verdict"], gpu_of(document, 1)["verdict"], code) == ("nothing_found", "no_verdict", 3)
    assert gpu_of(document, 1)["text"] == "its counters of errors could not be read after the test"


@pytest.mark.slow
def test_a_driver_that_hangs_once_the_test_has_ended_leaves_no_gpu_passed(host: ActiveHost) -> None:
    host.configure(init="2s", deadline="2s")
    hung = host.folder / "hung"
    host.script({"*": [{"write": {"phase": "int8"}}, {"wait": str(hung)}, *PASSES]})
    process = host.begin("--json", "--i-know-nobody-is-here")
    host.wait_note(1)
    host.fake.hang("*", "nvmlDeviceGetPowerUsage", hard=True)
    hung.touch()
    code, document = ended(process)
    assert (code, {gpu["verdict"] for gpu in document["gpus"]}) == (3, {"no_verdict"})


# --- what a worker gets


@pytest.mark.slow
def test_a_worker_has_an_environment_that_is_made_for_it_and_nothing_of_the_caller_s(host: ActiveHost) -> None:
    host.more = {
        "CUDA_VISIBLE_DEVICES": "", "LD_PRELOAD": "", "CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps", "CUDA_CACHE_PATH": "/tmp/theirs",
        "NVIDIA_VISIBLE_DEVICES": "void", "CUDA_LAUNCH_BLOCKING": "1",
    }  # fmt: skip
    code, _ = host.alone()
    assert code == 0
    variables = host.note(1)["environment"]
    assert variables["CUDA_CACHE_PATH"] == f"{host.state_dir}-test"
    assert not variables.keys() & {
        "LD_PRELOAD",
        "NVIDIA_VISIBLE_DEVICES",
        "CUDA_LAUNCH_BLOCKING",
        "LD_LIBRARY_PATH",
        "PYTHONPATH",
    }
    assert Path(f"{host.state_dir}-test").stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
@pytest.mark.parametrize("odd", ["GPU-00000000", "NoDevFiles"])
def test_gpus_that_the_caller_s_environment_hides_are_tested_all_the_same(host: ActiveHost, odd: str) -> None:
    host.more = {"CUDA_VISIBLE_DEVICES": odd}
    code, document = host.alone()
    assert (code, len(document["gpus"])) == (0, 2)


@pytest.mark.slow
def test_a_cache_that_others_may_write_is_not_used(host: ActiveHost) -> None:
    cache = Path(f"{host.state_dir}-test")
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    host.alone()
    variables = host.note(0)["environment"]
    assert variables["CUDA_CACHE_PATH"] != str(cache)
    assert not Path(variables["CUDA_CACHE_PATH"]).exists()  # of this run alone


@pytest.mark.slow
@pytest.mark.needs("root")
def test_workers_of_a_test_that_root_starts_run_as_the_user_of_the_package(host: ActiveHost, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    line = json.dumps({"measured": MEASURED})
    noted = f'printf "%s %s %s" "$(id -u)" "$(id -G)" "$(stat -c %u "$CUDA_CACHE_PATH")" > {host.stubs}/ids'
    host.more = {
        "ACTIVE_TEST_USER": "nobody",
        "ACTIVE_TEST_WORKER": json.dumps(["/bin/sh", "-c", f"{noted}; echo '{line}'"]),
    }
    assert host.alone("--gpu", "0")[0] == 0
    nobody = pwd.getpwnam("nobody")
    assert (host.stubs / "ids").read_text().split() == [str(n) for n in (nobody.pw_uid, nobody.pw_gid, nobody.pw_uid)]


@pytest.mark.slow
def test_at_most_eight_gpus_are_tested_at_once_and_their_workers_start_half_a_second_apart(tmp_path: Path) -> None:
    host = ActiveHost(tmp_path, 9)
    host.script({"*": [{"sleep": 6}, *PASSES]})
    code, document = host.alone()
    assert code == 0
    *eight, ninth = sorted(host.note(gpu)["began"] for gpu in range(9))
    assert ninth - eight[0] >= 6
    started = sorted(gpu["tests"][0]["started"]["boottime"] for gpu in document["gpus"])
    assert min(later - earlier for earlier, later in pairwise(started)) > 0.49  # timers are rounded


@pytest.mark.slow
def test_no_gpu_computes_or_takes_all_memory_while_another_one_may_still_be_read_by_its_peers(tmp_path: Path) -> None:
    host = ActiveHost(tmp_path, 3)
    reads = [
        {"write": {"phase": "pcie"}},
        {"write": {"phase": "peers"}},
        {"sleep": 2},
        {"write": {"phase": "int8"}},
        {"sleep": 0.1},
    ]
    host.script({"*": PASSES, uuid_of(1): [{"ask": "compute"}, *PASSES], uuid_of(2): [*reads, *PASSES]})
    assert host.alone("--level", "standard")[0] == 0
    notes = [host.note(gpu) for gpu in range(3)]
    assert notes[0]["plan"]["peers"] == [uuid_of(1), uuid_of(2)]
    assert [note["answers"][0][:2] for note in notes] == [["memory", "all"], ["compute", "go"], ["memory", "all"]]
    assert all(note["answers"][0][2] > notes[2]["began"] + 2 for note in notes)
    host.forget_notes()
    host.script({"*": PASSES, uuid_of(2): [{"write": {"phase": "pcie"}}, {"sleep": 1}, {"exit": 1}]})
    assert host.alone("--level", "standard")[0] == 3  # one that dies holds nobody up
    assert [gpu["verdict"] for gpu in host.alone("--level", "quick")[1]["gpus"]][:2] == ["nothing_found"] * 2


READ_WRONG: Json = {
    "obstacle": "gpu_error",
    "text": "a kernel failed",
    "peers": [{"peer": uuid_of(1), "speed": 0.0, "error": "214"}],
}


@pytest.mark.slow
def test_an_error_of_a_peer_costs_the_reader_no_verdict_and_is_that_peer_s(tmp_path: Path) -> None:
    """The reader goes on in another process, which reads the peers behind that one."""
    host = ActiveHost(tmp_path, 3)
    read = {**MEASURED, "peers": [{"peer": uuid_of(2), "speed": 3.8e11}]}
    first = [[{"write": {"measured": READ_WRONG}}], [*PASSES[:-1], {"write": {"measured": read}}]]
    host.script({"*": PASSES, uuid_of(0): first})
    code, document = host.alone("--level", "standard")
    assert [gpu["verdict"] for gpu in document["gpus"]] == ["nothing_found", "no_verdict", "nothing_found"]
    assert (code, gpu_of(document, 1)["text"]) == (3, f"read by {uuid_of(0)}: 214")
    assert [host.note(0, number)["plan"]["peers"] for number in (0, 1)] == [[uuid_of(1), uuid_of(2)], [uuid_of(2)]]
    (tested,) = gpu_of(document, 0)["tests"]
    assert [peer["peer"] for peer in tested["peers"]] == [uuid_of(1), uuid_of(2)]


# --- how much memory


@pytest.mark.slow
def test_a_host_that_may_be_given_work_is_tested_at_level_gate_only_and_2_gib_stay_free(host: ActiveHost) -> None:
    code, document = host.test("--level", "standard")
    assert (code, document["gpus"][0]["obstacle"]) == (3, "busy")
    assert "work may start at any moment" in document["gpus"][0]["text"]
    assert host.workers == []
    code, _ = host.test("--level", "gate")
    assert code == 0
    assert [answer[:2] for answer in host.note(0)["answers"]] == [["memory", "part"]]


@pytest.mark.slow
def test_all_memory_is_taken_by_order_where_no_scheduler_is(host: ActiveHost) -> None:
    host.alone("--level", "gate")
    assert host.note(0)["answers"][0][1] == "all"


def pods(kubelet: Path, entries: object, *, age: float = 0.0) -> None:
    record = kubelet / "device-plugins/kubelet_internal_checkpoint"
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 1}))
    at = time.time() - age
    os.utime(record, (at, at))


POD = {
    "PodUID": "3f0c2c6e-9c9b-4f0a-9d51-6a1f6a1b2c3d", "ContainerName": "train", "ResourceName": "nvidia.com/gpu",
    "DeviceIDs": {"-1": ["GPU-1"]}, "AllocResp": "",
}  # fmt: skip
OWN = {**POD, "PodUID": "9b1c2c6e-9c9b-4f0a-9d51-6a1f6a1b2c3d", "DeviceIDs": {"0": ["GPU-0"], "1": ["GPU-1"]}}
HALF, SHARED = ({**OWN, "DeviceIDs": {"0": ids}} for ids in (["GPU-0"], ["GPU-0::0", "GPU-0::1"]))


@pytest.mark.slow
def test_a_pod_that_kubelet_has_just_given_a_gpu_is_not_disturbed_though_it_has_no_process_yet(
    host: ActiveHost,
) -> None:
    pods(host.kubelet, [POD])
    code, document = host.test("--level", "gate")
    assert (code, document["gpus"][0]["obstacle"]) == (3, "busy")
    assert "pods have GPUs here (3f0c2c6e" in document["gpus"][0]["text"]
    assert host.workers == []


@pytest.mark.parametrize(
    ("entries", "age", "own", "expected"),
    [
        (None, 0.0, "", (Memory.PART, "a pod may be started at any moment")),
        ([], 0.0, "", (Memory.PART, "a pod may be started at any moment")),
        ([{**POD, "ResourceName": "intel.com/sriov"}], 0.0, "", (Memory.PART, "a pod may be started at any moment")),
        ([POD], 0.0, "", (Memory.NONE, "pods have GPUs here (3f0c2c6e")),
        ([POD], 3600.0, "", (Memory.PART, "a pod may be started at any moment")),
        ([OWN], 0.0, OWN["PodUID"], (Memory.ALL, "this pod has all 2 GPUs")),
        ([OWN], 3600.0, OWN["PodUID"], (Memory.ALL, "this pod has all 2 GPUs")),
        ([OWN, POD], 0.0, OWN["PodUID"], (Memory.NONE, "has 2 of 2 whole GPUs, and other pods have some (3f0c2c6e")),
        ([HALF], 0.0, OWN["PodUID"], (Memory.NONE, "has 1 of 2 whole GPUs: give it nvidia.com/gpu: 2")),
        ([SHARED], 0.0, OWN["PodUID"], (Memory.NONE, "this pod has 0 of 2 whole GPUs")),
    ],
)  # fmt: skip
def test_who_has_gpus_by_the_record_of_kubelet_says_how_much_memory_a_test_may_take(
    tmp_path: Path, entries: object, age: float, own: str, expected: tuple[Memory, str]
) -> None:
    pods(tmp_path, entries, age=age)
    asked = Asked(slurm=None, excluded_by=lambda: (), kubelet=tmp_path, now=time.time, environment={"POD_UID": own})
    allowed = asyncio.run(occupancy(asked, 2))
    assert (allowed.memory, expected[1] in allowed.why) == (expected[0], True), allowed


@pytest.mark.slow
def test_in_a_pod_with_all_gpus_all_memory_is_tested(host: ActiveHost) -> None:
    pods(host.kubelet, [OWN])
    host.more["POD_UID"] = str(OWN["PodUID"])
    assert host.test("--level", "quick")[0] == 0
    assert host.note(0)["answers"][0][1] == "all"


@pytest.mark.slow
def test_a_record_of_kubelet_of_another_form_counts_as_occupied(host: ActiveHost) -> None:
    pods(host.kubelet, [])
    (host.kubelet / "device-plugins/kubelet_internal_checkpoint").write_text("[1]")
    code, document = host.test("--level", "gate")
    assert code == 3
    assert "another form" in document["gpus"][0]["text"]


def test_the_order_that_nobody_is_here_is_refused_where_a_scheduler_is(host: ActiveHost) -> None:
    pods(host.kubelet, [])
    process = host.begin("--i-know-nobody-is-here")
    _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 64
    assert "for hosts without a scheduler" in stderr


# --- a worker that does not do what it should


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "obstacle", "text"),
    [
        ([{"signal": int(signal.SIGSEGV)}], "crashed", "SIGSEGV"),
        ([{"signal": int(signal.SIGTERM)}], "interrupted", "ended by SIGTERM"),
        ([{"raw": "[" * 5000}], "crashed", "did not follow the protocol"),
        ([{"flood": True}], "crashed", "line of more than"),
        ([{"write": {"measured": {"memory": 5}}}], "crashed", "cannot be read: memory"),
        ([{"deaf": True}, {"sleep": 300}], "hung", "has not ended within 15 s"),
    ],
)
def test_a_worker_that_fails_costs_its_own_gpu_a_verdict_and_no_other(
    host: ActiveHost, steps: list[object], obstacle: str, text: str
) -> None:
    host.more["ACTIVE_TEST_WITHIN"] = "15"  # the other worker has it too, and a busy host starts it late
    host.script({"*": PASSES, uuid_of(1): steps})
    code, document = host.alone()
    assert code == 3
    bad = gpu_of(document, 1)
    assert (gpu_of(document, 0)["verdict"], bad["obstacle"]) == ("nothing_found", obstacle)
    assert text in bad["text"]
    assert gone(host.note(1)["pid"])


@pytest.mark.slow
def test_time_for_which_the_whole_test_is_stopped_does_not_count(host: ActiveHost, tmp_path: Path) -> None:
    """`scontrol suspend` and gang scheduling stop it so."""
    host.more["ACTIVE_TEST_WITHIN"] = "20"
    go_on = tmp_path / "go-on"
    host.script({"*": [{"write": {"phase": "int8"}}, {"wait": str(go_on)}, *PASSES]})
    process = host.begin("--json", "--i-know-nobody-is-here")
    everyone = [process.pid, *(host.wait_note(gpu)["pid"] for gpu in range(2))]
    for _ in range(2):
        signal_all(everyone, signal.SIGSTOP)
        time.sleep(10.5)
        signal_all(everyone, signal.SIGCONT)
        time.sleep(0.5)
    go_on.touch()
    code, document = ended(process)
    assert (code, [gpu["obstacle"] for gpu in document["gpus"]]) == (0, [None, None])


def signal_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)


@pytest.mark.slow
@pytest.mark.disposable
def test_a_worker_that_sleeps_in_the_kernel_is_left_behind_and_named(host: ActiveHost, tmp_path: Path) -> None:
    host.more["ACTIVE_TEST_WITHIN"] = "15"
    beside = tmp_path / "beside"
    beside.mkdir()
    with hung_mount(tmp_path / "gone", killable=False) as dead:
        host.script({"*": PASSES, uuid_of(1): [{"name": host.worker}, {"open": str(dead / "file")}]})
        code, document = host.alone()
        assert (code, gpu_of(document, 0)["verdict"]) == (3, "nothing_found")
        pid = host.note(1)["pid"]
        assert not gone(pid)
        assert gpu_of(document, 1)["obstacle"] == "hung"
        assert f"left behind (pid {pid})" in gpu_of(document, 1)["text"]
        assert [finding["check"] for finding in gpu_of(document, 1)["findings"]] == ["test_hung"]

        host.forget_notes()
        code, document = host.alone()
        assert (code, document["obstacle"], host.workers) == (3, "reset_first", [])
        assert f"a worker of a test sleeps in it and cannot be ended (pid {pid})" in document["text"]
        assert ActiveHost(beside).alone()[0] == 0, "tests that run beside this one see the process, too"
    wait(lambda: gone(pid), "its end, once the kernel lets it go")


@pytest.mark.slow
@pytest.mark.needs("root")
def test_a_users_process_with_the_name_of_a_worker_keeps_no_test_away(host: ActiveHost) -> None:
    """A process that waits for a child of vfork(2) sleeps as in a driver."""
    script = (
        "import ctypes, os, subprocess, sys; os.setuid(65534)\n"
        "ctypes.CDLL(None).prctl(15, sys.argv[1].encode())\n"
        "if ctypes.CDLL(None).vfork() == 0: ctypes.CDLL(None).sleep(300); os._exit(0)"
    )
    with subprocess.Popen([sys.executable, "-S", "-c", script, host.worker]) as stranger:
        try:
            wait(lambda: (stat := process_stat("/proc", stranger.pid)) is not None and stat.state == "D", "its sleep")
            assert host.alone()[0] == 0
        finally:
            for pid in (*children(stranger.pid), stranger.pid):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.disposable
def test_no_worker_is_started_into_a_driver_that_holds_another_one_for_good(tmp_path: Path) -> None:
    host = ActiveHost(tmp_path, 9)
    host.more["ACTIVE_TEST_WITHIN"] = "20"
    with hung_mount(tmp_path / "gone", killable=False) as dead:
        stuck = [{"open": str(dead / "file")}]
        host.script({"*": [{"sleep": 300}], **{uuid_of(gpu): stuck for gpu in range(8)}})
        _, document = host.alone()
        assert f"{uuid_of(8)}.0" not in host.workers
        assert gpu_of(document, 8)["obstacle"] == "reset_first"


@pytest.mark.slow
def test_what_a_worker_started_ends_with_it(host: ActiveHost) -> None:
    host.more["ACTIVE_TEST_WITHIN"] = "15"
    host.script({"*": PASSES, uuid_of(1): [{"child": True}, {"sleep": 300}]})
    host.alone()
    wait(lambda: gone(host.note(1)["child"]), "the end of its child")


# --- one at a time, and its end


@pytest.mark.slow
def test_a_second_test_exits_with_3_and_names_the_first(host: ActiveHost) -> None:
    host.script({"*": LONG})
    first = host.begin("--i-know-nobody-is-here")
    try:
        host.wait_note(0)
        code, document = host.alone()
        assert (code, document["obstacle"], document["gpus"]) == (3, "busy", [])
        assert f"another test runs on this node (pid {first.pid}), for " in document["text"]
        assert len(host.workers) == 1 or host.workers == [f"{uuid_of(0)}.0", f"{uuid_of(1)}.0"]
    finally:
        first.terminate()
        first.communicate(timeout=PATIENCE)
    host.script({"*": PASSES})
    host.forget_notes()
    assert host.alone()[0] == 0


@pytest.mark.slow
def test_a_test_with_another_run_directory_is_the_same_node_s(host: ActiveHost, tmp_path: Path) -> None:
    host.script({"*": LONG})
    first = host.begin("--i-know-nobody-is-here")
    host.wait_note(0)
    code, document = host.alone("--run-dir", str(tmp_path / "another"))
    assert (code, document["obstacle"]) == (3, "busy")
    assert f"another test runs on this node (pid {first.pid}), for " in document["text"]


@pytest.mark.slow
@pytest.mark.needs("root")
@pytest.mark.parametrize(
    "then",
    [
        "pass",
        "name.listen(0); own = [socket.socket(socket.AF_UNIX) for _ in range(1)]; own[0].connect(chr(0) + sys.argv[1])",
    ],
    ids=["does not listen", "fills its own queue"],
)
def test_who_may_not_test_keeps_no_test_away_by_taking_its_name(host: ActiveHost, then: str) -> None:
    with name_taken(host, f"os.setuid(65534); {TAKEN}; {then}"):
        code, document = host.alone()
        assert code == 0
        assert "and was ignored: end it" in document["notes"][0]


@pytest.mark.slow
@pytest.mark.needs("root")
def test_a_test_of_root_is_one_also_for_the_gate_s_service_which_has_fewer_capabilities(
    host: ActiveHost, tmp_path: Path
) -> None:
    """The service may not see the open files of a process with more capabilities."""
    host.script({"*": LONG})
    first = host.begin("--i-know-nobody-is-here")
    host.wait_note(0)
    words = host.argv("--json", "--i-know-nobody-is-here", "--run-dir", str(tmp_path / "another"))
    fewer = ["setpriv", "--bounding-set=-sys_ptrace", *words]
    second = subprocess.run(fewer, env=host.variables, capture_output=True, text=True, check=False, timeout=PATIENCE)
    document = json.loads(second.stdout)
    assert (second.returncode, document["obstacle"]) == (3, "busy")
    assert f"another test runs on this node (pid {first.pid}), for " in document["text"]


TAKEN = "name = socket.socket(socket.AF_UNIX); name.bind(chr(0) + sys.argv[1])"


@contextmanager
def name_taken(host: ActiveHost, script: str) -> Iterator[subprocess.Popen[bytes]]:
    whole = f"import fcntl, os, socket, sys, time; {script}\nprint(1, flush=True); time.sleep(300)"
    taken = [sys.executable, "-S", "-c", whole, host.variables["ACTIVE_TEST_NODE"]]
    with subprocess.Popen(taken, stdout=subprocess.PIPE) as stranger:
        try:
            assert stranger.stdout is not None
            assert stranger.stdout.readline()
            yield stranger
        finally:
            stranger.kill()


@pytest.mark.slow
def test_a_lock_that_cannot_be_taken_is_3(host: ActiveHost) -> None:
    host.run_dir.mkdir()
    (host.run_dir / "test.lock").symlink_to("/etc/passwd")
    code, document = host.alone()
    assert (code, document["obstacle"]) == (3, "unsupported")
    assert "test.lock" in document["text"]


@pytest.mark.slow
@pytest.mark.needs("root")
def test_a_lock_that_is_another_name_of_a_file_is_not_taken_and_that_file_keeps_its_owner(host: ActiveHost) -> None:
    """The daemon's user owns the folder, and root gives a lock that it makes there to that user."""
    host.run_dir.mkdir()
    os.chown(host.run_dir, 65534, 65534)
    of_root = host.run_dir.parent / "of-root"
    of_root.touch()
    os.link(of_root, host.run_dir / "test.lock")
    code, document = host.alone()
    assert (code, document["obstacle"], of_root.stat().st_uid) == (3, "unsupported", 0)


@pytest.mark.needs("root")
def test_a_file_of_root_s_that_lost_its_other_name_is_not_given_to_the_owner_of_the_folder(tmp_path: Path) -> None:
    """If fs.protected_hardlinks is 0, the daemon's user can link this name to a file of root's, whose other name root removes later."""
    folder, of_root = tmp_path / "run", tmp_path / "of-root"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    of_root.write_text("of root's")
    of_root.chmod(0o600)
    os.link(of_root, folder / "test.lock")
    of_root.unlink()
    make(folder)
    status = (folder / "test.lock").stat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (0, 0o600)
    (folder / "test.lock").unlink()
    make(folder)
    assert (folder / "test.lock").stat().st_uid == 65534, "what root makes itself is handed over"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_the_middle_ends_the_workers_and_the_report_says_interrupted(
    host: ActiveHost, number: signal.Signals
) -> None:
    host.script({"*": LONG})
    process = host.begin("--json", "--i-know-nobody-is-here")
    wait(lambda: len(host.workers) == 2 and host.note(1)["answers"], "both workers in their last phase")
    process.send_signal(number)
    code, document = ended(process)
    assert (code, document["verdict"]) == (3, "no_verdict")
    assert {gpu["obstacle"] for gpu in document["gpus"]} == {"interrupted"}
    assert f"ended by {number.name}" in document["gpus"][0]["text"]
    assert all(gone(host.note(gpu)["pid"]) for gpu in (0, 1))


@pytest.mark.slow
def test_a_signal_while_the_driver_hangs_before_the_test_ends_it_too(host: ActiveHost) -> None:
    host.fake.hang("*", "nvmlInitWithFlags")
    process = host.begin("--json", "--i-know-nobody-is-here")
    wait(lambda: children(process.pid), "the reader of NVML")
    time.sleep(0.5)
    process.terminate()
    code, document = ended(process)
    assert (code, document["obstacle"]) == (3, "interrupted")
    assert host.workers == []


@pytest.mark.slow
def test_a_signal_before_the_second_worker_has_started_keeps_it_from_starting(host: ActiveHost) -> None:
    host.more["ACTIVE_TEST_APART"] = "300"
    host.script({"*": LONG})
    process = host.begin("--json", "--i-know-nobody-is-here")
    host.wait_note(0)
    process.terminate()
    code, document = ended(process)
    assert code == 3
    assert [gpu["obstacle"] for gpu in document["gpus"]] == ["interrupted"] * 2
    assert host.workers == [f"{uuid_of(0)}.0"]


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["lock", "memory"])
def test_kill_9_at_any_moment_frees_the_lock_and_ends_the_workers(host: ActiveHost, moment: str) -> None:
    host.script({"*": LONG})
    process = host.begin("--i-know-nobody-is-here", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if moment == "lock":
        wait((host.run_dir / "test.lock").exists, "the lock")
    else:
        wait(lambda: len(host.workers) == 2 and host.note(1)["answers"], moment)
    below = children(process.pid)
    process.kill()
    process.wait()
    wait(lambda: all(map(gone, below)), "the workers' end")
    host.script({"*": PASSES})
    host.forget_notes()
    assert host.alone()[0] == 0


@pytest.mark.slow
def test_progress_is_shown_on_a_terminal_only(host: ActiveHost) -> None:
    watcher, terminal = pty.openpty()
    process = host.begin("--i-know-nobody-is-here", stderr=terminal)
    os.close(terminal)
    stdout, _ = process.communicate(timeout=PATIENCE)
    shown = os.read(watcher, 65536).decode()
    os.close(watcher)
    assert "GPU 0: int8" in shown
    assert "GPU 0: int8" not in stdout
    quiet = host.begin("--i-know-nobody-is-here")
    assert quiet.communicate(timeout=PATIENCE)[1] == ""


@pytest.mark.parametrize(
    "answer",
    [None, [], {}, {"actions": None}, {"actions": {"schedulers": [{"excluded": "x"}]}}, {"actions": {"schedulers": 7}}],
    ids=str,
)
def test_a_daemon_of_another_version_excludes_nothing(answer: object) -> None:
    assert excluded_by(lambda _: answer) == ()


@pytest.mark.parametrize(("by", "memory"), [("file (operator)", Memory.PART), ("kubernetes (operator)", Memory.ALL)])
def test_on_a_kubernetes_node_only_the_cluster_s_own_exclusion_keeps_pods_away(
    tmp_path: Path, by: str, memory: Memory
) -> None:
    (tmp_path / "device-plugins").mkdir()
    asked = Asked(slurm=None, excluded_by=lambda: (by,), kubelet=tmp_path, now=time.time)
    assert asyncio.run(occupancy(asked, 8)).memory is memory


@pytest.mark.parametrize(("alone", "memory"), [(False, Memory.PART), (True, Memory.ALL)])
def test_an_exclusion_by_what_cannot_name_its_jobs_leaves_it_to_a_person_whether_one_is_still_here(
    tmp_path: Path, alone: bool, memory: Memory
) -> None:
    asked = Asked(
        slurm=None, excluded_by=lambda: ("dstack (operator)",), kubelet=tmp_path, now=time.time, alone_by_order=alone
    )
    assert asyncio.run(occupancy(asked, 8)).memory is memory
