"""The virtual environment, made at the path that it will have, of wheels whose hashes are in the lock.

Shebangs, `pyvenv.cfg` and the file names in compiled code hold the path that an environment was made at. So it is made at
/opt/gpuwarden, in a mount namespace in which /opt is a folder of the build: nothing of it is left on this host, and nothing
of this host in it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from gpuwarden_deb.paths import HOME, REQUIREMENTS, ROOT, TOOLS, WORK, BuildError

_STEP_WITHIN = 600.0  # seconds; the longest step is a download
_MAKE = """
umask 022
eval "$START"
install() { "$TOOLS" -m pip --isolated --quiet --python "$HOME_OF_IT/bin/python" install --no-index --no-compile "$@"; }
install --find-links "$WHEELS" --require-hashes --requirement "$LOCK"
install --find-links "$OWN" --no-deps gpuwarden
find "$HOME_OF_IT/bin" -type f ! -name gpuwarden ! -name 'python*' -delete # nobody activates it, nor calls what comes with a library
"$HOME_OF_IT/bin/python" -m compileall -q --invalidation-mode unchecked-hash "$HOME_OF_IT/lib"
"""
"""Unchecked hashes: nothing is written into /opt at run time, nothing is read twice, and a clock that was set back or an
archive that lost its times makes nothing stale. After an edit of a source file there, compile it again.
"""


VENV = '"$PYTHON" -m venv --without-pip "$HOME_OF_IT"'
COPY = 'cp -a "$PYTHON" "$HOME_OF_IT"'
"""How an environment starts: of that Python of the distribution, or as a tree with a Python in it."""


def tools() -> Path:
    """The Python with pip and hatchling of the lock in it."""

    def make(folder: Path) -> None:
        run(sys.executable, "-m", "venv", str(folder))
        run(*pip(folder / "bin" / "python"), "install", "--require-hashes", "--requirement", str(TOOLS))

    return _kept("tools", TOOLS, sys.version, make=make) / "bin" / "python"


def wheels(tools: Path, python: Path, target: Sequence[str] = ()) -> Path:
    """The folder with the wheels of the lock for that Python. `target`: pip's options for other platforms than this host's."""

    def make(folder: Path) -> None:
        command = ("download", "--only-binary=:all:", "--require-hashes", "--requirement", str(REQUIREMENTS))
        run(*pip(tools), "--python", str(python), *command, *target, "--dest", str(folder))

    return _kept("wheels", REQUIREMENTS, str(python), *target, make=make)


def platforms(machine: str, minors: Iterable[int]) -> tuple[str, ...]:
    """Options of pip for the wheels of each of these glibc, 2.x, in the order in which they are taken; of 2.17 also by its older name."""
    names = (*(f"manylinux_2_{minor}" for minor in minors), "manylinux2014")
    return tuple(f"--platform={name}_{machine}" for name in names)


def own_wheel(tools: Path, folder: Path, epoch: int) -> Path:
    run(str(tools), "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder), epoch=epoch)
    (wheel,) = folder.glob("*.whl")
    return wheel


def make(stage: Path, *, tools: Path, wheels: Path, own: Path, python: Path, start: str = VENV) -> Path:
    """Makes it in `stage`/opt/gpuwarden, of the wheels and `own`, the folder with that of gpuwarden. Returns its folder of packages.

    `python`: the Python, or the tree with one in it, that `start` begins with.
    """
    (stage / "opt").mkdir(parents=True)
    paths = {
        "PYTHON": python, "HOME_OF_IT": HOME, "TOOLS": tools, "WHEELS": wheels, "LOCK": REQUIREMENTS,
        "OWN": own, "START": start,
    }  # fmt: skip
    run_in_opt(stage / "opt", _MAKE, more={name: str(path) for name, path in paths.items()})
    (packages,) = (stage / HOME.relative_to("/") / "lib").glob("python3*/site-packages")
    return packages


def run_in_opt(
    folder: Path, script: str, *, more: dict[str, str], epoch: int | None = None, within: float = _STEP_WITHIN
) -> None:
    """A script for /bin/sh, for which /opt is `folder`. Raises BuildError."""
    if ROOT.is_relative_to("/opt"):
        raise BuildError(
            f"the package cannot be built in {ROOT}: /opt is another folder meanwhile; use a checkout elsewhere"
        )
    namespaces = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    whole = f'mount --make-rprivate /\nmount --bind "$IN_OPT" /opt\n{script}'
    run(*namespaces, "/bin/sh", "-ec", whole, more={**more, "IN_OPT": str(folder)}, epoch=epoch, within=within)


def run(
    *command: str,
    more: dict[str, str] | None = None,
    epoch: int | None = None,
    cwd: Path = ROOT,
    within: float = _STEP_WITHIN,
) -> subprocess.CompletedProcess[str]:
    """Raises BuildError with what it wrote."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8", **(more or {})}
    environment |= {} if epoch is None else {"SOURCE_DATE_EPOCH": str(epoch)}
    done = subprocess.run(
        command, env=environment, cwd=cwd, capture_output=True, text=True, check=False, timeout=within
    )
    if done.returncode != 0:
        raise BuildError(
            f"{' '.join(command)[:200]} ended with {done.returncode}:\n{done.stdout}{done.stderr}".rstrip()
        )
    return done


def pip(python: Path) -> Sequence[str]:
    return (str(python), "-m", "pip", "--quiet", "--disable-pip-version-check")


def fresh(folder: Path) -> Path:
    """An empty folder beside `folder`, whose name it gets once it is complete."""
    new = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    return new


def _kept(name: str, lock: Path, *more: str, make: Callable[[Path], None]) -> Path:
    """The folder that `make` has filled, once for this lock and for what else it depends on."""
    sign = hashlib.sha256(lock.read_bytes() + "".join(more).encode()).hexdigest()[:16]
    folder = WORK / f"{name}-{sign}"
    if not folder.exists():
        new = fresh(folder)
        make(new)
        new.rename(folder)
    return folder
