"""Finds the line of each key in a TOML file, even an invalid one, for messages about faults."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

KeyPath = tuple[str, ...]
_HEADER = re.compile(r"\s*\[+(?P<keys>[^\[\]]+)\]+\s*(?:#.*)?$")
_SETTING = re.compile(r"\s*(?P<keys>(?:[A-Za-z0-9_.\- ]|\"[^\"]*\"|'[^']*')+?)\s*=\s*(?P<value>.*?)\s*$")
_BARE_WORD = re.compile(r"(?P<word>[A-Za-z/][^\"'\s#\[\]{},]*)\s*(?:#.*)?")
_AT = re.compile(r"at line (\d+)")
_SWITCHES = {"yes": "true", "on": "true", "true": "true", "no": "false", "off": "false", "false": "false"}
"""Spellings of true and false in YAML, INI files and Python."""


def lines_of(text: str) -> dict[KeyPath, list[int]]:
    """The lines of each key and table, from 1. Includes text that looks like a key within a multi-line string."""
    lines: dict[KeyPath, list[int]] = {}
    for number, path, _ in _settings(text):
        lines.setdefault(path, []).append(number)
    return lines


def hint(text: str, error: str) -> str:
    """Return an explanation and the correct form if tomllib's error is unclear; otherwise ""."""
    at = _AT.search(error)
    line = int(at[1]) if at is not None else 0
    here = next(((path, value) for number, path, value in _settings(text) if number == line), None)
    if error.startswith("Invalid value") and here is not None and (word := _BARE_WORD.fullmatch(here[1])):
        name = here[0][-1]
        if switch := _SWITCHES.get(word["word"].lower()):
            return f"{name} = {word['word']} is not TOML: write {name} = {switch} (at line {line})"
        return f'{name} = {word["word"]} has no quotes: write {name} = "{word["word"]}" (at line {line})'
    if error.startswith(("Cannot overwrite a value", "Cannot declare", "Cannot mutate", "Duplicate")):
        return _twice(text, line)
    return ""


def _twice(text: str, line: int) -> str:
    twice = {path: numbers for path, numbers in lines_of(text).items() if len(numbers) > 1}
    path = next((path for path, numbers in twice.items() if line in numbers[1:]), next(iter(twice), None))
    if path is None:
        return ""
    first, second = twice[path][:2]
    dotted = ".".join(path)
    if re.match(r"\s*\[", text.splitlines()[second - 1]):
        return f"the table [{dotted}] is at line {first} and again at line {second}: put its keys below the first, and delete the second"
    return f"{dotted} is at line {first} and again at line {second}: delete one of them"


def _settings(text: str) -> Iterator[tuple[int, KeyPath, str]]:
    """Yield line number, key and the rest of the line, which is empty for a table."""
    table: KeyPath = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = _path(header["keys"]) or table
            yield number, table, ""
        elif (setting := _SETTING.match(line)) and (keys := _path(setting["keys"])):
            yield number, (*table, *keys), setting["value"]


def _path(keys: str) -> KeyPath:
    """Split `a."b c".d` into its keys; empty for another text."""
    try:
        tree = tomllib.loads(f"{keys} = 0")
    except ValueError:
        return ()
    path: list[str] = []
    while isinstance(tree, dict):
        ((key, tree),) = tree.items()
        path.append(key)
    return tuple(path)
