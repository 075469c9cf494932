"""Commands for launch scripts: `clear FOLDER` and `exit-code FOLDER STATUS`; see reschedule.py."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gpuwarden_job.requeue import requeue_code
from gpuwarden_job.reschedule import clear, exit_code


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gpuwarden_job", description="Exit codes for launch scripts.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    clearing = verbs.add_parser("clear", help="remove the marks of an earlier attempt")
    clearing.add_argument("folder", type=Path)
    code = verbs.add_parser(
        "exit-code", help="print the exit code for the script: the scheduler's code if a rank left a mark"
    )
    code.add_argument("folder", type=Path)
    code.add_argument("status", type=int, help="exit code of the launcher")
    arguments = parser.parse_args()
    if arguments.verb == "clear":
        clear(arguments.folder)
    else:
        print(exit_code(arguments.folder, arguments.status, requeue_code()))  # noqa: T201 - this is its result
    return 0


if __name__ == "__main__":
    sys.exit(main())
