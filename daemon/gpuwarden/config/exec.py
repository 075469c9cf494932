"""The keys of `[exec]`: a program of the site's that takes this node out of scheduling and brings it back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gpuwarden.base.durations import format_duration

Misfit = tuple[tuple[str, ...], str]


@dataclass(frozen=True, slots=True)
class Program:
    """`command`: the program, by its whole path, and its arguments, which no shell reads; empty for none. `timeout` in seconds."""

    command: tuple[str, ...] = ()
    timeout: float = 10.0


@dataclass(frozen=True, slots=True)
class ExecOptions:
    """`exclude`: what `docs/exclusion.md` says of it."""

    exclude: Program = field(default_factory=Program)


_TIMEOUT = (0.1, 60.0)
_WORDS_MOST = 64


def exec_misfits(options: ExecOptions) -> Iterator[Misfit]:
    yield from program_misfits("exec.exclude", options.exclude.command, options.exclude.timeout, needed=False)


def program_misfits(here: str, command: tuple[str, ...], timeout: float, *, needed: bool = True) -> Iterator[Misfit]:
    """`here`: the table that both stand in. `needed`: there must be a command."""
    if (command or needed) and not (command and command[0].startswith("/")):
        found = repr(command[0][:60]) if command else "nothing"
        yield (
            (f"{here}.command",),
            f'expected a list that begins with the whole path of a program, such as ["/usr/local/sbin/tell"], found {found}',
        )
    elif any("\0" in word for word in command):
        yield (f"{here}.command",), "expected words without a zero byte: no program can be given one"
    elif len(command) > _WORDS_MOST:
        yield (f"{here}.command",), f"expected at most {_WORDS_MOST} words, found {len(command)}"
    least, most = _TIMEOUT
    if not least <= timeout <= most:
        allowed = f"{format_duration(least)} to {format_duration(most)}"
        yield (f"{here}.timeout",), f"expected {allowed}, found {format_duration(timeout)}"
