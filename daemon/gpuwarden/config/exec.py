"""The keys of `[exec]`: a program of the site's that takes this node out of scheduling and brings it back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.options import Misfit, bounded


@dataclass(frozen=True, slots=True)
class Program:
    """A program of your own that takes this node out of scheduling and brings it back ([exclusion.md](../use/exclusion.md))."""

    command: tuple[str, ...] = ()
    """Absolute path of the program, and its arguments. It is run without a shell. Empty: none."""
    timeout: float = bounded(10.0, 0.1, 60.0)
    """Time limit of a run."""


@dataclass(frozen=True, slots=True)
class ExecOptions:
    """Programs of the site's."""

    exclude: Program = field(default_factory=Program)


_WORDS_MOST = 64


def exec_misfits(options: ExecOptions) -> Iterator[Misfit]:
    yield from program_misfits("exec.exclude", options.exclude.command, needed=False)


def program_misfits(here: str, command: tuple[str, ...], *, needed: bool = True) -> Iterator[Misfit]:
    """Check a command. `here`: the table that it is in. `needed`: there must be a command."""
    if (command or needed) and not (command and command[0].startswith("/")):
        program = repr(command[0][:60]) if command else "nothing"
        message = f'expected a list that begins with the whole path of a program, such as ["/usr/local/sbin/tell"], found {program}'
        yield (f"{here}.command",), message
    elif any("\0" in word for word in command):
        yield (f"{here}.command",), "expected words without a zero byte: no argument can contain one"
    elif len(command) > _WORDS_MOST:
        yield (f"{here}.command",), f"expected at most {_WORDS_MOST} words, found {len(command)}"
