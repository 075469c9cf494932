"""Public stories that are no row, each with the reason: a host of records cannot be made of them without inventing what decides."""

from __future__ import annotations

from types import MappingProxyType

LEFT_OUT: MappingProxyType[str, str] = MappingProxyType(
    {
        "B01": "a GPU at a third of its speed: the record has results of a benchmark, and no reading that would show it",
        "B27": "how a reader hangs: nothing of it reaches the judge (collectors/test_processes.py)",
        "B31": "wrong results: nothing that is read shows them",
        "B44": "a slow network link whose every reading is well",
        "B46": "empty library files in the containers of jobs, which a host does not see",
        "B47": "the host dies without a line: nothing is left to judge",
        "C09": "the record has the number of the Xid and not the registers by which it is judged",
        "D02": "the record has no reading from before the stall",
        "D05": "a worker hangs after a library's update, without figures",
        "D07": "errors of the communication library; of the ports no state and no times",
        "D08": "two pairs of nodes slower than others: nothing of it is read on a node",
        "D09": "processes outlive a test that no scheduler knows of",
        "D13": "times of iterations; neither the processes on the GPUs nor who had a job there, by which alone a guest is known (docs/develop/decisions.md)",
        "E08": "counts of a study", "E09": "counts of a study", "E10": "counts of a study",
    }
)  # fmt: skip
