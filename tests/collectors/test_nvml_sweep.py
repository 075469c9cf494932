"""Passes over GPUs that are well, sick, lost, renumbered or strange, with the vendor's bindings over the fake library."""

from __future__ import annotations

import ctypes.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from gpuwarden_collectors.base import SourceAbsent
from gpuwarden_collectors.codec import from_wire, to_wire
from gpuwarden_collectors.facts import GpuAnswer, GpuProcess, MigInstance, NvmlFacts, NvmlProblem
from gpuwarden_collectors.gpu_readings import GpuReadings
from gpuwarden_collectors.nvml.library import Code
from gpuwarden_collectors.nvml.options import NvmlOptions
from gpuwarden_collectors.nvml.reader import NvmlReader
from support.nvml_nodes import Node, node_in

VITAL = (
    "nvmlDeviceGetTemperatureV",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetPerformanceState",
    "nvmlDeviceGetUtilizationRates",
)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    with node_in(tmp_path, monkeypatch) as node:
        yield node


def run_python(code: str, environment: dict[str, str]) -> str:
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return done.stdout.strip()


# --- healthy GPUs


def test_eight_healthy_gpus_respond_with_their_identity(node: Node) -> None:
    node.reader.connect()
    facts = node.read()
    assert (facts.problem, facts.simulated) == (None, False)
    assert (facts.driver_version, facts.nvml_version, facts.cuda_version) == ("570.172.08", "12.570.172.08", "12.8")
    assert [gpu.index for gpu in facts.gpus] == list(range(8))
    assert {(gpu.answer, gpu.errors) for gpu in facts.gpus} == {(GpuAnswer.OK, ())}
    first = facts.gpus[0]
    assert (first.slot, first.name, first.vbios, first.minor) == (
        "0000:1b:00.0",
        "NVIDIA H100 80GB HBM3",
        "96.00.99.00.01",
        0,
    )
    assert first.uuid.startswith("GPU-")
    assert first.serial


def test_what_was_read_survives_the_way_out_of_the_worker_process(node: Node) -> None:
    node.fake.mig(1, 1, 0, "3g.40gb", 40448).process(0, 4711, 1 << 30).lost(2)
    node.reader.connect()
    node.read()
    facts = node.read()
    assert from_wire(NvmlFacts, json.loads(json.dumps(to_wire(facts)))) == facts


def test_compute_processes_are_listed_with_their_memory(node: Node) -> None:
    node.fake.process(0, 4711, 1 << 30).process(0, 4712, "none")
    node.reader.connect()
    assert node.gpu().processes == (GpuProcess(pid=4711), GpuProcess(pid=4712))
    assert node.gpu(1).processes == ()


def test_mig_instances_are_listed_and_processes_name_theirs(node: Node) -> None:
    node.fake.mig(0, 1, 0, "3g.40gb", 40448).mig(0, 2, 1, "1g.10gb", 9728).process(0, 99, 1 << 20, (2, 1))
    node.reader.connect()
    gpu = node.gpu()
    assert [(instance.gpu_instance, instance.compute_instance, instance.profile) for instance in gpu.mig] == [
        (1, 0, "3g.40gb"),
        (2, 1, "1g.10gb"),
    ]
    assert gpu.mig[0].memory_total_bytes == gpu.mig[0].bar1_total_bytes == 40448 << 20
    assert (gpu.mig[1].memory_used_bytes, gpu.mig[1].memory_reserved_bytes) == (1 << 20, 0)
    assert gpu.mig[0].uuid.startswith("MIG-")
    assert gpu.processes == (GpuProcess(pid=99, gpu_instance=2, compute_instance=1),)
    assert node.gpu(1).mig == ()


def test_a_mig_instance_without_memory_is_still_listed(node: Node) -> None:
    node.fake.mig(0, 1, 0, "3g.40gb", 40448)
    for call in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetBAR1MemoryInfo"):
        node.fake.error(0, call, Code.NO_PERMISSION)
    node.reader.connect()
    [instance] = node.gpu().mig
    assert instance == MigInstance(gpu_instance=1, compute_instance=0, uuid=instance.uuid, profile="3g.40gb")


