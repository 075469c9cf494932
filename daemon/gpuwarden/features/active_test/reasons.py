"""The explanations of the words that status shows about the test before a return."""

from __future__ import annotations

REASONS = {
    "return_gate": {
        "meaning": "gpuwarden lifts an exclusion for a failure of a GPU, link or switch only after a test of test.level on every GPU found nothing",
        "waits for": "the end of jobs and of other tests, and its turn while test.at_once other nodes are tested",
        "no verdict": "tried three times within 30 minutes, and retried for as long where a test cannot begin on a host that could test before; after that an operator must act",
        "a failed test": "keeps the node out with a finding such as test_failed; after two in one exclusion an operator must act",
        "to do": "gpuwarden test --level LEVEL, which brings the node back if it finds nothing; or gpuwarden restore --untested, which brings it back without a test",
    },
    "test_impossible": {
        "meaning": "this host never could test its GPUs, so the node returns without a test: status shows the reason; each such return is a warning, and an event gate_ended with the result void",
        "because": "no gpuwarden-test.socket, libcuda.so.1, PTX compiler or /dev/nvidia-uvm; or MIG, another compute mode or confidential computing is on for every GPU, or for every GPU that the exclusion is about; other GPUs that cannot be tested are left out",
        "to do": "gpuwarden doctor names what is missing; or set test.return_gate = false for this host, after whose repairs (repair.steps) only readings decide then",
    },
}
