"""The house: what may import what, and names that must be the same in several places."""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from pathlib import Path

import pytest

from gpuwarden.features import FEATURES, parts
from gpuwarden_collectors.cloud.registry import CLOUDS
from gpuwarden_collectors.registry import HOST_COLLECTORS

ROOT = Path(__file__).parent.parent
_FEATURES = ROOT / "daemon/gpuwarden/features"
OF_JUDGE = {"conditions", "memory", "detectors", "set_aside"}
"""Modules of features that the judge reads: these are pure, with all that they import of their feature."""
_COLLECTORS = ROOT / "collectors/gpuwarden_collectors"
FACTS = sorted([*_COLLECTORS.rglob("*facts.py"), _COLLECTORS / "gpu_readings.py", _COLLECTORS / "active_test/level.py"])
PLAIN = {
    "__future__",
    "collections",
    "collections.abc",
    "contextlib",
    "dataclasses",
    "enum",
    "functools",
    "gpuwarden_collectors.dataclass",
    "itertools",
    "math",
    "operator",
    "re",
    "types",
    "typing",
}
CLIENTS = {
    "cloud/metadata.py": {"aiohttp"}, "cloud/dbus.py": {"jeepney"}, "cloud/logind.py": {"jeepney"}, "kubelet/client.py": {"grpclib"},
}  # fmt: skip
"""What speaks for a collector. The daemon has loaded aiohttp anyway; the others it loads only where they are used."""
ALLOWED = {
    *PLAIN, "gpuwarden_collectors.backoff", "gpuwarden_collectors.base", "gpuwarden_collectors.codec", "gpuwarden_collectors.options",
    "gpuwarden_collectors.slurm.hostlist",
    *(".".join(path.relative_to(ROOT / "collectors").with_suffix("").parts) for path in FACTS),
}  # fmt: skip


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


def with_imported(paths: set[Path]) -> set[Path]:
    """Return these modules of features, and all modules of features that they import."""
    names = {name for path in paths for name in imported(path) if name.startswith("gpuwarden.features.")}
    more = {path for name in names if (path := ROOT / "daemon" / f"{name.replace('.', '/')}.py").exists()} - paths
    return with_imported(paths | more) if more else paths


_READ = {_FEATURES / name / f"{module}.py" for name, own in FEATURES.items() for module in own & OF_JUDGE}
PURE = sorted({*(ROOT / "daemon/gpuwarden/health").rglob("*.py"), *with_imported(_READ)})
JUDGED = ("gpuwarden.health", "gpuwarden.features")
_DECIDING = {*_FEATURES.glob("*/policy/*.py"), *_FEATURES.rglob("requirement.py")}
POLICY = sorted({*(ROOT / "daemon/gpuwarden/policy").rglob("*.py"), *with_imported(_DECIDING)})


@pytest.mark.parametrize("path", FACTS, ids=lambda path: path.parent.name + "/" + path.name)
def test_facts_are_values_and_read_nothing(path: Path) -> None:
    assert imported(path) <= ALLOWED


@pytest.mark.parametrize("path", PURE, ids=lambda path: path.parent.name + "/" + path.name)
def test_the_judge_imports_no_clock_no_io_and_no_logging(path: Path) -> None:
    assert {name for name in imported(path) if not name.startswith(JUDGED)} <= ALLOWED


@pytest.mark.parametrize("path", POLICY, ids=lambda path: path.parent.name + "/" + path.name)
def test_policy_imports_no_clock_no_io_and_no_logging(path: Path) -> None:
    pure = ("gpuwarden.policy", "gpuwarden.health", "gpuwarden.features")
    assert {name for name in imported(path) if not name.startswith(pure)} <= ALLOWED


def test_the_judge_never_reads_the_clock_that_base_offers() -> None:
    assert all("host_clock" not in path.read_text() for path in (*PURE, *POLICY))


@pytest.mark.parametrize("path", sorted((ROOT / "collectors").rglob("*.py")), ids=lambda path: path.name)
def test_a_collector_needs_nothing_but_the_standard_library_and_the_vendor_s(path: Path) -> None:
    outside = {name.split(".")[0] for name in imported(path)} - sys.stdlib_module_names
    assert outside <= {"gpuwarden_collectors", "pynvml", "", "__future__"} | CLIENTS.get(
        "/".join(path.parts[-2:]), set()
    )


