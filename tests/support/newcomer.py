"""A newcomer's machine, on which to run COMMAND, such as `make test`: python -m support.newcomer [--debian SUITE] [COMMAND ...]

In a Debian 12, or another SUITE of Debian, with what the README asks for and nothing else, in a PID namespace of its own, as an ordinary
user, in a fresh clone of HEAD. Without COMMAND it is only made. Its pip finds what this host's pip fetched, once for these requirements:
there is no network but loopback. For root.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from support.bare_root import BareRoot
from support.debian_trees import BUILD, made_once, mmdebstrap

PACKAGES = ("python3", "python3-venv", "make", "gcc", "libc6-dev", "git")
"""Of the README, and the headers that apt-get brings with gcc."""
ROOT = Path(__file__).parents[2]
USER = 1000
HOME = "/home/newcomer"
PYTHONS = {"bookworm": "3.11", "trixie": "3.13", "forky": "3.14"}
"""By suite of Debian; forky, which is not released, has the Python of Ubuntu 26.04."""
TIMEOUT = 2_400


def fetch(python: str) -> Path:
    """Return the folder of all that `make test` installs, for this version of Python. Raises CalledProcessError."""
    wheels = BUILD / "newcomer" / f"wheels-{python}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"], "editables", "pip>=25.1"]
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary=:all:")
    which = (f"--python-version={python}", f"--dest={wheels}", "--group", f"{ROOT / 'pyproject.toml'}:dev")
    fetched, requirements = wheels / "fetched", repr((wanted, project["dependency-groups"]["dev"]))
    if not fetched.exists() or fetched.read_text() != requirements:
        subprocess.run([*pip, *which, *wanted], check=True)
        fetched.write_text(requirements)
    return wheels


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--debian", metavar="SUITE", choices=PYTHONS, default="bookworm", help=", ".join(PYTHONS))
    parser.add_argument("--tree", action="store_true", help="make its folder only, which needs no package of Python's")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    suite, command = options.debian, options.command
    made_of = (suite, PACKAGES)
    tree = made_once(BUILD / "newcomer", made_of, lambda tree: mmdebstrap(tree, suite, PACKAGES, "--variant=apt"))
    if options.tree:
        return 0
    wheels = fetch(PYTHONS[suite])
    if not command:
        return 0
    with (
        tempfile.TemporaryDirectory(prefix="gw-newcomer-") as folder,
        BareRoot(tree, Path(folder), size=6 << 30, binds={wheels: "/wheels", Path("/sys"): "/sys"}) as bare,
    ):
        bare.path("/etc/passwd").open("a").write(f"newcomer:x:{USER}:{USER}::{HOME}:/bin/bash\n")
        bare.path("/etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
        bare.path(HOME).mkdir()
        subprocess.run(["git", "clone", "--quiet", ROOT, f"{folder}/gpuwarden"], check=True)
        shutil.copytree(f"{folder}/gpuwarden", bare.path(f"{HOME}/gpuwarden"), symlinks=True)
        bare.run("chown", "-R", f"{USER}:{USER}", HOME)
        subprocess.run(bare.outside("ip", "link", "set", "lo", "up"), check=True)
        user = (
            "setpriv",
            f"--reuid={USER}",
            f"--regid={USER}",
            "--clear-groups",
            "env",
            "--chdir",
            f"{HOME}/gpuwarden",
        )
        pip = ("PIP_NO_INDEX=1", "PIP_FIND_LINKS=/wheels", f"HOME={HOME}")
        return subprocess.run(bare.command(*user, *pip, *command), timeout=TIMEOUT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
