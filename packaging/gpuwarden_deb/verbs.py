"""The verbs and their options, as the argument parsers have them: what the man page and the completions are made of."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from gpuwarden.cli.main import VERBS, parser_of

FILES, FOLDERS = "F", "D"
"""The metavars by which the parsers mark files and folders (F2 is another file)."""


@dataclass(frozen=True, slots=True)
class Option:
    """`flags` empty: a positional argument. `metavar` empty: it takes no value."""

    flags: tuple[str, ...]
    metavar: str
    choices: tuple[str, ...]
    help: str

    @property
    def kind(self) -> str:
        """The kind of its value: `files`, `folders`, or empty."""
        if self.choices or not self.metavar:
            return ""
        return {FILES: "files", FOLDERS: "folders"}.get(self.metavar.rstrip("0123456789"), "")


@dataclass(frozen=True, slots=True)
class Verb:
    name: str
    about: str
    usage: str
    description: str
    more: str
    options: tuple[Option, ...]

    @property
    def choices(self) -> tuple[str, ...]:
        """The choices of its positional arguments."""
        return tuple(word for option in self.options if not option.flags for word in option.choices)


def verbs() -> Iterator[Verb]:
    for name, (_, about) in VERBS.items():
        parser = parser_of(name)
        options = tuple(_option(action) for action in parser._actions)  # noqa: SLF001 - argparse shows them nowhere else
        usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
        yield Verb(name, about, usage, parser.description or "", parser.epilog or "", options)


def _option(action: argparse.Action) -> Option:
    choices = tuple(map(str, action.choices or ()))
    takes_value = not action.option_strings or action.nargs != 0
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest
    if choices:
        metavar = "{" + ",".join(choices) + "}"
    return Option(
        tuple(action.option_strings), metavar if takes_value else "", choices, (action.help or "") % vars(action)
    )
