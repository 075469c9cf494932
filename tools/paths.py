"""Count what runs only because of an uncorrectable ECC error or a notice of the machine's end, and the files that have a key.

    .venv/bin/python tools/paths.py          two minutes, as root, with Slurm's packages; `--list` names each function

A real daemon in mode enforce watches the tests' NVML library, a job of a real Slurm and a simulated metadata service of EC2. It
idles, with every page asked for, and what ran until then is left out. An ECC error is followed until Slurm has drained the node and
the ledger says so, a notice until the job is signalled, too; then each for 10 s more. Counted are functions and methods of the daemon
and its workers by their file and name; lambdas and comprehensions count with the function that has them.

Of the keys of the configuration those count that have a name of their own, by which they can be found.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple, get_type_hints

sys.path.insert(1, str(Path(__file__).parents[1] / "tests"))

from configuration_page import is_table, tables
from gpuwarden.config.model import Config
from gpuwarden_collectors.options import keys
from support.daemons import RunningDaemon
from support.metadata import AwsCloud, Simulator, beside
from support.ranks import SCRIPT
from support.slurm import Slurm, running
from support.slurm_hosts import SlurmHost

ROOT = Path(__file__).parents[1]
PRODUCT = ("daemon", "collectors")
BAD = 3
SETTLES = 10.0
"""Seconds after the end that still count: how far other tasks are at it differs."""
PAGES = ("/", "/metrics", "/heartbeat", "/v1/status", "/v1/gpus", "/v1/findings", "/v1/events", "/v1/notice", "/readyz")
# Python imports it at the start of each process that has its folder on the path.
TRACER = """
import os, sys, threading
seen, file = set(), os.open(os.environ["PATHS_TRACE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def note(frame, event, _):
    if event == "call":
        code = frame.f_code
        key = code.co_filename, code.co_firstlineno, code.co_name
        if key not in seen:
            seen.add(key)
            if code.co_flags & 1 and code.co_name[0] != "<" and "/gpuwarden" in code.co_filename:
                os.write(file, f"{code.co_filename}\\t{code.co_qualname}\\n".encode())
threading.setprofile(note)
sys.setprofile(note)
"""


class Function(NamedTuple):
    file: str
    name: str

    @property
    def folder(self) -> str:
        """Return its folder from the package on; that of a feature as a whole, as `house.py` counts."""
        parts = Path(self.file).parts[1:-1]
        return "/".join(parts[:3] if parts[1:2] == ("features",) else parts)


class Node:
    """The machine, its daemon and what that has run."""

    def __init__(self, host: SlurmHost, daemon: RunningDaemon, service: Simulator, trace: Path) -> None:
        self.host, self.daemon, self.service, self._trace = host, daemon, service, trace

    def ran(self) -> set[Function]:
        lines = (line.split("\t") for line in self._trace.read_text().splitlines())
        roots = tuple(f"{ROOT / part}/gpuwarden" for part in PRODUCT)
        return {Function(os.path.relpath(file, ROOT), name) for file, name in lines if file.startswith(roots)}

    def idles(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for page in PAGES:
                self.daemon.get(page)
            time.sleep(0.5)

    def wait(self, *kinds: str) -> None:
        """Wait until the ledger has events of these kinds and the node is drained."""

        def done() -> bool:
            events = json.loads(self.daemon.get("/v1/events")[1])["events"]
            return set(kinds) <= {event["kind"] for event in events} and self.host.is_drained()

        self.daemon.wait(done, f"{kinds} and the drain")


@contextmanager
def node(slurm: Slurm, folder: Path) -> Iterator[Node]:
    """A healthy node with a job of one rank, which catches TERM. Every process that starts here is traced."""
    slurm.clear()
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(TRACER)
    sys.path.insert(0, str(folder))
    os.environ["PATHS_TRACE"] = str(folder / "trace")
    (folder / "rank.py").write_text(SCRIPT)
    with beside(AwsCloud(need=False)) as service:
        host = SlurmHost(folder, slurm)
        host.seclude()
        more = f'[termination]\nsources = ["aws"]\n[termination.aws]\nendpoint = "{service.endpoint}"\n'
        host.config.write_text(host.config.read_text() + more)
        with host.acting() as daemon:
            job = slurm.submit(f"srun --input none {sys.executable} -I {folder}/rank.py TERM 0", user="")
            slurm.wait(lambda: "ready" in slurm.output(job), "the rank to begin")
            daemon.wait_status("healthy")
            yield Node(host, daemon, service, folder / "trace")
    sys.path.remove(str(folder))


def ecc_error(node: Node) -> None:
    """Double-bit error in a GPU's memory: the driver's counters and its line, until the node is drained."""
    node.host.fake.add(*(f"set {BAD} ecc_uncorrected_volatile{where} 1" for where in ("", "_dram")))
    node.host.xid(BAD, 48)
    node.wait("excluded")


def notice(node: Node) -> None:
    """Notice of EC2 that the machine ends, until the job has its signal."""
    end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 300.0))
    node.service.set_value_from_thread("spot", {"action": "terminate", "time": end})
    node.wait("noticed", "signalled", "excluded")


def files_of_keys() -> list[list[str]]:
    """Return for each key with a name of its own the files of the product that have this name."""
    names = Counter(
        key.name for _, cls in tables(Config) for key in keys(cls) if not is_table(get_type_hints(cls)[key.name])
    )
    files = []
    for name in (name for name, count in names.items() if count == 1 and "_" in name):
        command = ["git", "grep", "-lw", name, "--", *PRODUCT]
        files.append(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split())
    return files


def spread(numbers: Sequence[int]) -> str:
    """Return the numbers as the text `median (least-most)`."""
    return f"{median(numbers):g} ({min(numbers)}-{max(numbers)})"


PATHS: dict[str, Callable[[Node], None]] = {"ECC error to a drain": ecc_error, "notice to a signal": notice}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--idle", type=float, default=40.0, metavar="S", help="seconds before the cause (default: 40)")
    parser.add_argument("--list", action="store_true", help="name each function")
    options = parser.parse_args()
    by_path: dict[str, set[Function]] = {}
    print(f"{'path':<22}{'functions':>10}{'files':>7}{'folders':>9}   idle: functions, of them in its second half")
    with tempfile.TemporaryDirectory(prefix="gw-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        folder.chmod(0o755)  # the jobs of users go through it
        (folder / "slurm").mkdir()
        with running(Slurm(folder / "slurm", nodes=1)) as slurm:
            for number, (name, follow) in enumerate(PATHS.items()):
                with node(slurm, folder / f"node{number}") as here:
                    here.idles(options.idle / 2)
                    half = here.ran()
                    here.idles(options.idle / 2)
                    idle = here.ran()
                    follow(here)
                    here.idles(SETTLES)
                    by_path[name] = new = here.ran() - idle
                counts = f"{len(new):>10}{len({f.file for f in new}):>7}{len({f.folder for f in new}):>9}"
                print(f"{name:<22}{counts}{len(idle):>20},{len(idle - half):>4}", flush=True)
    by_key = files_of_keys()
    files, folders = [len(names) for names in by_key], [len({Path(n).parent for n in names}) for names in by_key]
    print(f"one key: {spread(files)} files in {spread(folders)} folders: median (least-most) of {len(by_key)} keys")
    for name, new in by_path.items():
        print(
            f"\n{name}",
            *(f"{count:>5}  {where}" for where, count in Counter(f.folder for f in new).most_common()),
            sep="\n",
        )
        if options.list:
            print(*(f"{'':7}{file}: {function}" for file, function in sorted(new)), sep="\n")


if __name__ == "__main__":
    main()
