"""`make deb`: prints the path of the package, its dependencies and its size."""

from __future__ import annotations

import sys
from pathlib import Path

from gpuwarden_deb.build import build
from gpuwarden_deb.environment import run
from gpuwarden_deb.paths import ROOT, BuildError


def main() -> int:
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist"
    try:
        package = build(output)
        fields = run("dpkg-deb", "--field", str(package), "Depends", "Installed-Size").stdout
    except BuildError as error:
        print(f"no package: {error}", file=sys.stderr)
        return 1
    print(f"{package}\n{fields.rstrip()}\nSize: {package.stat().st_size >> 10}\ninstall it: apt-get install {package}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
