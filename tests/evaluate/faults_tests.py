"""What an active test finds in a GPU whose readings show nothing: results are handed in as `gpuwarden test` does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from evaluate.clockwork import Process
from evaluate.fault_class import Strike
from evaluate.node import Node
from gpuwarden.features.active_test.judging.judgement import judge
from gpuwarden.features.active_test.judging.past import kept
from gpuwarden.features.active_test.judging.results import tested
from gpuwarden_collectors.active_test.facts import GpuTest, Obstacle
from support.active_tests import healthy, off, slowed, wrong_result, wrong_words


def found_by_test(bad: Callable[[GpuTest], GpuTest]) -> Strike:
    """A quick test of all GPUs: this one is as `bad` has it."""

    def strike(node: Node, n: int) -> Process:
        gpus = enumerate(node.gpus)
        tests = [replace(healthy(k), uuid=gpu.uuid, slot=gpu.slot, name=gpu.name, started=node.now) for k, gpu in gpus]
        tests[n] = bad(tests[n])
        outcomes = judge(tests)
        results = ((test.slot, kept(test, outcomes[test.uuid], node.now)) for test in tests)
        node.active_tested(*(tested(slot, result, node.boot_id) for slot, result in results))
        yield 0.0

    return strike


wrong_memory = found_by_test(lambda test: wrong_words(test, (0, 0x4000)))
wrong_sm = found_by_test(lambda test: wrong_result(test, (17, 3)))
hung = found_by_test(lambda test: replace(test, obstacle=Obstacle.HUNG, text="CUDA did not start"))
slow_sm = found_by_test(lambda test: off(test, (77, 20, 0.002)))
slow_memory = found_by_test(lambda test: slowed(test, memory=0.5))
