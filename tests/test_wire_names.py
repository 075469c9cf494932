"""Names that others depend on stay: keys of JSON documents, ledger, traces and configuration, metrics, labels, verbs, values.

`tests/data/wire-names.json` has those of 0.1.0, and is written again by `support/wire_names.py` until that version is tagged. From then on a name
may be added, and one that is removed is listed below with its reason.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support import wire_names

pytestmark = pytest.mark.xdist_group("wire names")  # one process reads all sources once

WAS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data/wire-names.json").read_text(encoding="utf-8")
)

REMOVED: dict[str, dict[str, str]] = {}
"""Reasons by section and name; a value of an enumeration or of a key of the configuration is `name = value`."""


@pytest.fixture(scope="module")
def present() -> dict[str, dict[str, Any]]:
    return wire_names.names()


def lost(section: str, present: dict[str, dict[str, Any]]) -> list[str]:
    """Return the names and values that the section had and has no longer."""
    now = present[section]
    return sorted(
        name if isinstance(values, str) or name not in now else f"{name} = {value}"
        for name, values in WAS[section].items()
        for value in ([values] if isinstance(values, str) else values)
        if name not in now or (not isinstance(values, str) and value not in now[name])
    )


@pytest.mark.parametrize("section", ["documents", "facts", "metrics", "verbs", "configuration"])
def test_no_name_is_lost(section: str, present: dict[str, dict[str, Any]]) -> None:
    assert set(lost(section, present)) <= set(REMOVED.get(section, {}))


def test_labels_of_a_metric_keep_their_order(present: dict[str, dict[str, Any]]) -> None:
    assert {
        name: labels[: len(WAS["metrics"][name])]
        for name, labels in present["metrics"].items()
        if name in WAS["metrics"]
    } == {name: labels for name, labels in WAS["metrics"].items() if name in present["metrics"]}


def test_keys_of_the_configuration_accept_what_they_accepted(present: dict[str, dict[str, Any]]) -> None:
    for key, was in WAS["configuration"].items():
        if key in present["configuration"]:
            removed = {value for value in was.split("|") if f"{key} = {value}" in REMOVED.get("configuration", {})}
            assert set(was.split("|")) - removed <= set(present["configuration"][key].split("|")), key


@pytest.mark.parametrize("name", WAS["enumerations"])
def test_enumeration_keeps_its_values(name: str, present: dict[str, dict[str, Any]]) -> None:
    """The name of its class may have changed."""
    removed = {value for value in WAS["enumerations"][name] if f"{name} = {value}" in REMOVED.get("enumerations", {})}
    values = set(WAS["enumerations"][name]) - removed
    assert any(values <= set(members) for members in present["enumerations"].values()), (
        f"{values} are values of no enumeration"
    )


@pytest.mark.parametrize("room", WAS["keys"])
def test_keys_written_in_a_room_are_still_written_somewhere(room: str, present: dict[str, dict[str, Any]]) -> None:
    """A key may be written as the field of a dataclass, the value of an enumeration or a key of the configuration, too."""
    written = {key for kind in ("keys", "enumerations") for keys in present[kind].values() for key in keys}
    written |= {part for key in present["configuration"] for part in key.split(".")}
    assert set(WAS["keys"][room]) - written - wire_names.fields() <= set(REMOVED.get("keys", {}))
