"""CPython 3.13 of Debian's source, built once for its version and recipe (`packaging/cpython/build.sh`), and kept.

Debian's, because its security team mends it under one version number: what a tree is made of can be compared with
Debian's list of CVEs. It is fetched anew by each build; apt checks its signature.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from gpuwarden_deb.environment import fresh, run, run_in_opt
from gpuwarden_deb.paths import PACKAGING, WORK, BuildError

NAME, SUITE = "python3.13", "trixie"
RECIPE = PACKAGING / "cpython" / "build.sh"
BUILT_ON = "bookworm"
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
NOT_APPLIED = ("deb-locations.diff", "distutils-install-layout.diff", "sysconfig-debian-schemes.diff")
"""Debian's patches by which packages are imported from the distribution's folders, too."""
COMMANDS = {"dpkg-source": "dpkg-dev", "gcc": "gcc", "make": "make", "patch": "patch", "unshare": "util-linux"}
HEADERS = {
    "stdio.h": "libc6-dev", "openssl/ssl.h": "libssl-dev", "ffi.h": "libffi-dev", "sqlite3.h": "libsqlite3-dev",
    "zlib.h": "zlib1g-dev",
}  # fmt: skip
_WITHIN = 7200.0
"""Seconds. An emulated arm64 takes an hour."""
_BUILD = 'cd /opt/source && exec sh "$RECIPE" "$VERSION"'


@dataclass(frozen=True, slots=True)
class CPython:
    """`tree`: what is installed at /opt/gpuwarden. `version`: of Debian's source package. `sha256`: of its .dsc, which has those of its files."""

    tree: Path
    version: str
    sha256: str


def cpython() -> CPython:
    """Fetches the newest source, and builds it if that was not done before. Raises BuildError."""
    description = _fetch(WORK / "python-source")
    text = description.read_text()
    version = next(line.removeprefix("Version: ") for line in text.splitlines() if line.startswith("Version: "))
    sign = hashlib.sha256((text + RECIPE.read_text() + platform.machine()).encode()).hexdigest()[:16]
    tree = WORK / f"cpython-{sign}"
    if not tree.exists():
        _require()
        began = time.monotonic()
        _build(description, version, tree)
        print(f"CPython {version}: built in {time.monotonic() - began:.0f} s", flush=True)
    return CPython(tree, version, hashlib.sha256(description.read_bytes()).hexdigest())


def _fetch(folder: Path) -> Path:
    """The .dsc of the newest source of the suite, with its files beside it. apt has lists of its own for it: the host's stay as they are."""
    new = fresh(folder)
    for name in ("lists/partial", "cache/archives/partial"):
        (new / name).mkdir(parents=True)
    (new / "status").touch()
    main, security = _archives()
    (new / "sources.list").write_text(
        f"deb-src [signed-by={KEYS}] {main} {SUITE} main\ndeb-src [signed-by={KEYS}] {security} {SUITE}-security main\n"
    )
    options = {
        "Dir::Etc::sourcelist": new / "sources.list", "Dir::Etc::sourceparts": "-", "Dir::State": new,
        "Dir::State::status": new / "status", "Dir::Cache": new / "cache", "APT::Sandbox::User": "root",
    }  # fmt: skip
    apt = ("apt-get", "--quiet", *(word for name, value in options.items() for word in ("-o", f"{name}={value}")))
    run(*apt, "update", "--error-on=any")
    run(*apt, "source", "--download-only", "--only-source", NAME, cwd=new)
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)
    (description,) = folder.glob("*.dsc")
    return description


def _archives() -> tuple[str, str]:
    """The archives of Debian that this host uses, and of its security updates, which are beside each other where only one is configured."""
    sites = re.findall(r"^'(\S+?)/dists/", run("apt-get", "update", "--print-uris").stdout, re.MULTILINE)
    main = next((site for site in sites if site.endswith("/debian")), "")
    if not main:
        raise BuildError(
            f"CPython's source comes from Debian's archive, and apt has none here, only: {' '.join(set(sites))}"
        )
    return main, next((site for site in sites if site.endswith("/debian-security")), f"{main}-security")


def _require() -> None:
    missing = [package for command, package in COMMANDS.items() if not shutil.which(command)]
    missing += [package for header, package in HEADERS.items() if not _has(header)] if shutil.which("gcc") else []
    if missing:
        raise BuildError(f"CPython cannot be built here: apt-get install {' '.join(missing)}")
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME")
    if codename != BUILT_ON:
        raise BuildError(
            f"CPython is built on Debian {BUILT_ON}, whose glibc gives the baseline, and this is {codename}"
        )


def _has(header: str) -> bool:
    command = ["gcc", "-E", "-x", "c", "-o", os.devnull, "-"]
    return (
        subprocess.run(
            command, input=f"#include <{header}>\n", text=True, capture_output=True, check=False, timeout=60
        ).returncode
        == 0
    )


def _build(description: Path, version: str, tree: Path) -> None:
    stage = fresh(tree)
    source = stage / "source"
    run("dpkg-source", "--no-check", "--skip-patches", "--extract", str(description), str(source), cwd=stage)
    for name in (source / "debian/patches/series").read_text().split("\n"):
        if name and not name.startswith("#") and name not in NOT_APPLIED:
            run("patch", "--strip=1", "--force", "--forward", f"--input=debian/patches/{name}", cwd=source)
    epoch = int(run("dpkg-parsechangelog", "--show-field", "Timestamp", cwd=source).stdout)
    run_in_opt(stage, _BUILD, more={"RECIPE": str(RECIPE), "VERSION": version}, epoch=epoch, within=_WITHIN)
    (stage / "gpuwarden").rename(tree)
    shutil.rmtree(stage)
