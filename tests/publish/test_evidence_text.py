"""The evidence of a finding, as a person reads it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuwarden import features, health
from gpuwarden.health.gpu.settings import SETTINGS, Setting
from gpuwarden.health.host.port_errors import ERROR_COUNTERS
from gpuwarden.health.lemons.memory import What
from gpuwarden.publish.evidence_text import evidence_text, named

HEALTH, FEATURES = (Path(package.__file__ or "").parent for package in (health, features))
OF_THE_EVENT = {"by"}
"""Who ended a finding: in its last event, not on a screen."""


@pytest.mark.parametrize(
    ("evidence", "line"),
    [
        (
            {"uuid": "GPU-1", "why": "its PCI configuration space reads 0xFFFFFFFF", "serial": "165", "dcgm": ""},
            "its PCI configuration space reads 0xFFFFFFFF; UUID: GPU-1; serial number: 165",
        ),
        ({"uncorrected_since_driver_load": 2, "contained": False}, "uncorrectable errors since the driver was loaded: 2; contained by the driver: no"),
        ({"corrected": 1200, "seconds": 3600}, "corrected errors: 1200; within: 60m"),
        ({"available_bytes": 3 << 29, "used_percent": 97.5}, "available: 1.5 GiB; used: 97.5 %"),
        ({"action": "reboot", "value": 2}, "action requested by the driver: reboot"),
        ({"power_limit": 230_000, "power_limit_of_siblings": 700_000}, "power limit: 230 W; power limit of siblings: 700 W"),
        ({"persistence_mode": 0, "persistence_mode_expected": 1}, "persistence mode: off; persistence mode expected: on"),
        ({"clock_sm": 1_410}, "application clock of the SMs: 1410 MHz"),
        ({"again": "port 61"}, "repeated at: port 61"),
        ({"power_w": 118.0, "power_w_before": 640.5}, "power: 118 W; power before: 640.5 W"),
        ({"source": "dcgm", "dcgm": "code 52"}, "DCGM: code 52"),
        ({"a_new_key": "\x1b[2J"}, "a new key: \\x1b[2J"),
        ({}, ""),
    ],
)  # fmt: skip
def test_evidence_is_sentences_and_then_names_with_values_and_units(evidence: dict[str, object], line: str) -> None:
    assert evidence_text(evidence) == line


def test_each_key_that_a_check_gives_has_a_name_for_people() -> None:
    """Literal keys wherever evidence is made; tests/cli/test_screens.py has those that are put together."""
    file_by_key = {
        key: file.name for package in (HEALTH, FEATURES) for file in package.rglob("*.py") for key in _keys(file)
    }
    assert len(file_by_key) > 100
    assert {key: file for key, file in file_by_key.items() if named(key) is None} == {}


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_each_setting_has_a_name_beside_its_siblings_and_as_the_site_wants_it(setting: Setting) -> None:
    for end in ("", "_of_siblings", "_expected"):
        shown = named(f"{setting.name}{end}")
        assert shown is not None
        assert shown.name.endswith(end.replace("_", " "))


@pytest.mark.parametrize("counter", ERROR_COUNTERS)
def test_a_counter_of_a_port_keeps_the_name_that_its_driver_has_for_it(counter: str) -> None:
    assert evidence_text({f"{counter}_in_60_min": 7}) == f"{counter} in 60 minutes: 7"


@pytest.mark.parametrize("kind", What)
def test_each_kind_of_day_that_makes_a_lemon_has_a_name(kind: What) -> None:
    assert named(f"days_with_{kind.value}") is not None


def _keys(file: Path) -> Iterator[str]:
    """Yield the literal keys of evidence: of what is given to a sighting, is called evidence, or is returned as such."""
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Call(func=ast.Name("Sighting"), args=args, keywords=words):
                made = [*args, *(word.value for word in words)]
            case ast.AnnAssign(annotation=annotation, value=ast.expr() as value) if "Evidence" in ast.unparse(
                annotation
            ):
                made = [value]
            case ast.Assign(targets=[target], value=value) | ast.AugAssign(target=target, value=value):
                made = [value] if ast.unparse(target) in ("evidence", "more", "over", "full") else []
                match target:
                    case ast.Subscript(ast.Name("evidence"), ast.Constant(str(key))):
                        yield key
            case ast.FunctionDef(returns=ast.expr() as returns) if "Evidence" in ast.unparse(returns):
                made = [
                    each.value for each in ast.walk(node) if isinstance(each, ast.Return) and each.value is not None
                ]
            case _:
                continue
        for each in made:
            dicts = (literal for literal in ast.walk(each) if isinstance(literal, ast.Dict))
            keys = (key.value for literal in dicts for key in literal.keys if isinstance(key, ast.Constant))
            yield from (key for key in keys if isinstance(key, str) and key not in OF_THE_EVENT)
