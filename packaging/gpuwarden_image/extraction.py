"""Debian's packages extracted by mmdebstrap, with the list of what each has, and gpuwarden beside them, compiled by their Python."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

from gpuwarden_deb.environment import run
from gpuwarden_deb.paths import BuildError
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
_COMPILE = f"""#!/bin/sh
set -eu
cp -r --no-preserve=ownership @APPLICATION@/. "$1"
chroot "$1" /usr/bin/python{PYTHON} -m compileall -q -j 2 -x '/(idlelib|lib2to3|pydoc_data|tkinter|turtledemo)/' \\
  --invalidation-mode unchecked-hash /opt /usr/lib/python{PYTHON}
"""
"""The standard library, too: nothing can be kept of what Python compiles in a read-only image, and Debian's is compiled by its scripts."""
_COMMANDS = {"mmdebstrap": "mmdebstrap", "dpkg-deb": "dpkg"}


def make(tree: Path, application: Path, folder: Path, epoch: int) -> None:
    """Writes the archive `tree`: the packages, and the files of `application`, compiled. `folder`: for what is needed on the way.

    Raises BuildError.
    """
    missing = [f"{command} (package {package})" for command, package in _COMMANDS.items() if not shutil.which(command)]
    if missing:
        raise BuildError(f"an image cannot be built here: no {', no '.join(missing)}; apt-get install them")
    compiling = _COMPILE.replace("@APPLICATION@", shlex.quote(str(application)))
    hooks = (_script(folder / "list", _LIST), _script(folder / "compile", compiling))
    run(
        *("mmdebstrap", "--quiet", "--variant=extract", "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"),
        *(f"--include={','.join(WANTED)}", *(f"--extract-hook={hook}" for hook in hooks)),
        *("--format=tar", SUITE, str(tree)),
        epoch=epoch,
    )


def _script(file: Path, text: str) -> Path:
    file.write_text(text)
    file.chmod(0o755)
    return file