HOST = {spec.name for spec in HOST_COLLECTORS}


@pytest.mark.parametrize(
    ("names", "only"),
    [
        (HOST, "collectors/gpuwarden_collectors/host_facts.py"),
        (set(CLOUDS), "collectors/gpuwarden_collectors/cloud/registry.py"),
    ],
    ids=["collectors of the host", "clouds"],
)
def test_no_file_but_one_has_a_list_of_names(names: set[str], only: str) -> None:
    """Two names may meet by chance: a service and a process are other things, too."""
    files = [path for folder in ("daemon", "collectors") for path in (ROOT / folder).rglob("*.py")]
    assert [str(path.relative_to(ROOT)) for path in files if len(names & written(path)) > 2] == [only]


@cache
def written(path: Path) -> set[str]:
    """Texts, attributes and keywords in a module."""
    words: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Constant(value=str(text)):
                words.add(text)
            case ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                words.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                words.add(name)
    return words


def test_the_contract_of_independence_names_no_collector_of_the_host() -> None:
    assert not HOST & set(
        re.findall(r"gpuwarden_collectors\.(?:host_collectors\.)?(\w+)", (ROOT / "pyproject.toml").read_text())
    )
    assert {spec.options.__module__.split(".")[1] for spec in HOST_COLLECTORS} == {"host_collectors"}


def test_the_list_of_features_names_every_folder_and_the_modules_that_core_reads_in_it() -> None:
    """A module of such a name that the list leaves out would be found by nobody."""
    read = set().union(*FEATURES.values())
    folders = {path.parent.name for path in _FEATURES.glob("*/__init__.py")}
    modules = {name: {path.stem for path in _FEATURES.joinpath(name).glob("*.py")} & read for name in folders}
    assert modules == {name: set(parts) for name, parts in FEATURES.items()}


def test_what_health_imports_of_features_imports_no_more_than_health_itself() -> None:
    """`parts` is called while `health` is being imported: a table that needs more of it would meet a module that is half there."""
    for name, parts_of in FEATURES.items():
        for module in parts_of & {"conditions", "memory"}:
            own = imported(_FEATURES / name / f"{module}.py")
            assert not own & {"gpuwarden.health.state", "gpuwarden.health.conditions", "gpuwarden.health.detection"}


def test_no_feature_takes_a_name_of_another_feature_or_of_core() -> None:
    """Core merges the tables of features into its own: the same name in both would replace a condition, a check or a command."""
    tables = {"conditions": "CONDITIONS", "detectors": "DETECTORS", "verbs": "VERBS", "doctor": "CHECKS"}
    names = {
        module: [getattr(row, "code", row) for part in parts(module).values() for row in getattr(part, table)]
        for module, table in tables.items()
    }
    assert all(len(own) == len(set(own)) for own in names.values())
    assert not set(names["conditions"]) & set().union(*map(codes, (ROOT / "daemon/gpuwarden/health").rglob("*.py")))
    assert not set(names["verbs"]) & keys_of_tables(ROOT / "daemon/gpuwarden/cli/main.py")
    assert not set(names["doctor"]) & keys_of_tables(ROOT / "daemon/gpuwarden/doctor/examination.py")
    own = {name for feature in parts("options").values() for name in feature.TABLES}
    assert not own & names_of_fields(ROOT / "daemon/gpuwarden/config/model.py")


def keys_of_tables(path: Path) -> set[str]:
    """Return the keys of dictionaries at the top of a module."""
    body = ast.parse(path.read_text()).body
    tables = [
        node.value for node in body if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict)
    ]
    assert tables
    return {
        key.value
        for table in tables
        for key in table.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }


def codes(path: Path) -> set[str]:
    """Return the codes of the conditions in a module."""
    words = [
        node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.keyword) and node.arg == "code"
    ]
    return {
        word.value.value for word in words if isinstance(word.value, ast.Constant) and isinstance(word.value.value, str)
    }


def names_of_fields(path: Path) -> set[str]:
    """Return the fields that the class Config of a module writes out."""
    (config_class,) = (
        node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef) and node.name == "Config"
    )
    return {
        line.target.id
        for line in config_class.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    }
