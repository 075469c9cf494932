"""What a compiled file may need of the host: which libraries, and which versions of their symbols. As RHEL 9 and Ubuntu 22.04 have them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuwarden_deb.control import elf_files
from gpuwarden_deb.environment import run
from gpuwarden_deb.paths import BuildError

LIBC = "libc6 (>= 2.34)"
HOST = {
    "libc.so.6": LIBC,
    "libcrypto.so.3": "libssl3 | libssl3t64",
    "libdl.so.2": LIBC,
    "libffi.so.8": "libffi8",
    "libgcc_s.so.1": "libgcc-s1",
    "libm.so.6": LIBC,
    "libpthread.so.0": LIBC,
    "librt.so.1": LIBC,
    "libsqlite3.so.0": "libsqlite3-0",
    "libssl.so.3": "libssl3 | libssl3t64",
    "libstdc++.so.6": "libstdc++6 (>= 11)",
    "libz.so.1": "zlib1g",
    "ld-linux-x86-64.so.2": LIBC,
    "ld-linux-aarch64.so.1": LIBC,
}
"""The library: the package of Debian and Ubuntu that has it. All have the same name on RHEL 9 and Amazon Linux 2023."""
NEWEST = {
    "GLIBC": (2, 34), "OPENSSL": (3, 0, 0), "ZLIB": (1, 2, 11), "LIBFFI_BASE": (8, 0), "LIBFFI_CLOSURE": (8, 0),
    "GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (11, 0),
}  # fmt: skip
"""By the prefix of a symbol's version. Those of RHEL 9.0: glibc 2.34, OpenSSL 3.0, zlib 1.2.11, libffi 3.4, GCC 11."""
_LINE = re.compile(
    r"^File: (?P<file>.+)$|\(NEEDED\).*\[(?P<needed>[^\]]+)\]|^\s+[0-9a-fx]+: Version: 1  File: (?P<of>\S+)  Cnt: "
    r"|^\s+[0-9a-fx]+:   Name: (?P<symbols>\S+)  Flags:",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Need:
    """One library of one file, by the file's path from the root, and the versions of symbols that it takes from it."""

    file: str
    library: str
    versions: frozenset[str]


def read(root: Path) -> list[Need]:
    """Return the libraries and versions that each compiled file below `root` needs, by readelf of binutils. Raises BuildError."""
    files = elf_files(root)
    if not files:
        raise BuildError(f"there is no compiled file in {root}")
    output = run("readelf", "--dynamic", "--version-info", "--wide", *map(str, files)).stdout
    if len(files) == 1:
        output = f"File: {files[0]}\n{output}"
    needs: dict[tuple[str, str], set[str]] = {}
    file = library = ""
    for match in _LINE.finditer(output):
        if match["file"]:
            file = str(Path(match["file"]).relative_to(root))
        elif match["needed"]:
            needs.setdefault((file, match["needed"]), set())
        elif match["of"]:
            library = match["of"]
        else:
            needs.setdefault((file, library), set()).add(match["symbols"])
    return [Need(*key, frozenset(versions)) for key, versions in sorted(needs.items())]


def check(needs: Iterable[Need]) -> None:
    """Raises BuildError with everything that a host of the baseline does not have."""
    wrong = [text for need in needs for text in _wrong(need)]
    if wrong:
        raise BuildError("the bundle needs what not every host has:\n  " + "\n  ".join(wrong))


def _wrong(need: Need) -> Iterator[str]:
    if need.library not in HOST:
        yield f"{need.file} needs {need.library}, which is not in the list of libraries (baseline.py)"
    for version in sorted(need.versions):
        prefix, _, number = version.rpartition("_")
        newest = NEWEST.get(prefix)
        if newest is None or not re.fullmatch(r"[0-9.]+", number) or tuple(map(int, number.split("."))) > newest:
            yield f"{need.file} needs {version} of {need.library}, which RHEL 9 does not have"


def debian_packages(needs: Iterable[Need]) -> list[str]:
    return sorted({HOST[need.library] for need in needs})


def rpm_capabilities(needs: Iterable[Need]) -> list[str]:
    """Return the needs as capabilities, in the form of rpm's own generator for files of 64 bits."""
    rows = {(need.library, version) for need in needs for version in ("", *need.versions)}
    return [f"{library}({version})(64bit)" for library, version in sorted(rows)]


def recorded(needs: Iterable[Need]) -> str:
    """Return one line for each need, in the form that `parsed` reads."""
    return "".join(f"{need.file} {need.library} {','.join(sorted(need.versions))}".rstrip() + "\n" for need in needs)


def parsed(text: str) -> list[Need]:
    rows = [line.split(" ") for line in text.splitlines() if not line.startswith("#")]
    return [Need(file, library, frozenset("".join(more).split(",")) - {""}) for file, library, *more in rows]
