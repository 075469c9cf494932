"""Signals the steps of a job that this node runs, on all their nodes, through the controller.

A step that runs only on other nodes is left out: whether its tasks catch the signal is not known here, and it would end
those that do not. Each step is signalled by its own name: a signal to the job as such also kills the sleeping process
of its extern step (PrologFlags=Contain), and with it ssh sessions, and the shell of an interactive job. `--full` is
never used: it reaches srun, which kills all tasks on TERM. Success of the command is no proof: it also succeeds during
a prolog, when nothing is signalled.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.receivers.facts import SIGNALS
from gpuwarden_collectors.slurm.client import Commands
from gpuwarden_collectors.slurm.command_record import of_several
from gpuwarden_collectors.slurm.departing import read_steps
from gpuwarden_collectors.slurm.departing_facts import SlurmJob
from gpuwarden_collectors.slurm.errors import SlurmError

_STEPS_AT_ONCE = 64
_STEPS_MOST = 1024
_ENDED = ("Invalid job id", "Invalid job step", "already completing or completed")


class Signalling(StrEnum):
    READY = "ready"  # nothing is sent yet
    SENT = "sent"  # the controller accepted it
    NO_STEPS = "no_steps"  # the job has no numbered step, or none of them is here
    IN_PARTS = "in_parts"  # a step of it has several parts, of which Slurm signals the first only: nothing was sent
    GONE = "gone"  # it had ended


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalOutcome:
    """The result of signalling a job."""

    result: Signalling
    text: str
    """For people."""
    steps: tuple[str, ...] = ()
    """The steps that were signalled, as Slurm names them."""


async def find_steps(commands: Commands, job: SlurmJob, here: Collection[str]) -> SignalOutcome:
    """Find the job's steps that still run, of those `here`, by number. Sends nothing.

    READY for `signal_steps`, its text what is left out; or why there is nothing to signal. Raises SlurmError.
    """
    steps = await _steps(commands, job)
    if steps is None:
        return SignalOutcome(result=Signalling.GONE, text="it had ended")
    if not steps:
        return SignalOutcome(result=Signalling.NO_STEPS, text="it has no step that could be signalled")
    steps_here = tuple(step for step in steps if _number(step) in here)
    # `srun a : b`: scancel has no name for the second. From 26.05 on (not in 25.11) Slurm names the parts alike: one step, twice.
    if parts := [step for step in steps_here if "+" in step or steps_here.count(step) > 1]:
        text = f"its step {parts[0]} is one of several parts, of which Slurm signals the first only"
        return SignalOutcome(result=Signalling.IN_PARTS, text=text)
    left = tuple(step for step in steps if step not in steps_here)
    text = f"no rank that catches it is here in step {_named(left)}, which gets no signal" if left else ""
    if not steps_here:
        return SignalOutcome(result=Signalling.NO_STEPS, text=text)
    return SignalOutcome(result=Signalling.READY, text=text, steps=steps_here)


async def signal_steps(
    commands: Commands, job: SlurmJob, steps: Sequence[str], signal: str, record: int | None = None
) -> SignalOutcome:
    """Send one of SIGNALS to these steps of the job. `record`: an open one of `CommandRecords`. Raises SlurmError;
    the signal may be sent even then.
    """
    _allowed(signal)
    if record is not None and len(steps) > _STEPS_AT_ONCE:
        of_several(record)
        record = None
    ended = False
    for first in range(0, len(steps), _STEPS_AT_ONCE):
        command = ("scancel", f"--signal={signal}", *steps[first : first + _STEPS_AT_ONCE])
        ended |= not await _sent(commands, f"cannot signal job {job.called}", *command, record=record)
    text = f"SIG{signal} to step {_named(steps)}"
    if ended:
        text += "; one of them had ended"
    return SignalOutcome(result=Signalling.SENT, text=text, steps=tuple(steps))


async def signal_batch(commands: Commands, job: SlurmJob, signal: str, record: int | None = None) -> SignalOutcome:
    """Send one of SIGNALS to the process of the batch script alone, on whatever node it is. Raises SlurmError; the
    signal may be sent even then.
    """
    _allowed(signal)
    undone = f"cannot signal the batch script of job {job.called}"
    if not await _sent(commands, undone, "scancel", f"--signal={signal}", "--batch", job.in_steps, record=record):
        return SignalOutcome(result=Signalling.GONE, text="it had ended")
    return SignalOutcome(
        result=Signalling.SENT, text=f"SIG{signal} to the batch script", steps=(f"{job.called}.batch",)
    )


def _allowed(signal: str) -> None:
    if signal not in SIGNALS:
        raise ValueError(f"a job gets one of {', '.join(SIGNALS)}, never {signal!r}")


def _number(step: str) -> str:
    """Return the number of a step with a name such as 12.0, 7_3.0 or 12.0+1."""
    return step.partition(".")[2].partition("+")[0]


def _named(steps: Sequence[str]) -> str:
    return f"{', '.join(steps[:8])}{' …' if len(steps) > 8 else ''}"


async def _steps(commands: Commands, job: SlurmJob) -> tuple[str, ...] | None:
    """Return the job's steps that have a number; None if Slurm no longer has the job."""
    try:
        steps = await read_steps(commands, job)
    except SlurmError as error:
        if _has_ended(error):
            return None
        raise
    return tuple(f"{job.in_steps}.{step}" for step in steps if step[0].isdigit())[:_STEPS_MOST]


async def _sent(commands: Commands, undone: str, *command: str, record: int | None) -> bool:
    """Run the command. False if the job had ended."""
    try:
        await commands.change(undone, *command, record=record)
    except SlurmError as error:
        if _has_ended(error):
            return False
        raise
    return True


def _has_ended(error: SlurmError) -> bool:
    return any(text in str(error) for text in _ENDED)
