"""How a test of a GPU ends before its time: others come, calls fail or hang, somebody ends it. Nothing may stay behind."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuwarden_collectors.active_test.facts import Obstacle
from gpuwarden_collectors.active_test.pcie import DISCARDED, JUDGED
from gpuwarden_collectors.active_test.process import REFUSED
from gpuwarden_collectors.host_facts import TESTER
from support.active_test_hosts import gone, wait
from support.active_workers import ENVIRONMENT, SOON, ActiveWorker, active_worker, command, request, run
from support.fake_cuda_library import FakeCuda
from support.quick import first_quick

INIT = 1  # a process that runs, and is no child of ours
GIB = 1 << 30


@pytest.fixture
def fake(tmp_path: Path) -> FakeCuda:
    return FakeCuda.build(tmp_path)


def waits(pid: int) -> bool:
    """Its main thread sleeps in the library's pause(2) for good."""
    return Path(f"/proc/{pid}/syscall").read_text().split()[0] == "34"


def wait_until_it_hangs(pid: int) -> None:
    wait(lambda: waits(pid), f"process {pid} to hang")


# --- Others on the GPU ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["process", "graphics", "mps"])
def test_gpu_that_another_process_uses_is_not_touched(fake: FakeCuda, kind: str) -> None:
    fake.nvml.add(f"{kind} 0 {INIT} {GIB}")
    measured = run(fake)
    assert measured.obstacle is Obstacle.BUSY
    assert f"in use by process {INIT} (" in measured.text
    assert fake.holders() == set()  # no context was made


def test_processes_on_other_gpus_do_not_matter(tmp_path: Path) -> None:
    fake = FakeCuda.build(tmp_path, gpus=2)
    fake.nvml.process(1, INIT, GIB)
    assert run(fake).obstacle is None


def test_other_workers_of_the_same_test_are_no_strangers(fake: FakeCuda) -> None:
    with subprocess.Popen(["sleep", "1000"]) as sibling:
        fake.nvml.process(0, sibling.pid, GIB)
        try:
            assert run(fake).obstacle is None
        finally:
            sibling.kill()


PARTNERS = {
    "pcie": "cuMemcpyDtoHAsync_v2 3",
    "int8": "int8 3",
    "alu": "alu 2",
    "memory": "memory_verify_write 5",
}


@pytest.mark.parametrize("phase", first_quick(2, PARTNERS))
def test_process_that_comes_meanwhile_ends_the_test(fake: FakeCuda, tmp_path: Path, phase: str) -> None:
    log = tmp_path / "log"
    fake.add(f"log {log}", f"partner {PARTNERS[phase]} 0 {INIT}")
    with active_worker(request(fake, "quick"), fake.contexts) as worker:
        measured = worker.measured()
    assert measured.obstacle is Obstacle.DISTURBED
    assert f"process {INIT} (" in measured.text
    assert worker.phases[-1] == phase
    blocks = [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []
    assert blocks.count("allocated") == blocks.count("freed")


def test_memory_is_freed_as_soon_as_a_process_comes(fake: FakeCuda, tmp_path: Path) -> None:
    """The third launch of the march that it comes in is not begun."""
    log = tmp_path / "log"
    fake.add(f"log {log}", f"partner memory_verify_write 1 0 {INIT}", "write_speed 1e12", "verify_speed 1e12")
    measured = run(fake, "gate")
    assert measured.obstacle is Obstacle.DISTURBED
    (taken, freed) = (float(line.split()[2]) for line in log.read_text().splitlines())
    assert measured.memory is not None
    probe_and_two_steps = 2 + 1 + 2  # passes over the memory
    assert freed - taken == pytest.approx(probe_and_two_steps * measured.memory.tested / 1e12, rel=0.01)


def test_what_was_wrong_before_a_process_came_is_kept(fake: FakeCuda) -> None:
    fake.add("wrong int8 17 1 3", f"partner int8 5 0 {INIT}")
    measured = run(fake)
    assert measured.obstacle is Obstacle.DISTURBED
    (int8,) = measured.kernels
    assert (int8.deviations[0].sm, int8.deviations[0].chunks) == (17, 2)
    assert int8.chunks == 2  # of five launches, three of which warm up: there was no sixth


@pytest.mark.slow
def test_worker_that_does_not_see_itself_on_the_gpu_does_not_test_it(fake: FakeCuda) -> None:
    """A worker in a PID namespace of its own would see no other process either."""
    fake.nvml.write(gpus=1)  # which lists no contexts any more
    measured = run(fake)
    assert measured.obstacle is Obstacle.UNSUPPORTED
    assert "PID namespace" in measured.text
    assert measured.kernels == ()


@pytest.mark.needs("root")
def test_worker_in_a_pid_namespace_of_its_own_does_not_test(fake: FakeCuda) -> None:
    """There the driver lists this worker, and leaves out whoever is outside."""
    asked = request(fake, parent=0)  # nobody's child there
    process = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *command(asked)], env=ENVIRONMENT,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        measured = ActiveWorker(process).measured("all")
    assert measured.obstacle is Obstacle.UNSUPPORTED
    assert "test in the host's PID namespace" in measured.text
    assert measured.memory is None
    assert measured.kernels == ()
    assert fake.holders() == set()