def test_no_gpus_at_all_is_an_empty_answer_and_no_problem(node: Node) -> None:
    node.fake.write(gpus=0)
    node.reader.connect()
    facts = node.read()
    assert (facts.gpus, facts.problem) == ((), None)


# --- sick GPUs


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        (Code.GPU_IS_LOST, GpuAnswer.LOST),
        (Code.RESET_REQUIRED, GpuAnswer.RESET_REQUIRED),
        (Code.TIMEOUT, GpuAnswer.TIMEOUT),
        (Code.UNKNOWN, GpuAnswer.UNKNOWN),
        (Code.NO_PERMISSION, GpuAnswer.UNKNOWN),
        (4711, GpuAnswer.UNKNOWN),
    ],
)
def test_a_gpu_whose_every_call_fails_hides_none_of_the_others(node: Node, code: int, answer: GpuAnswer) -> None:
    node.reader.connect()
    before = node.read().gpus[3]
    node.fake.lost(3, code)
    facts = node.read()
    assert [gpu.answer for gpu in facts.gpus] == [answer if index == 3 else GpuAnswer.OK for index in range(8)]
    sick = facts.gpus[3]
    assert (sick.slot, sick.uuid, sick.name, sick.index) == (before.slot, before.uuid, before.name, 3)
    assert sick.readings == GpuReadings()
    assert sick.errors[0].code == code
    assert all(gpu.readings.temperature for gpu in facts.gpus if gpu is not sick)
    node.fake.clear()
    assert [gpu.answer for gpu in node.read().gpus] == [GpuAnswer.OK] * 8


@pytest.mark.parametrize("call", ["nvmlDeviceGetUUID", *VITAL, "nvmlDeviceGetNvLinkState", "field:230"])
@pytest.mark.parametrize(("code", "answer"), [(Code.GPU_IS_LOST, GpuAnswer.LOST), (Code.TIMEOUT, GpuAnswer.TIMEOUT)])
def test_a_gpu_lost_in_the_middle_of_a_pass_gives_no_readings(
    node: Node, call: str, code: Code, answer: GpuAnswer
) -> None:
    node.reader.connect()
    node.read()
    node.fake.error(5, call, code)
    facts = node.read()
    assert (facts.gpus[5].answer, facts.gpus[5].readings) == (answer, GpuReadings())
    assert facts.gpus[5].errors[-1].code == code
    assert facts.gpus[6].answer is GpuAnswer.OK


def test_a_gpu_that_needs_a_reset_still_gives_what_it_can(node: Node) -> None:
    node.fake.error(2, "nvmlDeviceGetUtilizationRates", Code.RESET_REQUIRED).reading(2, "remapped_rows_pending", 1)
    node.reader.connect()
    gpu = node.gpu(2)
    assert gpu.answer is GpuAnswer.RESET_REQUIRED
    assert (gpu.readings.remapped_rows_pending, gpu.readings.utilization_gpu) == (1, None)


def test_a_gpu_that_answers_who_it_is_but_nothing_vital_is_unknown(node: Node) -> None:
    node.reader.connect()
    node.read()
    for call in VITAL:
        node.fake.error(1, call, Code.UNKNOWN)
    gpu = node.gpu(1)
    assert (gpu.answer, gpu.readings, len(gpu.errors)) == (GpuAnswer.UNKNOWN, GpuReadings(), len(VITAL))
    node.fake.clear()
    assert node.gpu(1).answer is GpuAnswer.OK


def test_a_handle_gone_stale_teaches_nothing_about_what_is_supported(node: Node) -> None:
    node.reader.connect()
    node.read()
    for call in (*VITAL, "nvmlDeviceGetTemperature", "nvmlDeviceGetMemoryInfo"):
        node.fake.error(1, call, Code.INVALID_ARGUMENT)
    assert node.gpu(1).answer is GpuAnswer.UNKNOWN
    node.fake.clear()
    assert node.gpu(1).readings.temperature is not None


