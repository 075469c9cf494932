"""The command line: finds the verb, loads its module and no other, and turns what it raises into an exit code.

A verb's module has `HELP` (what it does, and examples), `arguments(parser)` and `main(options) -> exit code`. It
imports at its head only what every call of it needs: `status` is asked often, by scripts, and must be quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from types import ModuleType

from gpuwarden import __version__
from gpuwarden.cli.parser import USAGE, CommandError, Parser

VERBS: dict[str, tuple[str, str]] = {
    "run": ("run", "run the daemon"),
    "check": ("check", "look once, without a daemon, and say how the GPUs are"),
    "status": ("status", "what the running daemon says"),
    "watch": ("watch", "the same, live"),
    "events": ("events", "what happened on this node"),
    "explain": ("explain", "what an Xid or a finding means and what to do about it"),
    "ack": ("ack", "acknowledge a finding, so that it can end"),
    "exclude": ("exclude", "take this node out of scheduling"),
    "restore": ("restore", "bring this node back into scheduling"),
    "exclusions": ("exclusions", "what of gpuwarden's keeps this node out of scheduling, from the ledger"),
    "notify-termination": ("notify", "tell the daemon that this machine is about to end"),
    "inventory": ("inventory", "the GPUs that belong in this machine: show them, or accept what is there"),
    "inject": ("inject", "put a fault into a simulated GPU"),
    "record": ("record", "write down what the GPUs say, for replay"),
    "replay": ("replay", "judge what was recorded"),
    "reload": ("reload", "make the daemon read its configuration again"),
    "slurm": ("slurm", "Slurm's jobs on these GPUs, and what its scripts hand over"),
    "fleet": ("fleet", "every node, as Prometheus knows it"),
    "doctor": ("doctor", "whether gpuwarden can do its work on this host, and what to change"),
    "dstack-interposer": ("dstack_interposer", "answer dstack's server in the place of its agent on this host"),
    "nvhcd": ("nvhcd", "answer ft_launcher whether this node may take part"),
    "config": ("configuration", "check the configuration, or show it with where each value comes from"),
}
"""Verb: its module in this folder, and one line about it."""

INTERNAL = 70  # EX_SOFTWARE of sysexits.h
INTERRUPTED, PIPE_CLOSED = 130, 141  # 128 and the number of the signal, as a shell says it


def main(argv: Sequence[str] | None = None) -> int:
    verb, *words = (sys.argv[1:] if argv is None else argv) or [""]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # neither closed nor somebody's substitute
            stream.reconfigure(errors="backslashreplace")  # names of files need not be UTF-8
    try:
        code = _dispatch(verb, words)
        print(end="", flush=True)
    except CommandError as error:
        print(f"gpuwarden {verb}: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read has gone; what is still buffered must not be tried again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except Exception:  # noqa: BLE001 - left to Python it would exit with 1, which says that a GPU has a warning
        sys.excepthook(*sys.exc_info())
        return INTERNAL
    return code


def _dispatch(verb: str, words: Sequence[str]) -> int:
    if verb in ("-h", "--help", "help"):
        print(_usage())
        return 0
    if verb == "--version":
        print(f"gpuwarden {__version__}")
        return 0
    if verb not in VERBS:
        print(_usage() if not verb else f"gpuwarden: there is no {verb!r}{_near(verb)}", file=sys.stderr)
        return USAGE
    module = _module(verb)
    code: int = module.main(_parser(verb, module).parse_args(words))
    return code


def parser_of(verb: str) -> Parser:
    """For whoever describes the verbs: the man page and the completions of the shells are made of it."""
    return _parser(verb, _module(verb))


def _module(verb: str) -> ModuleType:
    return import_module(f"gpuwarden.cli.{VERBS[verb][0]}")


def _parser(verb: str, module: ModuleType) -> Parser:
    description, _, examples = module.HELP.strip().partition("\n\n")
    parser = Parser(prog=f"gpuwarden {verb}", description=description, epilog=examples)
    module.arguments(parser)
    return parser


def _usage() -> str:
    verbs = "\n".join(f"  {verb:<18} {about}" for verb, (_, about) in VERBS.items())
    return (
        "usage: gpuwarden VERB [OPTION…]\n\nWatches the GPUs of this node and says whether it may take work.\n\n"
        f"{verbs}\n\n'gpuwarden VERB --help' says more. To look at it without a GPU: gpuwarden run --simulate 8"
    )


def _near(verb: str) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - only after a slip

    near = get_close_matches(verb, VERBS, n=1)
    return f"; did you mean {near[0]!r}?" if near else "; 'gpuwarden --help' lists the verbs"
