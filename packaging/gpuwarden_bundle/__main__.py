"""`make bundle`: prints the path and the size of each file."""

from __future__ import annotations

import sys
from pathlib import Path

from gpuwarden_bundle.build import build
from gpuwarden_deb.paths import ROOT, BuildError


def main() -> int:
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist"
    try:
        files = build(output)
    except BuildError as error:
        print(f"no bundle: {error}", file=sys.stderr)
        return 1
    for file in files:
        print(f"{file} {file.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