def test_one_failing_call_is_one_error_and_asked_again(node: Node) -> None:
    node.fake.error(0, "nvmlDeviceGetRemappedRows", Code.UNKNOWN).error(0, "field:230", Code.NO_PERMISSION)
    node.reader.connect()
    for _ in range(2):
        gpu = node.gpu()
        assert gpu.answer is GpuAnswer.OK
        assert [(error.call, error.code) for error in gpu.errors] == [
            ("nvmlDeviceGetRemappedRows", 999),
            ("field 230", 4),
        ]
        assert gpu.errors[0].text == "Unknown Error"
        assert gpu.readings.remapped_rows_failure is gpu.readings.recovery_action is None
        assert gpu.readings.temperature is not None
    node.fake.clear()
    assert (node.gpu().errors, node.gpu().readings.remapped_rows_failure) == ((), 0)


def test_the_errors_of_one_pass_are_bounded(node: Node) -> None:
    node.fake.add(*(f"error 0 field:{number} 999" for number in range(60)))
    node.reader.connect()
    assert len(node.gpu().errors) <= 32


def test_bindings_that_stumble_over_one_gpu_hide_none_of_the_others(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.reader.connect()
    sick = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(2))
    original = pynvml.nvmlDeviceGetPowerUsage

    def stumbling(handle: object) -> int:
        if pynvml.nvmlDeviceGetUUID(handle) == sick:
            raise AttributeError("no such member")
        return int(original(handle))

    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", stumbling)
    facts = node.read()
    assert [gpu.answer for gpu in facts.gpus].count(GpuAnswer.OK) == 7
    assert facts.gpus[2].answer is GpuAnswer.UNKNOWN
    assert facts.gpus[2].errors[0].text == "AttributeError: no such member"


# --- GPUs that come, go and are renumbered


def test_a_vanished_gpu_leaves_the_list_and_the_rest_keep_their_slots(node: Node) -> None:
    node.reader.connect()
    before = {gpu.slot: gpu.uuid for gpu in node.read().gpus}
    node.fake.vanish(3)
    facts = node.read()
    assert [gpu.index for gpu in facts.gpus] == list(range(7))
    assert {gpu.slot: gpu.uuid for gpu in facts.gpus} == {s: u for s, u in before.items() if s != "0000:42:00.0"}
    node.fake.clear()
    assert {gpu.slot: gpu.uuid for gpu in node.read().gpus} == before


def test_a_gpu_that_was_lost_from_the_start_has_no_slot(node: Node) -> None:
    node.fake.lost(3)
    node.reader.connect()
    facts = node.read()
    assert (facts.gpus[3].slot, facts.gpus[3].uuid, facts.gpus[3].answer) == ("", "", GpuAnswer.LOST)
    assert len(facts.gpus) == 8


def test_two_gpus_lost_from_the_start_are_two_gpus(node: Node) -> None:
    node.fake.lost(3).lost(4)
    node.reader.connect()
    assert [gpu.answer for gpu in node.read().gpus].count(GpuAnswer.LOST) == 2


def test_no_slot_is_guessed_for_a_lost_gpu_when_another_vanished(node: Node) -> None:
    node.reader.connect()
    node.read()
    node.fake.vanish(2).lost(6)
    facts = node.read()
    assert [gpu.slot for gpu in facts.gpus if gpu.answer is GpuAnswer.LOST] == [""]
    assert len({gpu.slot for gpu in facts.gpus}) == 7


# --- strange answers


@pytest.mark.parametrize("name", ["name", "serial", "vbios", "uuid"])
def test_a_text_that_is_no_utf_8_is_kept_with_replacements(node: Node, name: str) -> None:
    node.fake.text(4, name, b"GPU-\xff\xfe bad")
    node.reader.connect()
    gpu = node.gpu(4)
    assert (getattr(gpu, name), gpu.answer, gpu.errors) == (
        "GPU-\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER} bad",
        GpuAnswer.OK,
        (),
    )


def test_of_two_gpus_in_one_slot_the_first_is_kept_and_the_second_reported(node: Node) -> None:
    node.fake.text(5, "pci_bus_id", "00000000:4F:00.0")  # that of GPU 4
    node.reader.connect()
    facts = node.read()
    assert [gpu.index for gpu in facts.gpus] == [0, 1, 2, 3, 4, 6, 7]
    assert facts.gpus[4].errors[-1].text == "GPU 5 reports the same slot and is left out"


