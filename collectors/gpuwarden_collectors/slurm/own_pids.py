"""Selects the PIDs in slurmd's list that are valid on this host.

For a job with its own PID namespace (namespace/linux, clone_ns_flags) slurmd lists PIDs of that namespace (seen with
26.05.3), which belong to other processes on this host. Only the PID of the job's extern step is a host PID.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpuwarden_collectors.slurm.departing_facts import ListedPid

Place = tuple[int | None, str]
"""The job's number, or None and its SLUID, of a control group."""
_EXTERN = "extern"


def own_pids(listed: Mapping[int, ListedPid], places: Mapping[int, Place]) -> dict[int, ListedPid]:
    """Return the entries of this host. For a job with control groups, these are the PIDs inside its groups.

    `places`: the listed PIDs that are in Slurm's control groups. Without control groups nothing can be checked. Another
    Slurm of this host may have a job of the same number: that its group is there shows nothing.
    """
    sluids = dict(_believed(listed, places))
    theirs = {
        pid
        for pid, (job, sluid) in places.items()
        if job == listed[pid].job or (job is None and sluids.get(listed[pid].job) == sluid)
    }
    placed = {listed[pid].job for pid in theirs}
    return {
        pid: process
        for pid, process in listed.items()
        if pid in theirs or (pid not in places and process.job not in placed)
    }


def _believed(listed: Mapping[int, ListedPid], places: Mapping[int, Place]) -> Iterator[tuple[int, str]]:
    """Yield jobs with their SLUIDs: those of extern steps, and others that no other pair contradicts."""
    named = {(listed[pid].job, sluid): False for pid, (job, sluid) in places.items() if job is None}
    for pid, (job, sluid) in places.items():
        if job is None and listed[pid].step == _EXTERN:
            named[listed[pid].job, sluid] = True
    for (job, sluid), certain in named.items():
        rivals = [pair for pair in named if pair != (job, sluid) and (pair[0] == job or pair[1] == sluid)]
        if certain or not rivals:
            yield job, sluid
