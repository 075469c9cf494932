"""gpuwarden(1), made of the parsers: the texts of `--help` and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from gpuwarden.base.paths import CONFIG_FILE, LEDGER, RUN_DIR, RUN_DIR_VARIABLE, STATE_DIR
from gpuwarden_deb.verbs import Option, Verb

_ABOUT = "health of the GPUs of this node: read, judged, published, acted on"
_FILES = (
    (str(CONFIG_FILE), "the configuration; `gpuwarden config show` prints it as it is in force"),
    (f"{CONFIG_FILE.parent}/conf.d/*.toml", "read after it, by name; a later one overrides an earlier one, key by key"),
    (f"{STATE_DIR}/{LEDGER}", "the ledger: events, learned hardware, acknowledgements, actions"),
    (f"{RUN_DIR}/verdict", "the verdict, for scripts: one key=value a line"),
    (f"{RUN_DIR}/notice.json", "the announced end of this machine, for jobs"),
    (f"{RUN_DIR}/control.sock", "for the verbs that call the daemon"),
)
_VARIABLES = (
    (RUN_DIR_VARIABLE, f"where the verbs find the daemon, instead of {RUN_DIR}"),
    (
        "GPUWARDEN_COLLECTORS__NVML__INTERVAL=1s",
        "any key of the configuration, for the daemon: two underscores separate tables",
    ),
)


def man_page(verbs: Iterable[Verb], version: str, epoch: int) -> str:
    day = datetime.fromtimestamp(epoch, UTC).date().isoformat()
    return "\n".join(_lines(list(verbs), version, day)) + "\n"


def _lines(verbs: list[Verb], version: str, day: str) -> Iterator[str]:
    yield f'.TH GPUWARDEN 1 "{day}" "gpuwarden {version}" "User Commands"'
    yield from (".SH NAME", rf"gpuwarden \- {_text(_ABOUT)}")
    yield from (".SH SYNOPSIS", r"\fBgpuwarden\fR \fIVERB\fR [\fIOPTION\fR...]")
    yield from (".SH DESCRIPTION", "Monitors the GPUs of this node and decides whether it may take work.", ".PP")
    for verb in verbs:
        yield from (".TP", rf"\fB{_text(verb.name)}\fR", _text(verb.about))
    yield ".SH VERBS"
    for verb in verbs:
        yield from _verb(verb)
    yield from (
        ".SH EXIT STATUS",
        "Of \\fBcheck\\fR, \\fBstatus\\fR and \\fBwatch\\fR: 0 healthy, 1 warning, 2 failure, 3 unknown.",
    )
    yield "Of every verb: 64 for bad usage or configuration, 69 when the daemon or a file cannot be reached, 70 for a bug,"
    yield "75 when it is worth trying again, 77 without permission."
    for title, rows in (("FILES", _FILES), ("ENVIRONMENT", _VARIABLES)):
        yield f".SH {title}"
        for name, about in rows:
            yield from (".TP", rf"\fI{_text(name)}\fR", _text(about))
    yield from (".SH SEE ALSO", "/usr/share/doc/gpuwarden, \\fBnvidia-smi\\fR(1), \\fBscontrol\\fR(1)")


def _verb(verb: Verb) -> Iterator[str]:
    yield f'.SS "gpuwarden {_text(verb.name)}"'
    yield from _paragraphs(verb.description)
    yield from (".PP", _text(verb.usage))
    for option in verb.options:
        yield from (".TP", _head(option), _text(option.help))
    if verb.more:
        yield from (".PP", ".nf", *map(_text, verb.more.splitlines()), ".fi")


def _paragraphs(text: str) -> Iterator[str]:
    yield from (_text(" ".join(part.split())) for part in text.split("\n\n"))


def _head(option: Option) -> str:
    value = rf" \fI{_text(option.metavar)}\fR" if option.metavar else ""
    return rf"\fB{', '.join(map(_text, option.flags))}\fR{value}" if option.flags else value.strip()


def _text(text: str) -> str:
    """Return the text quoted, so that nothing in it is taken for a request or an escape."""
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("…", "...")
    return rf"\&{text}" if text.startswith((".", "'")) else text
