"""`make image`: prints the path of the image, its size, and how to start it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gpuwarden_deb.paths import ROOT, BuildError
from gpuwarden_image.build import build


def main() -> int:
    parser = argparse.ArgumentParser(prog="gpuwarden_image")
    parser.add_argument("output", nargs="?", type=Path, default=ROOT / "dist", help="folder of the archive")
    parser.add_argument("--machine", default="", help="x86_64 or aarch64; by default this host's")
    given = parser.parse_args()
    try:
        image = build(given.output, given.machine)
    except (BuildError, OSError) as error:
        print(f"no image: {error}", file=sys.stderr)
        return 1
    print(f"{image.file}\nUnpacked: {image.unpacked >> 20} MiB, as a file: {image.file.stat().st_size >> 20} MiB")
    print(f"load it: docker load -i {image.file}\ntry it:  docker run --rm {image.reference} run --simulate 8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
