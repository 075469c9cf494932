"""The evidence of a finding, as a person reads it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from gpuwarden.cli.evidence_text import NAMES, evidence_text
from gpuwarden.health.conditions import CONDITIONS
from gpuwarden.health.host import port_errors

HEALTH = Path(port_errors.__file__).parents[1]


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
        ({"action": "reboot", "value": 2}, "the driver asks for: reboot"),
        ({"source": "dcgm", "dcgm": "code 52"}, "DCGM: code 52"),
        ({"a_new_key": "\x1b[2J"}, "a new key: \\x1b[2J"),
        ({}, ""),
    ],
)  # fmt: skip
def test_evidence_is_sentences_and_then_names_with_values_and_units(evidence: dict[str, object], line: str) -> None:
    assert evidence_text(evidence) == line


def test_each_key_that_a_detector_gives_has_a_name_for_people() -> None:
    """Literal keys in the functions that make evidence; counters of ports are known by the names that their driver has for them."""
    known = {*NAMES, *_counters(), *CONDITIONS}
    given = {key for file in sorted(HEALTH.glob("*/*detectors.py")) for key in _keys(file)}
    assert given - known == set()


def _keys(file: Path) -> set[str]:
    keys: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Dict):
            keys |= {k.value for k in node.keys if isinstance(k, ast.Constant) and isinstance(k.value, str)}
    return keys


def _counters() -> set[str]:
    return {word for word in _keys(Path(port_errors.__file__)) if "_" in word}
