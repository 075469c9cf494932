"""Finds and imports pydcgm. No package index has it: DCGM installs it with its engine, as loose modules.

The modules are untyped; engine.py wraps them in types.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpuwarden_collectors.base import CollectorError, SourceAbsent
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.dcgm.errors import Misfit
from gpuwarden_collectors.options import SEPARATOR

INSTALLED = (
    Path("/usr/share/datacenter-gpu-manager-4/bindings/python3"),  # DCGM 4
    Path("/usr/local/dcgm/bindings/python3"),  # DCGM 3
)

NEEDED: dict[str, tuple[str, ...]] = {
    "pydcgm": ("DcgmHandle",),
    "dcgm_agent": (
        "dcgmFP",
        "dcgmGetAllDevices",
        "dcgmGetGpuStatus",
        "dcgmGetDeviceAttributes",
        "dcgmGetEntityGroupEntities",
        "dcgmGroupCreate",
        "dcgmGroupAddEntity",
        "dcgmHealthSet_v2",
        "dcgmHealthGet",
        "dcgmFieldGroupCreate",
        "dcgmWatchFields",
        "dcgmEntitiesGetLatestValues",
    ),
    "dcgm_structs": ("DCGMError", "c_dcgmGroupEntityPair_t", "c_dcgmVersionInfo_v2", "dcgmVersionInfo_version2"),
    "dcgm_fields": ("DcgmFieldGetById",),
}
"""All names of the bindings that this package uses, except the health check's response, whose name has a version."""


@dataclass(frozen=True, slots=True)
class Bindings:
    """The imported modules of the bindings.

    `response` is their newest structure for the answer of a health check, with its version.
    """

    folder: Path
    pydcgm: Any
    agent: Any
    structs: Any
    fields: Any
    response: tuple[Any, int]


def open_bindings(configured: str, installed: Iterable[Path] = INSTALLED) -> Bindings:
    """Imports the bindings from the first folder of `configured` that has them, or else from the first of `installed`.

    Raises what `find_bindings` raises, and Misfit if the bindings cannot be used.
    """
    return _imported(find_bindings(configured, installed))


def find_bindings(configured: str, installed: Iterable[Path] = INSTALLED) -> Path:
    """Returns the folder of the bindings without importing them.

    Raises SourceAbsent if there are none, CollectorError if a configured folder has none.
    """
    folders = map(Path, configured.split(SEPARATOR)) if configured else installed
    for folder in folders:
        if (folder / "pydcgm.py").is_file():
            return folder
    if configured:
        raise CollectorError(
            f"DCGM cannot be read: {configured} (collectors.dcgm.bindings) has no pydcgm.py; "
            "correct the path, or leave the key out to use the bindings that DCGM installed"
        )
    raise SourceAbsent(
        "DCGM is not installed: there is no pydcgm.py in any of the folders where DCGM 3 or 4 installs it; "
        "if it is elsewhere, set collectors.dcgm.bindings"
    )


def _imported(folder: Path) -> Bindings:
    try:
        modules = [_from(folder, name) for name in NEEDED]
    except Exception as error:
        raise Misfit(
            f"the DCGM bindings in {folder} cannot be imported: {type(error).__name__}: {error}; reinstall DCGM"
        ) from error
    missing = [
        f"{module.__name__}.{name}"
        for module, names in zip(modules, NEEDED.values(), strict=True)
        for name in names
        if not hasattr(module, name)
    ]
    pydcgm, agent, structs, fields = modules
    response = _response(structs)
    if missing or response is None:
        lacking = ", ".join(missing) or "dcgm_structs.c_dcgmHealthResponse_v5"
        raise Misfit(f"the DCGM bindings in {folder} lack {lacking}: DCGM 3.1 or newer is needed")
    return Bindings(folder, pydcgm, agent, structs, fields, response)


def _from(folder: Path, name: str) -> Any:
    """Imports a module of the bindings.

    Their folder is first in `sys.path` only during the import, because it has modules with very common names.
    """
    sys.path.insert(0, str(folder))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the vendor's own text
            return importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))


def _response(structs: Any) -> tuple[Any, int] | None:
    for version in (5, 4):  # DCGM 4, DCGM 3
        structure = getattr(structs, f"c_dcgmHealthResponse_v{version}", None)
        if structure is not None:
            return structure, getattr(structs, f"dcgmHealthResponse_version{version}")
    return None
