"""Debian's packages extracted by mmdebstrap, with the list of what each has, and gpuwarden beside them, compiled by their Python."""

from __future__ import annotations

import shlex
from pathlib import Path

from gpuwarden_deb.environment import run
from gpuwarden_deb.host import require
from gpuwarden_image.debian import LISTING, PYTHON, SUITE, WANTED

_LIST = f"""#!/bin/sh
set -eu
mkdir "$1/{LISTING}"
for package in "$1"/var/cache/apt/archives/*.deb; do
  name="$1/{LISTING}/$(dpkg-deb --field "$package" Package)"
  dpkg-deb --field "$package" >"$name.control"
  dpkg-deb --fsys-tarfile "$package" | tar --list >"$name.files"
done
"""
_COMMANDS = {"mmdebstrap": "mmdebstrap", "dpkg-deb": "dpkg"}


def make(tree: Path, application: Path, folder: Path, epoch: int, *, architecture: str, native: bool) -> None:
    """Writes the archive `tree`: the packages, and the files of `application`, compiled. `folder`: for what is needed on the way.

    `architecture`: as Debian names it. `native`: it is this host's, which can run the Python of the image. Raises BuildError.
    """
    require("an image", _COMMANDS | ({} if native else {f"python{PYTHON}": f"python{PYTHON}"}))
    hooks = (_script(folder / "list", _LIST), _script(folder / "compile", _compile(application, native=native)))
    run(
        *("mmdebstrap", "--quiet", "--variant=extract", "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"),
        *(f"--architectures={architecture}", *(() if native else ("--skip=check/qemu",))),
        *(f"--include={','.join(WANTED)}", *(f"--extract-hook={hook}" for hook in hooks)),
        *("--format=tar", SUITE, str(tree)),
        epoch=epoch,
    )


def _compile(application: Path, *, native: bool) -> str:
    """The standard library, too: nothing can be kept of what Python compiles in a read-only image, and Debian's is compiled by its scripts.

    For another processor this host's Python compiles it, under the paths of the image: compiled code of one minor version is the same on all.
    """
    python, root = (f'chroot "$1" /usr/bin/python{PYTHON}', "") if native else (f"python{PYTHON}", '"$1"')
    strip = "" if native else f"-s {root} -p /"
    return f"""#!/bin/sh
set -eu
cp -r --no-preserve=ownership {shlex.quote(str(application))}/. "$1"
{python} -m compileall {strip} -q -j 2 -x '/(idlelib|lib2to3|pydoc_data|tkinter|turtledemo)/' \\
  --invalidation-mode unchecked-hash {root}/opt {root}/usr/lib/python{PYTHON}
"""


def _script(file: Path, text: str) -> Path:
    file.write_text(text)
    file.chmod(0o755)
    return file
