"""The house: what may import what, and names that must be the same in several places."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

from gpuwarden.feature import FEATURES
from gpuwarden_collectors.cloud.registry import CLOUDS
from gpuwarden_collectors.registry import HOST_COLLECTORS

ROOT = Path(__file__).parent.parent
_FEATURES = ROOT / "daemon/gpuwarden/features"
PURE = sorted([*(ROOT / "daemon/gpuwarden/health").rglob("*.py"), *_FEATURES.joinpath("job_stall").rglob("*.py")])
JUDGED = ("gpuwarden.health", "gpuwarden.features.job_stall", "gpuwarden.feature")
POLICY = sorted((ROOT / "daemon/gpuwarden/policy").rglob("*.py"))
_COLLECTORS = ROOT / "collectors/gpuwarden_collectors"
FACTS = sorted([*_COLLECTORS.rglob("*facts.py"), _COLLECTORS / "active_test/level.py"])
PLAIN = {
    "__future__",
    "collections",
    "collections.abc",
    "contextlib",
    "dataclasses",
    "enum",
    "functools",
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


@pytest.mark.parametrize("path", FACTS, ids=lambda path: path.parent.name + "/" + path.name)
def test_facts_are_values_and_read_nothing(path: Path) -> None:
    assert imported(path) <= ALLOWED


@pytest.mark.parametrize("path", PURE, ids=lambda path: path.parent.name + "/" + path.name)
def test_the_judge_imports_no_clock_no_io_and_no_logging(path: Path) -> None:
    assert {name for name in imported(path) if not name.startswith(JUDGED)} <= ALLOWED


@pytest.mark.parametrize("path", POLICY, ids=lambda path: path.parent.name + "/" + path.name)
def test_policy_imports_no_clock_no_io_and_no_logging(path: Path) -> None:
    assert {name for name in imported(path) if not name.startswith(("gpuwarden.policy", "gpuwarden.health"))} <= ALLOWED


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
    found = {name: {path.stem for path in _FEATURES.joinpath(name).glob("*.py")} & read for name in folders}
    assert found == {name: set(parts) for name, parts in FEATURES.items()}


def test_what_health_imports_of_features_imports_no_more_than_health_itself() -> None:
    """`parts` is called while `health` is being imported: a table that needs more of it would meet a module that is half there."""
    for name, parts_of in FEATURES.items():
        for module in parts_of & {"conditions", "memory"}:
            own = imported(_FEATURES / name / f"{module}.py")
            assert not own & {"gpuwarden.health.state", "gpuwarden.health.conditions", "gpuwarden.health.detection"}