@pytest.mark.parametrize("address", ["garbage", b"\xff\xff", "00000000:1G:00.0"])
def test_a_gpu_with_a_senseless_address_is_unknown(node: Node, address: str | bytes) -> None:
    node.fake.text(1, "pci_bus_id", address)
    node.reader.connect()
    facts = node.read()
    assert (facts.gpus[1].slot, facts.gpus[1].answer) == ("", GpuAnswer.UNKNOWN)
    assert "not a PCI address" in facts.gpus[1].errors[0].text
    assert [gpu.answer for gpu in facts.gpus].count(GpuAnswer.OK) == 7


def test_versions_that_cannot_be_read_are_empty(node: Node) -> None:
    node.fake.error("*", "nvmlSystemGetDriverVersion", Code.UNKNOWN)
    node.fake.error("*", "nvmlSystemGetCudaDriverVersion_v2", Code.NOT_SUPPORTED)
    node.reader.connect()
    facts = node.read()
    assert (facts.driver_version, facts.cuda_version, len(facts.gpus)) == ("", "", 8)


# --- NVML as a whole


@pytest.mark.parametrize(
    ("code", "problem", "text"),
    [
        (Code.DRIVER_NOT_LOADED, NvmlProblem.DRIVER_NOT_LOADED, "Driver Not Loaded"),
        (Code.LIB_RM_VERSION_MISMATCH, NvmlProblem.LIBRARY_MISMATCH, "version mismatch"),
        (Code.NO_PERMISSION, NvmlProblem.NO_PERMISSION, "Insufficient Permissions"),
        (Code.UNKNOWN, NvmlProblem.OTHER, "Unknown Error"),
    ],
)
def test_a_driver_that_appears_later_is_seen_in_the_next_pass(
    node: Node, code: Code, problem: NvmlProblem, text: str
) -> None:
    node.fake.init_error(code)
    node.reader.connect()
    for _ in range(2):
        facts = node.read()
        assert (facts.problem, facts.gpus) == (problem, ())
        assert text in facts.problem_text
    node.fake.clear()
    facts = node.read()
    assert (facts.problem, len(facts.gpus)) == (None, 8)


@pytest.mark.parametrize("code", [Code.UNINITIALIZED, Code.DRIVER_NOT_LOADED, Code.UNKNOWN])
def test_a_library_that_stops_counting_is_initialised_again(node: Node, code: Code) -> None:
    node.reader.connect()
    node.read()
    node.fake.error("*", "nvmlDeviceGetCount_v2", code)
    assert node.read().problem is not None
    node.fake.clear()
    assert len(node.read().gpus) == 8


def test_a_library_that_cannot_be_loaded_is_absent_and_named(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.so", tmp_path / "text.so"):
        (tmp_path / "text.so").write_text("this is no library")
        with pytest.raises(SourceAbsent, match=rf"{path.name} \(collectors.nvml.library\) could not be loaded"):
            NvmlReader(NvmlOptions(library=str(path))).connect()


@pytest.mark.skipif(ctypes.util.find_library("nvidia-ml") is not None, reason="this host has NVML")
def test_a_host_without_the_library_has_no_such_source() -> None:
    code = """
from gpuwarden_collectors.base import SourceAbsent
from gpuwarden_collectors.nvml.options import NvmlOptions
from gpuwarden_collectors.nvml.reader import NvmlReader
reader = NvmlReader(NvmlOptions())
for ask in (reader.connect, reader.read):
    try:
        ask()
    except SourceAbsent as error:
        print(error)
"""
    assert run_python(code, {}).count("libnvidia-ml.so.1 is not installed") == 2


def test_the_loader_finds_the_library_where_none_is_configured(node: Node) -> None:
    code = """
from gpuwarden_collectors.nvml.options import NvmlOptions
from gpuwarden_collectors.nvml.reader import NvmlReader
reader = NvmlReader(NvmlOptions())
reader.connect()
print(len(reader.read().gpus))
"""
    assert run_python(code, node.fake.environment) == "8"


def test_importing_the_sweep_loads_no_vendor_library() -> None:
    code = "import gpuwarden_collectors.nvml.reader, pynvml; print(pynvml.nvmlLib)"
    assert run_python(code, {}) == "None"


def test_closing_twice_or_before_connecting_does_no_harm(node: Node) -> None:
    node.reader.close()
    node.reader.connect()
    node.reader.close()
    node.reader.close()
    assert len(node.read().gpus) == 8
