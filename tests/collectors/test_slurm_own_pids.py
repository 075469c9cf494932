"""Which numbers of `scontrol listpids` are processes of this host: tables. A job with a PID namespace is listed by its numbers in there."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gpuwarden_collectors.slurm.departing_facts import ListedPid
from gpuwarden_collectors.slurm.own_pids import Place, own_pids

Listed = Mapping[int, tuple[int, str]]
A, B = (None, "sA"), (None, "sB")

CASES: dict[str, tuple[Listed, Mapping[int, Place], set[int]]] = {
    "without control groups": ({400: (1, "0"), 500: (2, "0")}, {}, {400, 500}),
    "each in its job's group": ({400: (1, "0"), 500: (2, "0")}, {400: (1, ""), 500: (2, "")}, {400, 500}),
    "a number of a namespace, outside of groups": ({400: (1, "extern"), 10: (1, "0")}, {400: (1, "")}, {400}),
    "a number of a namespace that another job's process has": (
        {400: (1, "extern"), 500: (1, "0"), 501: (2, "0")},
        {400: (1, ""), 500: (2, ""), 501: (2, "")},
        {400, 501},
    ),
    "another Slurm has a job of this number": ({400: (1, "0")}, {}, {400}),
    "SLUIDs": ({400: (1, "0"), 500: (2, "batch")}, {400: A, 500: B}, {400, 500}),
    "SLUIDs, and numbers of a namespace that another job's process has": (
        {400: (1, "extern"), 500: (1, "0"), 501: (2, "extern"), 502: (2, "0")},
        {400: A, 500: B, 501: B, 502: B},
        {400, 501, 502},
    ),
    "SLUIDs that contradict each other without an extern step": ({500: (1, "0"), 501: (2, "0")}, {500: B, 501: B}, set()),
    "one extern step decides": ({500: (1, "0"), 501: (2, "extern")}, {500: B, 501: B}, {501}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_listed_number_counts_where_no_control_group_contradicts_it(case: str) -> None:
    listed, places, own = CASES[case]
    rows = {pid: ListedPid(job=job, step=step) for pid, (job, step) in listed.items()}
    assert set(own_pids(rows, places)) == own
