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
@PYTHON@ -m compileall -q -j 2 -x '/(idlelib|lib2to3|pydoc_data|tkinter|turtledemo)/' \\
  --invalidation-mode unchecked-hash @IN@/opt @IN@/usr/lib/python{PYTHON}
"""
"""The standard library, too: nothing can be kept of what Python compiles in a read-only image, and Debian's is compiled by its scripts."""
_NATIVE = (f'chroot "$1" /usr/bin/python{PYTHON}', "")
_FOREIGN = (f"python{PYTHON}", '"$1"')
"""What compiles, and before which paths the root is: compiled code of one minor version of Python is the same on every processor."""
_COMMANDS = {"mmdebstrap": "mmdebstrap", "dpkg-deb": "dpkg"}


def make(tree: Path, application: Path, folder: Path, epoch: int, *, architecture: str, native: bool) -> None:
    """Writes the archive `tree`: the packages, and the files of `application`, compiled. `folder`: for what is needed on the way.

    `architecture`: as Debian names it. `native`: it is this host's, which can run the Python of the image. Raises BuildError.
    """
    commands = _COMMANDS | ({} if native else {f"python{PYTHON}": f"python{PYTHON}"})
    missing = [f"{command} (package {package})" for command, package in commands.items() if not shutil.which(command)]
    if missing:
        raise BuildError(f"an image cannot be built here: no {', no '.join(missing)}; apt-get install them")
    python, root = _NATIVE if native else _FOREIGN
    strip = "" if native else ' -s "$1" -p /'
    compiling = _COMPILE.replace("@APPLICATION@", shlex.quote(str(application)))
    compiling = (
        compiling.replace("@PYTHON@", python).replace("@IN@", root).replace("compileall -q", f"compileall{strip} -q")
    )
    hooks = (_script(folder / "list", _LIST), _script(folder / "compile", compiling))
    run(
        *("mmdebstrap", "--quiet", "--variant=extract", "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"),
        *(f"--architectures={architecture}", *(() if native else ("--skip=check/qemu",))),
        *(f"--include={','.join(WANTED)}", *(f"--extract-hook={hook}" for hook in hooks)),
        *("--format=tar", SUITE, str(tree)),
        epoch=epoch,
    )


def _script(file: Path, text: str) -> Path:
    file.write_text(text)
    file.chmod(0o755)
    return file
