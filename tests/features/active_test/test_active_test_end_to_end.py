"""`gpuwarden test` from the command line to the ledger, with the real worker on fake libraries of CUDA and NVML."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.active_test_hosts import CudaHost, ended, gone, wait
from support.daemons import PATIENCE, Json, children
from support.fake_nvml_library import uuid_of


@pytest.fixture
def cuda(tmp_path: Path) -> Iterator[CudaHost]:
    host = CudaHost(tmp_path)
    yield host
    host.end()


def gpus_of(document: Json) -> dict[int, Json]:
    return {gpu["index"]: gpu for gpu in document["gpus"]}


@pytest.mark.slow
@pytest.mark.parametrize("level", ["gate", "standard"])
def test_good_gpus_have_nothing_that_is_found_at_any_level(cuda: CudaHost, level: str) -> None:
    code, document = cuda.alone("--level", level)
    assert (code, document["verdict"]) == (0, "nothing_found")
    test = gpus_of(document)[1]["tests"][0]
    kernels = [kernel["kernel"] for kernel in test["kernels"]]
    assert kernels == (["int8"] if level == "gate" else ["int8", "bf16", "fp64", "alu"])
    assert ("pcie" in test, "peers" in test) == (level == "standard", level == "standard")
    assert test["memory"]["tested"] > 0.95 * test["memory"]["total"]


@pytest.mark.slow
def test_a_bit_of_memory_that_is_stuck_is_a_failure(cuda: CudaHost) -> None:
    cuda.cuda.add("stuck 4096 3 1")
    code, document = cuda.alone("--gpu", "1")
    assert (code, document["verdict"]) == (2, "failure")
    assert "memory: " in document["gpus"][0]["findings"][0]["text"]
    assert "(bits 0x00000008)" in document["gpus"][0]["findings"][0]["text"]


@pytest.mark.slow
def test_an_sm_that_computes_wrongly_is_named(cuda: CudaHost) -> None:
    cuda.cuda.add("wrong int8 17 0 1000")
    code, document = cuda.alone("--level", "gate", "--gpu", "1")
    assert (code, document["verdict"]) == (2, "failure")
    assert "int8: wrong results on SM 17" in document["gpus"][0]["findings"][0]["text"]


@pytest.mark.slow
def test_an_sm_that_computed_wrongly_once_is_tested_again_by_new_processes(cuda: CudaHost) -> None:
    cuda.cuda.add("wrong int8 17 3 4")  # once in each process
    code, document = cuda.alone("--level", "gate", "--gpu", "1")
    assert (code, document["verdict"]) == (2, "failure")
    assert len(document["gpus"][0]["tests"]) >= 2


@pytest.mark.slow
def test_an_old_architecture_is_tested_for_memory_alone_and_it_says_so(cuda: CudaHost) -> None:
    cuda.cuda.add("capability 7 5")
    printed = cuda.begin("--i-know-nobody-is-here", "--level", "gate", "--gpu", "1").communicate(timeout=PATIENCE)[0]
    assert "not tested: compute (needs architecture 8.0 or later)" in printed
    assert "98." in printed


@pytest.mark.slow
def test_a_slow_sm_is_a_warning(cuda: CudaHost) -> None:
    cuda.cuda.add("slow * 17 1")
    code, document = cuda.alone("--gpu", "1")
    assert (code, [finding["check"] for finding in document["gpus"][0]["findings"]]) == (1, ["gpu_sm_slow"])
    assert "17" in document["gpus"][0]["findings"][0]["text"]


@pytest.mark.slow
def test_a_process_that_comes_in_the_middle_ends_the_test_of_its_gpu(cuda: CudaHost) -> None:
    cuda.cuda.add(f"partner cuLaunchKernel 10 1 {os.getpid()}")
    code, document = cuda.alone("--gpu", "1")
    assert (code, document["gpus"][0]["obstacle"]) == (3, "disturbed")
    assert str(os.getpid()) in document["gpus"][0]["text"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "code", "obstacle"),
    [
        ("cuInit", 999, "unsupported"),
        ("cuDevicePrimaryCtxRetain", 46, "busy"),
        ("cuEventSynchronize", 214, "gpu_error"),
    ],
)
def test_an_error_of_the_driver_is_no_verdict_and_says_what_to_do(
    cuda: CudaHost, call: str, code: int, obstacle: str
) -> None:
    """A worker is asked about each error of each call in tests/collectors/active_test/test_active_worker_ends.py."""
    cuda.cuda.add(f"error {call} {code}")
    exit_code, document = cuda.alone("--level", "gate")
    assert (exit_code, {gpu["obstacle"] for gpu in document["gpus"]}) == (3, {obstacle})
    assert uuid_of(0) in document["gpus"][0]["text"]


@pytest.mark.slow
def test_without_libcuda_it_is_3(cuda: CudaHost) -> None:
    cuda.more = {"ACTIVE_TEST_WORKER": ""}
    code, document = cuda.alone("--level", "gate")
    assert (code, {gpu["obstacle"] for gpu in document["gpus"]}) == (3, {"unsupported"})
    assert "libcuda.so.1" in document["gpus"][0]["text"]


@pytest.mark.slow
def test_what_all_gpus_lack_is_printed_once_and_with_what_to_do(cuda: CudaHost) -> None:
    cuda.more = {"ACTIVE_TEST_WORKER": ""}
    printed = cuda.begin("--i-know-nobody-is-here", "--level", "gate").communicate(timeout=PATIENCE)[0]
    assert printed.count("libcuda.so.1 could not be loaded") == 1
    assert "GPU 0, 1: unsupported: CUDA cannot be used" in printed
    assert printed.splitlines()[-1] == "to do: correct what is named above (gpuwarden doctor has more), and test again"
    assert "judged" not in printed


@pytest.mark.slow
@pytest.mark.slow
def test_a_driver_that_hangs_is_killed_at_the_deadline(cuda: CudaHost) -> None:
    cuda.more["ACTIVE_TEST_WITHIN"] = "15"
    cuda.cuda.add("hang cuLaunchKernel")
    code, document = cuda.alone("--level", "gate", "--gpu", "1")
    assert (code, document["gpus"][0]["obstacle"]) == (3, "hung")
    assert all(map(gone, cuda.cuda.holders(1)))


@pytest.mark.slow
def test_gpus_that_the_caller_hides_are_tested_all_the_same(cuda: CudaHost) -> None:
    cuda.more["CUDA_VISIBLE_DEVICES"] = "GPU-00000000"
    code, document = cuda.alone("--level", "gate")
    assert (code, len(document["gpus"])) == (0, 2)


@pytest.mark.slow
def test_a_signal_frees_the_gpus(cuda: CudaHost) -> None:
    """A worker gets one in every phase in tests/collectors/active_test/test_active_worker_ends.py."""
    cuda.cuda.add("hang cuEventSynchronize")
    process = cuda.begin("--json", "--i-know-nobody-is-here", "--level", "gate")
    wait(lambda: len(workers(process.pid)) == 2, "both workers")
    wait(lambda: cuda.cuda.holders(0) and cuda.cuda.holders(1), "both contexts")
    pids = workers(process.pid)
    process.terminate()
    code, document = ended(process)
    assert (code, {gpu["obstacle"] for gpu in document["gpus"]}) == (3, {"interrupted"})
    assert all(map(gone, pids))


@pytest.mark.slow
def test_kill_9_of_the_command_ends_its_workers(cuda: CudaHost) -> None:
    cuda.cuda.add("hang cuMemAlloc_v2 4")
    process = cuda.begin("--i-know-nobody-is-here", "--level", "gate")
    wait(lambda: cuda.cuda.holders(0) and cuda.cuda.holders(1), "both contexts")
    pids = workers(process.pid)
    process.kill()
    wait(lambda: all(map(gone, pids)), "the end of its workers")


def workers(pid: int) -> list[int]:
    """Return the workers of the test, without the reader of NVML."""
    return [child for child in children(pid) if b"active_test.process" in Path(f"/proc/{child}/cmdline").read_bytes()]


@pytest.mark.slow
def test_a_gpu_that_vanishes_in_the_middle_has_no_verdict(cuda: CudaHost) -> None:
    cuda.cuda.add("sleep cuEventSynchronize 50000")
    process = cuda.begin("--json", "--i-know-nobody-is-here", "--level", "gate")
    wait(lambda: cuda.cuda.holders(0) and cuda.cuda.holders(1), "both contexts")
    cuda.fake.vanish(1)
    code, document = ended(process)
    verdicts = {index: gpu["verdict"] for index, gpu in gpus_of(document).items()}
    assert (code, verdicts) == (3, {0: "nothing_found", 1: "no_verdict"})
    assert "GPU 1 (0000:28:00.0) no longer answers: see gpuwarden status" in document["notes"]


@pytest.mark.slow
def test_a_failure_reaches_the_ledger_and_lasts_until_a_test_that_finds_nothing(cuda: CudaHost) -> None:
    with cuda.daemon() as daemon:
        daemon.wait_status("healthy")
        cuda.cuda.add("stuck 4096 3 1")
        code, document = cuda.alone("--gpu", "1")
        assert (code, document["notes"]) == (2, [])
        daemon.wait_status("failure", "test_failed.memory")
        cuda.cuda.mend()
        assert cuda.alone("--gpu", "1")[0] == 0
        daemon.wait_status("healthy")
