"""Errors of a call: the cause, and what an operator can do.

    SlurmError          any transient error; a call that timed out may still take effect later
      Unreachable       the controller, munge or the program did not answer
      OddAnswer         an unexpected answer
      CalledOff         the call was no longer wanted when its turn came; nothing was started
    Refused             a permanent refusal, until a person changes something
      UnknownNode

Slurm's commands exit with 1 for all of these; only their output distinguishes them.
"""

from __future__ import annotations

import re

from gpuwarden_collectors.base import CollectorError

TIMEOUT = 15.0
"""Default time limit of a call in seconds; after it Slurm is Unreachable."""
_LONGEST_TEXT = 300


class SlurmError(CollectorError):
    """Slurm could not be reached, or could not do what was requested."""


class Unreachable(SlurmError):  # noqa: N818 - a state of Slurm's, as the others below
    pass


class OddAnswer(SlurmError):  # noqa: N818
    pass


class CalledOff(SlurmError):  # noqa: N818
    pass


class Refused(SlurmError):  # noqa: N818
    pass


class UnknownNode(Refused):
    pass


_RIGHTS = (
    "let gpuwarden run as root or SlurmUser on this node, or give its user AdminLevel=Administrator in slurmdbd "
    "(Operator is not enough to drain)"
)
_NAME = "set slurm.node to the NodeName of this host: see 'scontrol show nodes'"
_CONTROLLER = "see 'scontrol ping'; it is tried again"
_MUNGE = "see 'systemctl status munge' here, and whether clocks and munge keys of all hosts agree; it is tried again"
_DROPPED = "see the log of slurmctld, and whether clocks and keys (munge) of all hosts agree; it is tried again"
_SACK = (
    "see 'systemctl status sackd slurmd' here: one of them serves auth/slurm, at /run/slurm/sack.socket or where "
    "SLURM_SACK_SOCKET points; it is tried again"
)
_CONF = "set slurm.conf to where slurm.conf is, or see that slurmd has fetched it here"
_PARTITION = "set slurm.partitions to existing partitions: see 'sinfo --summarize'"
_STATE = "its state has changed meanwhile; it is read again"

_MEANINGS: tuple[tuple[str, type[SlurmError], str], ...] = (
    (r"Invalid user id|[Pp]ermission denied", Refused, _RIGHTS),
    (r"Invalid node name|Node \S+ not found", UnknownNode, _NAME),
    (r"Invalid partition", Refused, _PARTITION),
    (r"Invalid node state", SlurmError, _STATE),
    (r"sack socket|SACK_SOCKET|create_external", Unreachable, _SACK),
    (r"[Mm]unge|authentication|auth_g_create", Unreachable, _MUNGE),
    (r"configuration|[Cc]onfig", Unreachable, _CONF),
    (r"Zero Bytes", Unreachable, _DROPPED),  # on 22.05 also for a credential that slurmctld cannot decode
    (r"Unable to contact|timed out|[Cc]onnect|standby", Unreachable, _CONTROLLER),
)
"""The first match in the text counts. From the sources of 22.05 to 26.05 (slurm_errno.c), and tested on 22.05."""


def failure(undone: str, command: str, output: str) -> SlurmError:
    """Returns the error of a command.

    `undone` says what could not be done, as in "cannot drain n1". `output` is all that the command wrote.
    """
    text = one_line(output)
    for pattern, kind, to_do in _MEANINGS:
        if re.search(pattern, text):
            return kind(f"{undone}: {command} reports {text!r}; {to_do}")
    return SlurmError(f"{undone}: {command} reports {text!r}; it is tried again")


def one_line(output: str) -> str:
    """Returns the end of the output, where commands report errors; control characters become blanks."""
    text = " ".join("".join(c if c.isprintable() else " " for c in output).split())
    return text if len(text) <= _LONGEST_TEXT else f"…{text[-_LONGEST_TEXT:]}"
