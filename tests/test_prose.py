"""How sentences read: docstrings and comments, and every text that the product shows: errors, help, log lines, tables."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FILES = sorted(file for part in ("daemon", "collectors", "job") for file in (ROOT / part).rglob("*.py"))
OTHERS = sorted(
    file for part in ("benchmarks", "tools", "packaging", "tests/support") for file in (ROOT / part).rglob("*.py")
)
HELPERS = sorted(file for file in (ROOT / "tests").rglob("*.py") if file not in OTHERS)
BEGINNINGS = frozenset({
    "About", "Also", "And", "As", "At", "Before", "Beside", "Between", "But", "By", "Each", "Else", "For",
    "From", "How", "In", "It", "More", "Neither", "No", "None", "Nor", "Not", "Of", "On", "One", "Only",
    "Over", "Since", "So", "Such", "That", "They", "Those", "Through", "To", "Under", "Until", "What",
    "Whatever", "When", "Where", "Whether", "Which", "While", "Who", "With", "Without",
})  # fmt: skip
"""First words of a fragment: such a docstring completes the name of its function, or answers a question that nobody asked."""
OF_CLASSES = frozenset({"Each", "How", "No", "One", "What", "When", "Where", "Whether", "Which", "Who"})
"""First words of a noun phrase or clause. A class is a thing, which such a phrase names; a function does something."""
WORDS_LEAST = 4
UNUSED = re.compile(
    r"\b(h(?:eld|olds?|olding) (?:out|back)|(?:is|are|was|were|be|been) let|lets? happen|steps? back|signs? of life|just now"
    r"|goes? before|takes? nothing|gives? up its place|news|telling|troubles?)\b",
    re.IGNORECASE,
)
"""Coinages, in the place of excluded, deferred, allowed, rolled back, watchdog, now, takes precedence, new, and faults."""
JOINT = re.compile(r"""["']\s+[rbf]*["']""")
"""Between two parts of one text."""
VAGUE = frozenset({"found", "given", "known", "news", "one", "what"})
"""Names of variables and parameters that do not say what they hold. Fields have such names on the wire."""
NAME = re.compile(r"`([A-Za-z_][\w.]*)(?:\(\))?`")
FOREIGN = frozenset({"_gpuConvertPid", "eth0", "nvidia0", "smaps"})
"""Names of the driver and the kernel that the product does not use itself."""


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the node and every statement in it. Unlike `ast.walk` it passes over expressions, which are most of a file."""
    yield node
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        for below in getattr(node, part, ()) if not isinstance(node, ast.expr) else ():
            yield from statements(below)


class Docstring(NamedTuple):
    """A docstring, with its place and the function or class that it is of; "" for a module."""

    where: str
    name: str
    text: str
    of_class: bool


def docstrings(file: Path) -> Iterator[Docstring]:
    """Yield each docstring of a file."""
    for node in statements(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module) and (
            text := ast.get_docstring(node)
        ):
            where = f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"
            yield Docstring(where, getattr(node, "name", ""), text, isinstance(node, ast.ClassDef))


def is_fragment(docstring: Docstring) -> bool:
    words = docstring.text.split()
    first = words[0].strip(".,:;")
    return first in BEGINNINGS - OF_CLASSES if docstring.of_class else first in BEGINNINGS or len(words) < WORDS_LEAST


def test_a_docstring_of_a_function_or_class_is_a_sentence_of_its_own() -> None:
    assert [
        f"{docstring.where} {docstring.name}: {docstring.text[:80]}"
        for file in (*FILES, *OTHERS, *HELPERS)
        for docstring in docstrings(file)
        if docstring.name and is_fragment(docstring)
    ] == []


def texts(file: Path) -> Iterator[tuple[int, str]]:
    """Yield every text of the file that has a space, and every comment, with its line.

    Docstrings, error messages, help, log lines and the rows of tables are among them, and the constant parts of f-strings.
    """
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
    with file.open("rb") as lines:
        for token in tokenize.tokenize(lines.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


def test_no_sentence_has_a_word_of_our_own_where_the_field_has_one() -> None:
    assert [
        f"{file.relative_to(ROOT)}:{line}: {match[0]}"
        for file in (*FILES, *OTHERS)
        if UNUSED.search(JOINT.sub("", file.read_text()))  # else there is nothing to look for in its texts
        for line, text in texts(file)
        if (match := UNUSED.search(text))
    ] == []


def vague_names(file: Path) -> Iterator[str]:
    """Yield the variables and parameters of a file whose names do not say what they hold."""
    tree = ast.parse(file.read_text())
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    fields = {field.target for node in classes for field in node.body if isinstance(field, ast.AnnAssign)}
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.MatchAs(name=str(name)):
                if name in VAGUE and node not in fields:
                    yield f"{file.relative_to(ROOT)}:{node.lineno}: {name}"


def test_a_variable_has_the_name_of_what_it_holds() -> None:
    assert [name for file in (*FILES, *OTHERS, *HELPERS) for name in vague_names(file)] == []


def names() -> frozenset[str]:
    """All that has a name in the product: variables, attributes, parameters, modules, keys, and words of its texts."""
    words: set[str] = set()
    for file in sorted((ROOT / "systemd").rglob("*")):
        words |= set(re.findall(r"\w+", file.name + (file.read_text() if file.is_file() else "")))
    for file in FILES:
        words |= set(re.findall(r"\w+", file.name))
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case (
                    ast.Name(id=name)
                    | ast.Attribute(attr=name)
                    | ast.arg(arg=name)
                    | ast.alias(name=name)
                    | ast.keyword(arg=str(name))
                ):
                    words |= set(name.split("."))
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    words.add(name)
                case ast.Constant(value=str(text)) if len(text) < 200:
                    words |= set(re.findall(r"\w+", text))
    return frozenset(words)


def test_a_name_in_a_docstring_is_one_that_there_is() -> None:
    all_names = names() | FOREIGN
    assert [
        f"{docstring.where}: {name}"
        for file in FILES
        for docstring in docstrings(file)
        for name in NAME.findall(docstring.text)
        if name.rpartition(".")[2] not in all_names
    ] == []
