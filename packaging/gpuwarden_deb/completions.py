"""Completions for bash, zsh and fish, made of the parsers. They need nothing but the shell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gpuwarden_deb.verbs import Option, Verb

_BASH = """\
# bash completion of gpuwarden, made of its argument parsers
_gpuwarden()
{{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words= values=
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{verbs}" -- "$word"))
        return
    fi
    case "${{COMP_WORDS[1]}} $before" in
{values}
    esac
    case "${{COMP_WORDS[1]}}" in
{words}
    esac
    case "$values" in
        "") COMPREPLY=($(compgen -W "$words" -- "$word")) ;;
        files) COMPREPLY=($(compgen -f -- "$word")) ;;
        folders) COMPREPLY=($(compgen -d -- "$word")) ;;
        none) ;;
        *) COMPREPLY=($(compgen -W "$values" -- "$word")) ;;
    esac
}}
complete -o filenames -F _gpuwarden gpuwarden
"""
_ZSH = """\
#compdef gpuwarden
# zsh completion of gpuwarden, made of its argument parsers
_gpuwarden() {{
    local -a verbs=(
{verbs}
    )
    if (( CURRENT == 2 )); then
        _describe verb verbs
        return
    fi
    local verb=$words[2]
    shift words
    (( CURRENT-- ))
    case $verb in
{arguments}
    esac
}}
_gpuwarden "$@"
"""


def bash(verbs: Iterable[Verb]) -> str:
    verbs = list(verbs)
    values = [
        f'        "{verb.name} {flag}") values="{" ".join(option.choices) or option.kind or "none"}" ;;'
        for verb in verbs
        for option in verb.options
        for flag in option.flags
        if option.metavar
    ]
    cases = [f'        {verb.name}) words="{" ".join((*_flags(verb), *verb.choices))}" ;;' for verb in verbs]
    return _BASH.format(verbs=" ".join(verb.name for verb in verbs), values="\n".join(values), words="\n".join(cases))


def zsh(verbs: Iterable[Verb]) -> str:
    verbs = list(verbs)
    named = [f"        {_quoted(f'{verb.name}:{verb.about}')}" for verb in verbs]
    arguments = [f"        {verb.name}) _arguments {' '.join(_zsh_options(verb.options))} ;;" for verb in verbs]
    return _ZSH.format(verbs="\n".join(named), arguments="\n".join(arguments))


def _zsh_options(options: Sequence[Option]) -> Iterator[str]:
    for number, option in enumerate(options):
        about = option.help.replace("\\", "").replace("[", "(").replace("]", ")").replace(":", ";")
        action = f"({' '.join(option.choices)})" if option.choices else _ZSH_ACTIONS.get(option.kind, "")
        label = "word" if option.choices else option.metavar.replace(":", r"\:")
        value = f":{label}:{action}" if option.metavar else ""
        yield from (_quoted(f"{flag}[{about}]{value}") for flag in option.flags)
        if not option.flags:
            yield _quoted(f"*{value}" if number == len(options) - 1 else value)


_ZSH_ACTIONS = {"files": "_files", "folders": "_directories"}


def fish(verbs: Iterable[Verb]) -> str:
    return "\n".join(("# fish completion of gpuwarden, made of its argument parsers", *_fish(verbs))) + "\n"


def _fish(verbs: Iterable[Verb]) -> Iterator[str]:
    yield "complete -c gpuwarden -f"
    for verb in verbs:
        yield f"complete -c gpuwarden -n __fish_use_subcommand -a {verb.name} -d {_fish_quoted(verb.about)}"
        seen = f"complete -c gpuwarden -n '__fish_seen_subcommand_from {verb.name}'"
        if verb.choices:
            yield f"{seen} -a '{' '.join(verb.choices)}'"
        for option in verb.options:
            if option.flags:
                yield f"{seen} {_fish_flags(option)} -d {_fish_quoted(option.help)}"


def _fish_flags(option: Option) -> str:
    names = [f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags]
    values = {"files": "-r -F", "folders": "-x -a '(__fish_complete_directories)'"}.get(option.kind, "-x")
    if option.choices:
        values = f"-x -a '{' '.join(option.choices)}'"
    return " ".join((*names, *([values] if option.metavar else [])))


def _flags(verb: Verb) -> Iterator[str]:
    return (flag for option in verb.options for flag in option.flags)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
