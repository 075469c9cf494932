"""The command line: loads only the module of the verb, and converts its errors to an exit code.

A verb's module has `HELP` (description and examples), `arguments(parser)` and `main(options) -> exit code`. If `main`
needs many more imports than the help, it is in the module named by `MAIN`, which is loaded after parsing the arguments.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from io import TextIOWrapper
from types import ModuleType
from typing import TextIO

from gpuwarden import __version__
from gpuwarden.cli.parser import USAGE, CommandError, Parser
from gpuwarden.features import parts

_OF_FEATURES: dict[str, tuple[str, str]] = {
    verb: row for feature in parts("verbs").values() for verb, row in feature.VERBS.items()
}
VERBS: dict[str, tuple[str, str]] = {
    "run": ("gpuwarden.cli.run", "run the daemon"),
    "check": ("gpuwarden.cli.check", "read the GPUs once, without a daemon, and print their health"),
    "status": ("gpuwarden.cli.status", "show the health of this node and its GPUs, from the running daemon"),
    "watch": ("gpuwarden.cli.watch", "show the status live"),
    "events": ("gpuwarden.cli.events", "list the events of this node"),
    "explain": ("gpuwarden.cli.explain", "explain an Xid or a finding, and what to do about it"),
    "ack": ("gpuwarden.cli.ack", "acknowledge a latched finding, so that it ends without a reset or reboot"),
    "exclude": ("gpuwarden.cli.exclude", "take this node out of scheduling"),
    "restore": ("gpuwarden.cli.restore", "lift gpuwarden's own exclusions of this node"),
    "exclusions": ("gpuwarden.cli.exclusions", "list gpuwarden's own exclusions of this node, from the ledger"),
    "notify-termination": ("gpuwarden.cli.notify", "announce to the daemon that this machine will end"),
    "inventory": ("gpuwarden.cli.inventory", "show the GPUs expected in this machine, or accept those present"),
    "inject": ("gpuwarden.cli.inject", "inject a fault into a simulated GPU"),
    "record": ("gpuwarden.cli.record", "write a trace of the collectors' readings, for replay"),
    "replay": ("gpuwarden.cli.replay", "judge a recorded trace"),
    "reload": ("gpuwarden.cli.reload", "make the daemon read its configuration again"),
    "fleet": ("gpuwarden.cli.fleet", "show every node, from Prometheus"),
    "doctor": ("gpuwarden.cli.doctor", "check whether gpuwarden can work on this host, and show what to change"),
    "service": (
        "gpuwarden.cli.service",
        "install, show or remove the systemd units, after an installation with pip or uv",
    ),
    **_OF_FEATURES,
    "config": ("gpuwarden.cli.configuration", "check the configuration, or show it with the source of each value"),
}
"""Module and one-line description of each verb."""

INTERNAL, UNWRITTEN = 70, 74  # EX_SOFTWARE and EX_IOERR of sysexits.h
_UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Errors of a write to a disk that is full, a quota, a limit of size, a terminal that is gone."""
INTERRUPTED, PIPE_CLOSED = 130, 141  # 128 and the number of the signal, as a shell reports it


def main(argv: Sequence[str] | None = None) -> int:
    verb, *arguments = (sys.argv[1:] if argv is None else argv) or [""]
    if verb.startswith("--") and verb not in ("--help", "--version"):  # the style of Prometheus' exporters
        verb, arguments = "run", [verb, *arguments]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # neither closed nor replaced
            stream.reconfigure(errors="backslashreplace")  # file names may not be UTF-8
    try:
        code = _dispatch(verb, arguments)
        print(end="", flush=True)
    except CommandError as error:
        print(f"gpuwarden {verb}: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output(sys.stdout)
        return PIPE_CLOSED
    except Exception as error:  # noqa: BLE001 - Python itself would exit with 1, which means a GPU with a warning
        if isinstance(error, OSError) and error.errno in _UNWRITABLE and error.filename is None:
            _drop_output(sys.stdout)
            try:
                print(f"gpuwarden {verb}: cannot write the output: {error.strerror}", file=sys.stderr, flush=True)
            except OSError:
                _drop_output(sys.stderr)
            return UNWRITTEN
        sys.excepthook(*sys.exc_info())
        return INTERNAL
    return code


def _drop_output(stream: TextIO) -> None:
    """Discard the stream's buffered text, which Python would write again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _dispatch(verb: str, arguments: Sequence[str]) -> int:
    if verb in ("-h", "--help", "help"):
        print(_usage())
        return 0
    if verb in ("-V", "--version"):
        print(f"gpuwarden {__version__}, Python {sys.version.partition(' [')[0]}")  # without the compiler
        return 0
    if verb not in VERBS:
        print(_usage() if not verb else f"gpuwarden: unknown verb {verb!r}{_suggestion(verb)}", file=sys.stderr)
        return USAGE
    gc.disable()  # imports create no garbage; collection takes a tenth of the time (bench_imports.py)
    try:
        module = _module(verb)
        options = _parser(verb, module).parse_args(arguments)
        its_main = import_module(getattr(module, "MAIN", module.__name__)).main
    finally:
        gc.enable()
    code: int = its_main(options)
    return code


def parser_of(verb: str) -> Parser:
    """Parser of one verb; also the source of its man page and shell completions."""
    return _parser(verb, _module(verb))


def _module(verb: str) -> ModuleType:
    return import_module(VERBS[verb][0])


def _parser(verb: str, module: ModuleType) -> Parser:
    description, _, examples = module.HELP.strip().partition("\n\n")
    parser = Parser(prog=f"gpuwarden {verb}", description=description, epilog=examples)
    module.arguments(parser)
    return parser


def _usage() -> str:
    verbs = "\n".join(f"  {verb:<18} {about}" for verb, (_, about) in VERBS.items())
    return (
        "usage: gpuwarden VERB [OPTION…]\n\nMonitors the GPUs of this node and decides whether it may take work.\n\n"
        f"{verbs}\n\n'gpuwarden VERB --help' shows its options; options without a verb are those of run. To try it without a GPU: gpuwarden run --simulate 8"
    )


def _suggestion(verb: str) -> str:
    similar = get_close_matches(verb, VERBS, n=1)
    return f"; did you mean {similar[0]!r}?" if similar else "; 'gpuwarden --help' lists the verbs"