def test_gpu_of_which_processes_cannot_be_listed_is_not_tested(fake: FakeCuda) -> None:
    fake.nvml.error(0, "nvmlDeviceGetComputeRunningProcesses_v3", 15)
    measured = run(fake)
    assert measured.obstacle is Obstacle.FAILED_CALL
    assert "NVML does not report which processes use it" in measured.text
    assert fake.holders() == set()


def test_gpu_that_vanishes_in_the_middle_ends_the_test(fake: FakeCuda) -> None:
    with active_worker(request(fake), fake.contexts) as worker:
        worker.until(asks="memory")
        fake.nvml.vanish(0)
        worker.answer("all")
        measured = worker.measured()
    assert measured.obstacle is Obstacle.FAILED_CALL
    assert "NVML does not report which processes use it" in measured.text
    assert (len(measured.kernels), measured.memory) == (1, None)


@pytest.mark.slow
def test_transfers_wait_for_their_turn(fake: FakeCuda) -> None:
    """A test transfers data with one GPU at a time."""
    lock = os.open(fake.contexts, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with active_worker(request(fake, "quick"), fake.contexts) as worker:
        worker.until(phase="start")
        wait(fake.holders, "a context")
        time.sleep(0.3)
        os.close(lock)
        released = len(worker.lines)
        measured = worker.measured("none")
    assert released == 1
    assert measured.pcie is not None


# --- Calls that fail ---------------------------------------------------------------------------------------------------

FAILURES = [
    ("cuInit 999", Obstacle.UNSUPPORTED, "/dev/nvidia-uvm is missing"),
    ("cuInit 2", Obstacle.UNSUPPORTED, "LimitAS"),
    ("cuInit 100", Obstacle.UNSUPPORTED, "control group or a container"),
    ("cuInit 802", Obstacle.UNSUPPORTED, "nvidia-fabricmanager"),
    ("cuInit 803", Obstacle.UNSUPPORTED, "reboot"),
    ("cuInit 807", Obstacle.BUSY, "MPS"),
    ("cuInit 12345", Obstacle.FAILED_CALL, "12345"),
    ("cuDevicePrimaryCtxRetain 46", Obstacle.BUSY, "nvidia-smi -c 0"),
    ("cuDevicePrimaryCtxRetain 2", Obstacle.BUSY, "taken its memory"),
    ("cuModuleLoadData 221", Obstacle.UNSUPPORTED, "libnvidia-ptxjitcompiler.so.1"),
    ("cuModuleLoadData 222", Obstacle.UNSUPPORTED, "older than 450"),
    ("cuMemHostAlloc 2", Obstacle.UNSUPPORTED, "control group of this process"),
    ("cuLaunchKernel 201", Obstacle.FAILED_CALL, "report it"),
    ("cuEventSynchronize 214 20", Obstacle.GPU_ERROR, "uncorrectable memory error"),
    ("int8 700 2", Obstacle.GPU_ERROR, "known to be right"),
    ("bf16 719", Obstacle.GPU_ERROR, "known to be right"),
    ("memory_verify 214 3", Obstacle.GPU_ERROR, "needs a reset"),
    ("cuEventSynchronize 999 20", Obstacle.FAILED_CALL, "report it"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "obstacle", "words"), FAILURES, ids=[fault for fault, *_ in FAILURES])
def test_failed_call_says_whose_fault_it_is_and_what_to_do(
    fake: FakeCuda, fault: str, obstacle: Obstacle, words: str
) -> None:
    fake.add(f"error {fault}")
    measured = run(fake, "quick")
    assert measured.obstacle is obstacle
    call, code = fault.split()[:2]
    assert words in measured.text
    assert f"({code})" in measured.text
    assert fake.uuids[0] in measured.text
    assert call in measured.text or not call.startswith("cu")


@pytest.mark.slow
def test_error_in_a_late_phase_keeps_what_was_measured(fake: FakeCuda) -> None:
    fake.add("error memory_verify_write 214 4")
    measured = run(fake, "quick")
    assert measured.obstacle is Obstacle.GPU_ERROR
    assert measured.pcie is not None
    assert len(measured.kernels) == 4
    assert measured.memory is not None
    assert measured.memory.marches == 1


def test_kernel_that_leaves_no_result_is_an_error_of_the_gpu(fake: FakeCuda) -> None:
    fake.add("silent int8 4")
    measured = run(fake)
    assert measured.obstacle is Obstacle.GPU_ERROR
    assert "1056 of 1056 warps of int8 left no result" in measured.text


def test_gpu_that_is_too_old_for_the_memory_kernels_is_unsupported(fake: FakeCuda) -> None:
    fake.add("capability 6 1")
    measured = run(fake)
    assert measured.obstacle is Obstacle.UNSUPPORTED
    assert "6.1" in measured.text


def test_gpu_with_the_hosts_memory_is_unsupported(fake: FakeCuda) -> None:
    """99 % of its memory are 99 % of everybody's."""
    fake.add("integrated")
    measured = run(fake)
    assert (measured.obstacle, measured.memory) == (Obstacle.UNSUPPORTED, None)
    assert "no memory of its own" in measured.text


def test_host_without_libcuda_is_unsupported(fake: FakeCuda) -> None:
    measured = run(fake, cuda_library="libnot-there.so.1")
    assert measured.obstacle is Obstacle.UNSUPPORTED
    assert "libnot-there.so.1 could not be loaded" in measured.text


def test_libcuda_without_a_function_is_unsupported(fake: FakeCuda) -> None:
    measured = run(fake, cuda_library="libc.so.6")
    assert measured.obstacle is Obstacle.UNSUPPORTED
    assert "has no cuInit" in measured.text


def test_host_without_nvml_is_unsupported(fake: FakeCuda) -> None:
    measured = run(fake, nvml_library="/not/there.so")
    assert measured.obstacle is Obstacle.UNSUPPORTED
    assert "processes on GPUs cannot be listed" in measured.text


@pytest.mark.parametrize("visible", ["", "none", "7", "GPU-00000000-0000-0000-0000-000000000000"])
def test_environment_that_hides_gpus_has_no_effect(fake: FakeCuda, visible: str) -> None:
    with active_worker(request(fake), fake.contexts, CUDA_VISIBLE_DEVICES=visible) as worker:
        assert worker.measured("none").obstacle is None


def test_gpu_that_cuda_does_not_list_is_unsupported(fake: FakeCuda, tmp_path: Path) -> None:
    """NVML does: its device files may be withheld from this process, and nothing is said of the GPU."""
    (tmp_path / "two").mkdir()
    both = FakeCuda.build(tmp_path / "two", gpus=2)
    second = request(both) | {"uuid": both.uuids[1], "cuda_library": str(fake.library)}
    with active_worker(second, both.contexts) as worker:
        measured = worker.measured()
    assert measured.obstacle is Obstacle.UNSUPPORTED
    assert both.uuids[1] in measured.text


# --- Ends by force ---------------------------------------------------------------------------------------------------------

HANGS = {
    "cuInit": "cuInit",
    "context": "cuDevicePrimaryCtxRetain",
    "modules": "cuModuleLoadData 2",
    "pcie": "cuMemcpyHtoDAsync_v2 4",
    "compute": "bf16 3",
    "memory": f"memory_verify {DISCARDED + JUDGED + 3}",
    "free": "cuMemFree_v2 4",
}


@pytest.mark.slow
@pytest.mark.parametrize("phase", HANGS)
def test_sigterm_ends_it_at_once_in_every_phase(fake: FakeCuda, phase: str) -> None:
    fake.add(f"hang {HANGS[phase]}")
    with active_worker(request(fake, "quick"), fake.contexts) as worker:
        if phase in ("memory", "free"):
            worker.until(asks="memory")
            worker.answer("all")
        wait_until_it_hangs(worker.process.pid)
        worker.process.terminate()
        assert worker.process.wait(SOON) == -signal.SIGTERM
        assert "measured" not in "".join(map(str, worker.lines))


def test_sigterm_ends_it_while_it_waits_for_an_answer(fake: FakeCuda) -> None:
    with active_worker(request(fake), fake.contexts) as worker:
        worker.until(asks="memory")
        worker.process.terminate()
        assert worker.process.wait(SOON) == -signal.SIGTERM


def test_interrupt_from_the_terminal_is_left_to_the_parent(fake: FakeCuda) -> None:
    with active_worker(request(fake), fake.contexts) as worker:
        worker.until(asks="memory")
        worker.process.send_signal(signal.SIGINT)
        worker.answer("all")
        assert worker.measured().obstacle is None


@pytest.mark.parametrize("hang", ["cuInit", "int8 2"])
def test_end_of_stdin_ends_it_even_in_a_call_that_hangs(fake: FakeCuda, hang: str) -> None:
    fake.add(f"hang {hang}")
    with active_worker(request(fake), fake.contexts) as worker:
        wait_until_it_hangs(worker.process.pid)
        assert worker.process.stdin is not None
        worker.process.stdin.close()
        assert worker.process.wait(SOON) == 0
        assert worker.read().get("measured") is None


@pytest.mark.parametrize("hang", ["cuInit", "memory_write 2"])
def test_killed_parent_takes_it_along(fake: FakeCuda, hang: str) -> None:
    """The worker ends even if the library hangs, and another process holds its streams open."""
    fake.add(f"hang {hang}")
    script = (
        "import json, os, subprocess, sys, time\n"
        "asked = json.loads(sys.argv[1]) | {'parent': os.getpid()}\n"
        "worker = subprocess.Popen([*sys.argv[2:], json.dumps(asked)], stdin=0)\n"
        "print(json.dumps({'pid': worker.pid}), flush=True)\n"
        "time.sleep(1000)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, json.dumps(request(fake)), *command("")[:-1]],
        env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as parent:  # fmt: skip
        try:
            worker = ActiveWorker(parent)
            while "pid" not in (line := worker.read()):  # the worker may be faster than its parent
                assert line
            pid = line["pid"]
            if hang != "cuInit":
                worker.until(asks="memory")
                worker.answer("all")
            wait_until_it_hangs(pid)
            parent.kill()
            wait(lambda: gone(pid), f"process {pid} to end")
        finally:
            parent.kill()


def test_worker_whose_parent_is_another_process_ends_at_once(fake: FakeCuda) -> None:
    with active_worker(request(fake, parent=INIT), fake.contexts) as worker:
        assert worker.read() == {}
        assert worker.process.wait(SOON) == 0


def test_it_has_the_name_that_xids_are_attributed_by(fake: FakeCuda) -> None:
    with active_worker(request(fake), fake.contexts) as worker:
        worker.until(asks="memory")
        assert Path(f"/proc/{worker.process.pid}/comm").read_text().strip() == TESTER


# --- What it is asked -----------------------------------------------------------------------------------------------------

REFUSALS = [
    ("", "Expecting value"),
    ("[]", "expected"),
    ({"uuid": "0"}, "no UUID"),
    ({"uuid": "GPU-1b3c9e1a-7d42-4b8f-a1c6-5e0f2d9b8a37,0"}, "no UUID"),
    ({"uuid": None}, "uuid"),
    ({"slot": ""}, "not a PCI address"),
    ({"level": "soak"}, "level"),
    ({"parent": "1"}, "parent"),
    ({"memory_most": 0}, "memory_most"),
    ({"memory_most": -5}, "memory_most"),
    ({"seed": -1}, "seed"),
    ({"seed": 1 << 70}, "seed"),
    ({"peers": ["all"]}, "no UUID"),
    ({"peers": ["GPU-1b3c9e1a-7d42-4b8f-a1c6-5e0f2d9b8a37"]}, "each once"),
]


@pytest.mark.parametrize(("asked", "words"), first_quick(4, REFUSALS), ids=[str(asked) for asked, _ in REFUSALS])
def test_request_that_is_none_is_refused(fake: FakeCuda, asked: str | dict[str, object], words: str) -> None:
    whole = asked if isinstance(asked, str) else json.dumps(request(fake) | asked)
    done = subprocess.run(command(whole), env=ENVIRONMENT, capture_output=True, text=True, check=False, stdin=0)
    assert (done.returncode, done.stdout) == (REFUSED, "")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["{}", "{}"]])
def test_other_than_one_argument_is_refused(arguments: list[str]) -> None:
    done = subprocess.run(
        [*command("")[:-1], *arguments], env=ENVIRONMENT, capture_output=True, text=True, check=False, stdin=0
    )
    assert done.returncode == REFUSED


def test_key_of_a_newer_parent_is_ignored(fake: FakeCuda) -> None:
    assert run(fake, memory="none", colour="red").obstacle is None
