"""What is documented is what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_type_hints

import pytest

import configuration_page
import diagram
import prose
from gpuwarden.cli.main import VERBS, parser_of
from gpuwarden.config.model import Config, load
from gpuwarden.config.sources import Sources
from gpuwarden.features.active_test.judging import thresholds
from gpuwarden.health.conditions import CONDITIONS
from gpuwarden.trace.records import COLLECTORS
from gpuwarden_collectors.cloud.registry import CLOUDS
from gpuwarden_collectors.options import keys
from tables import DOCS, PAGES

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_tables_is_what_the_tables_make(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), "run `make docs`"


def test_each_key_of_the_configuration_has_a_meaning_and_each_table_too() -> None:
    tables = [(path, cls) for path, cls in configuration_page.tables(Config) if path]
    assert [
        path for path, cls in tables if not (cls.__doc__ or "").endswith(".") or cls.__name__ in (cls.__doc__ or "")
    ] == []
    missing = [
        f"{path}.{key.name}" for path, cls in tables for key in keys(cls)
        if not configuration_page.is_table(get_type_hints(cls)[key.name]) and not configuration_page.meanings(cls).get(key.name)
    ]  # fmt: skip
    assert missing == []


def test_the_page_of_collectors_names_every_collector_and_no_other() -> None:
    table = (DOCS / "reference/collectors.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == {"kernel_log", *COLLECTORS}


def test_the_page_of_termination_has_a_row_for_each_cloud() -> None:
    table = (DOCS / "use/termination.md").read_text().partition("## Sources")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == {*CLOUDS, "shutdown", "container", "planned"}


def test_the_page_of_active_tests_has_the_table_of_thresholds() -> None:
    rows = [line for line in (thresholds.__doc__ or "").splitlines() if line.startswith("|")]
    assert len(rows) > 5
    assert "\n".join(rows) in (DOCS / "use/active-tests.md").read_text()


def test_the_readme_names_every_collector() -> None:
    part = README.partition("## What it reads")[2].partition("\n## ")[0]
    assert {"kernel_log", *COLLECTORS} <= set(re.findall(r"`(\w+)`", part))


def test_the_readme_is_short() -> None:
    assert len(README.split()) <= 900


def test_the_diagram_is_what_its_tables_make() -> None:
    assert diagram.FILE.read_text(encoding="utf-8") == diagram.picture(), "run `make docs`"


DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted(DOCS.rglob("*.md")),
    ROOT / "job/README.md",
    *sorted(ROOT.glob("grafana/**/*.md")),
]
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)")


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for path, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        target = (page.parent / path) if path else page
        assert target.exists(), path
        assert not anchor or anchor in _anchors(target), f"{path}#{anchor}"


def test_the_index_leads_to_every_page() -> None:
    index = DOCS / "README.md"
    led = {(DOCS / path).resolve() for path, _ in LINK.findall(index.read_text(encoding="utf-8"))}
    pages = {page for folder in ("use", "reference", "develop") for page in (DOCS / folder).glob("*.md")}
    assert pages - led == set()


@pytest.mark.parametrize("page", prose.PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_line_of_prose_has_at_most_120_characters(page: Path) -> None:
    """Unless one word of it is longer, such as a link."""
    lines = [line for line in prose.prose(page.read_text(encoding="utf-8")) if len(line) > 120]
    assert [line for line in lines if " " in line.strip()] == [], "run `make docs`"


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"`gpuwarden ([a-z][a-z-]+)", text)) <= set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_the_table_of_exit_codes_has_each_code_that_a_help_names(verb: str) -> None:
    _, _, codes = (DOCS / "reference/commands.md").read_text(encoding="utf-8").partition("## Exit codes")
    rows = [line.split("|")[1:3] for line in codes.splitlines() if re.match(r"\| \d", line)]
    listed = {int(code) for row, of in rows if "all" in of or f"`{verb}`" in of for code in re.findall(r"\d+", row)}
    _, _, named = parser_of(verb).format_help().partition("\nexit code: ")
    assert {int(code) for code in re.findall(r"(?:^|[;,] |or )(6\d|7\d)\b", named.partition("\n\n")[0])} <= listed


EXAMPLES = [
    (page.name, text) for page in DOCUMENTS for text in re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)
]


@pytest.mark.parametrize(("page", "example"), EXAMPLES, ids=lambda value: value[:20])
def test_a_configuration_that_is_shown_is_sound(page: str, example: str, tmp_path: Path) -> None:
    file = tmp_path / page
    file.write_text(example)
    load(Sources(file=file, required=True))


TESTED = (DOCS / "develop/tested.md").read_text(encoding="utf-8")
EVIDENCE = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|trace|txt|json|sql|md)|data/[\w./-]+)`")


def test_all_that_is_named_as_evidence_exists() -> None:
    files = set(EVIDENCE.findall(TESTED))
    folder = {name: ROOT if name.startswith("benchmarks/") else ROOT / "tests" for name in files}
    assert len(files) > 50
    assert [name for name in files if not (folder[name] / name).exists()] == []


def test_each_part_was_tested_somehow_or_is_listed_as_never_tested() -> None:
    rows = [line.strip("| ").split(" | ") for line in TESTED.splitlines() if line.startswith("| ")][2:]
    parts = {row[0].split(":")[0].strip("`"): row[1:] for row in rows}
    assert all(EVIDENCE.search(" ".join(cells)) for cells in parts.values())
    assert set(COLLECTORS) <= set(parts)


def test_the_readme_leads_to_what_was_tested() -> None:
    assert "(docs/develop/tested.md)" in README


def test_every_condition_documents_why_and_where_the_rule_comes_from() -> None:
    assert all(row.title and row.why and row.source for row in CONDITIONS.values())
