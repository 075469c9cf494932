"""The bill of materials (SBOM: CycloneDX 1.6, JSON) and the copyright file, of the installed packages."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from gpuwarden_deb.contents import DOC, SBOM, write

_OWN = "gpuwarden"
_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Part:
    """One distribution in the environment. `spdx`: its licence is an expression of SPDX. `sha256`: of the wheel that it was installed from.

    `purl`: its package URL, if it is not from PyPI.
    """

    name: str
    version: str
    licence: str
    spdx: bool
    sha256: str
    needs: tuple[str, ...]
    purl: str = ""

    @property
    def reference(self) -> str:
        return self.purl or f"pkg:pypi/{self.name}@{self.version}"


def parts(packages: Path, *wheels: Path) -> list[Part]:
    """Return the packages installed in the folder `packages`, each with its wheel in one of the folders `wheels`."""
    hashes = {
        _of_wheel(wheel): hashlib.sha256(wheel.read_bytes()).hexdigest() for f in wheels for wheel in f.glob("*.whl")
    }
    installed_parts = [_part(each, hashes) for each in metadata.distributions(path=[str(packages)])]
    return sorted(installed_parts, key=lambda part: part.name)


def _of_wheel(wheel: Path) -> tuple[str, str]:
    name, version, *_ = wheel.name.split("-")
    return canonical(name), version


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _part(each: metadata.Distribution, hashes: dict[tuple[str, str], str]) -> Part:
    name = canonical(each.metadata["Name"])
    needs = {canonical(match[0]) for text in each.requires or () if (match := _NAME.match(text))}
    expression = _field(each, "License-Expression")
    licence = expression or _licence(each)
    return Part(name, each.version, licence, bool(expression), hashes[name, each.version], tuple(sorted(needs)))


def _field(each: metadata.Distribution, field: str) -> str:
    return "".join((each.metadata.get_all(field) or [""])[:1])


def _licence(each: metadata.Distribution) -> str:
    """Return the licence as the distribution names it."""
    licence = _field(each, "License")
    classified = [
        line.rpartition(" :: ")[2] for line in each.metadata.get_all("Classifier", ()) if "License ::" in line
    ]
    short = licence if 0 < len(licence) < 80 and "\n" not in licence else ""
    return short or " and ".join(classified) or "see its dist-info"


def lay(root: Path, parts: Iterable[Part], *, version: str, package: str, epoch: int) -> None:
    """Writes both files into the tree in `root`. `package`: the package URL of what is built."""
    rows = list(parts)
    write(root / SBOM, sbom(rows, version=version, package=package, epoch=epoch).encode())
    write(root / DOC / "copyright", copyright_file(rows).encode())


def sbom(parts: Iterable[Part], *, version: str, package: str, epoch: int) -> str:
    """Return the list as JSON, the same for the same parts."""
    rows = list(parts)
    names = {part.name: part.reference for part in rows}
    seed = "\n".join(part.reference + part.sha256 for part in rows)
    document: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, seed)}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, UTC).isoformat().replace("+00:00", "Z"),
            "component": {
                "type": "application",
                "bom-ref": package,
                "name": _OWN,
                "version": version,
                "purl": package,
            },
        },
        "components": [_component(part) for part in rows],
        "dependencies": [
            {"ref": package, "dependsOn": [part.reference for part in rows]},
            *(
                {"ref": part.reference, "dependsOn": [names[name] for name in part.needs if name in names]}
                for part in rows
            ),
        ],
    }
    return json.dumps(document, indent=1) + "\n"


def _component(part: Part) -> dict[str, Any]:
    licence = {"expression": part.licence} if part.spdx else {"license": {"name": part.licence}}
    return {
        "type": "application" if part.name == _OWN else "library",
        "bom-ref": part.reference, "name": part.name, "version": part.version, "purl": part.reference,
        "licenses": [licence], "hashes": [{"alg": "SHA-256", "content": part.sha256}],
    }  # fmt: skip


def copyright_file(parts: Iterable[Part]) -> str:
    """Authors and licences; the texts of the licences are in the wheels."""
    bundled = "".join(f"  {part.name} {part.version}: {part.licence}\n" for part in parts if part.name != _OWN)
    return (
        "gpuwarden\n\nCopyright 2026 the authors of gpuwarden\nLicense: Apache-2.0, "
        "which Debian systems have in /usr/share/common-licenses/Apache-2.0\n\n"
        "In /opt/gpuwarden are, each with its licence in its .dist-info folder:\n\n" + bundled
    )
