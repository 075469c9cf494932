"""Trees of real processes such as jobs are: each member has the name, environment, handlers, control group and user that it is given.

Run as a program: `python job_trees.py SPEC` is one member, which starts those below it. It ends when its parent does, unless it
was left (`orphan`), and after five minutes anyway.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

BOUND = 60.0
PYTHON = os.path.realpath(sys.executable)
_ENDS_BY_ITSELF = 300  # s
_SHARED = ("system.slice", "slurmstepd.scope", "n1_slurmstepd.scope", "slurm", "uid_65534", "docker", "user.slice")
_ANYWHERE = [
    f"--{kind}-caps=+dac_override,+dac_read_search" for kind in ("inh", "ambient")
]  # this Python may be root's alone


def member(label: str, *below: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the description of one process. All keys are optional:

    `program`: the name of its binary. `script`, `module`: python runs a file of this path, or `-m` this package. `shell`: it
    is this shell's script, in which {} stands for those below. `env`, `catch` (names of signals), `cgroup`, `uid`, `session`;
    `orphan`: it outlives its parent; `leaves`: it ends once those below run; `comm`: as the kernel shall call it; `fork`: those below
    are forked, with its handlers and its environment.
    """
    return {"label": label, "below": list(below), **more}


class Forest:
    """`start` returns the process numbers by label. What was started is ended with `clear`.

    `job`, `sluid` and `container` are names that nobody else on this host has, for tests run at the same time.
    """

    _made = count(1)

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.marks = folder / "marks"
        self.marks.mkdir(parents=True)
        self.marks.chmod(0o777)
        self.job = os.getpid() * 100 + next(self._made) % 100
        self.container = secrets.token_hex(32)
        self.sluid = f"s{secrets.token_hex(7).upper()}"
        self._roots: list[subprocess.Popen[bytes]] = []
        self._groups: list[Path] = []

    def start(self, spec: dict[str, Any], *, wait_for: Sequence[str] = ()) -> dict[str, int]:
        """`wait_for`: labels of those that run at first, if not all."""
        complete = self._complete(spec)
        self._roots.append(subprocess.Popen(complete["argv"], env=complete["env"], start_new_session=True))
        pids = self.wait_for(*(wait_for or (label for label, _ in _all(complete))))
        for label, child in _all(complete):
            if child.get("leaves"):
                _until(partial(_is_over, pids[label]), f"{label} ends")
        return pids

    def wait_for(self, *labels: str) -> dict[str, int]:
        _until(lambda: all((self.marks / label).exists() for label in labels), f"all of {labels}")
        return {label: int((self.marks / label).read_text()) for label in labels}

    def _complete(self, spec: dict[str, Any], inherited: Mapping[str, str] | None = None) -> dict[str, Any]:
        base = {"PATH": os.environ["PATH"]} if inherited is None else inherited
        env = {name: value for name, value in {**base, **spec.get("env", {})}.items() if value is not None}
        below = [self._complete(child, env) for child in spec["below"]]
        node = {**spec, "below": below, "env": env, "marks": str(self.marks)}
        return {**node, "argv": self._argv(node)}

    def _argv(self, spec: dict[str, Any]) -> list[str]:
        if "shell" in spec:
            runs = [" ".join(map(_quoted, _with_environment(child))) for child in spec["below"]]
            mark = f"echo $$ > {self.marks}/.{spec['label']}; mv {self.marks}/.{spec['label']} {self.marks}/{spec['label']}"
            words = [*spec.get("interpreter", ["bash", "-c"]), f"{mark}; {spec['shell'].format(*runs)}"]
        else:
            plan = self.folder / f"{spec['label']}.json"
            plan.write_text(json.dumps(spec))
            words = [*self._program(spec), str(plan)]
        if "uid" in spec:
            words = [
                "setpriv",
                f"--reuid={spec['uid']}",
                f"--regid={spec['uid']}",
                "--clear-groups",
                *_ANYWHERE,
                *words,
            ]
        return _in_group(spec.get("cgroup"), words)

    def _program(self, spec: dict[str, Any]) -> list[str]:
        if "program" in spec:
            link = self.folder / "bin" / spec["program"]
            link.parent.mkdir(exist_ok=True)
            if not link.is_symlink():
                link.symlink_to(PYTHON)
            return [str(link), __file__]
        if "module" in spec:
            base = self.folder / "modules"
            code = self._copy(base / f"{spec['module'].replace('.', '/')}.py")
            for folder in code.relative_to(base).parents[:-1]:
                (base / folder / "__init__.py").touch()
            return (
                [PYTHON, str(code)] if spec.get("by_path") else ["env", "-C", str(base), PYTHON, "-m", spec["module"]]
            )
        if "script" in spec:
            return [PYTHON, *spec.get("options", []), str(self._copy(self.folder / spec["script"]))]
        return [PYTHON, __file__]

    @staticmethod
    def _copy(path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(__file__, path)
        return path

    def cgroup(self, path: str, *, version: int = 2) -> str:
        """The group of this path, at its place in the tree, for it counts nowhere else. Skips the test where none can be made."""
        folder = cgroup_root(version)
        for name in path.strip("/").split("/"):
            folder /= name
            if not folder.exists():
                self._groups.append(folder)
                _until(partial(_made, folder), f"{folder} is made")
        return str(folder)

    def clear(self) -> None:
        for mark in self.marks.iterdir():
            with contextlib.suppress(ProcessLookupError, ValueError):
                os.kill(int(mark.read_text()), signal.SIGKILL)
            mark.unlink()
        for root in self._roots:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(root.pid, signal.SIGKILL)
            root.wait(BOUND)
        self._roots.clear()
        for group in reversed(self._groups):
            if group.name in _SHARED:
                _removed(group)  # another test may have its groups there
            else:
                _until(partial(_removed, group), f"{group} is empty")


@contextlib.contextmanager
def forest() -> Iterator[Forest]:
    with tempfile.TemporaryDirectory(prefix="gw-trees-") as folder:
        Path(folder).chmod(0o755)  # members may run under another user
        grown = Forest(Path(folder))
        try:
            yield grown
        finally:
            grown.clear()


def cgroup_root(version: int) -> Path:
    import pytest  # a member runs without it

    from support.needs import root_rights

    root_rights()
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, kind = line.partition(" - ")
        mount = Path(fields.split()[4])
        wanted = kind.startswith("cgroup2 ") if version == 2 else kind.startswith("cgroup ") and mount.name == "freezer"
        if wanted and os.access(mount, os.W_OK):
            return mount
    raise pytest.skip.Exception(
        f"needs a hierarchy of control groups of version {version} to write to (docker run --privileged)"
    )


def _made(folder: Path) -> bool:
    """False while another test removes the folder above it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return True


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _in_group(group: str | None, words: list[str]) -> list[str]:
    if group is None:
        return words
    return ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", *words]


def _with_environment(spec: dict[str, Any]) -> list[str]:
    return ["env", "-i", *(f"{name}={value}" for name, value in spec["env"].items()), *spec["argv"]]


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def _all(spec: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield spec["label"], spec
    for child in spec["below"]:
        yield from _all(child)


def _is_over(pid: int) -> bool:
    """Return True if the process has exited. Its children have another parent then."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] in "ZX"
    except OSError:
        return True


def _until(holds: Callable[[], bool], awaited: str) -> None:
    bound = time.monotonic() + BOUND
    while not holds():
        if time.monotonic() > bound:
            raise AssertionError(f"not within {BOUND:g} s: {awaited}")
        time.sleep(0.01)


# --- one member ----------------------------------------------------------------------------------------------------


def live(spec: dict[str, Any]) -> None:
    """The mark is set when the handlers are: before that it appears as any program that begins."""
    prctl = ctypes.CDLL(None).prctl
    marks = Path(spec["marks"])
    signal.alarm(_ENDS_BY_ITSELF)
    if "comm" in spec:
        prctl(15, spec["comm"].encode("utf-8", "surrogateescape"))  # PR_SET_NAME
    for name in spec.get("catch", ()):
        signal.signal(getattr(signal, f"SIG{name}"), lambda *_: None)
    if not spec.get("orphan"):
        prctl(1, 9)  # PR_SET_PDEATHSIG
    for child in spec["below"]:
        if not spec.get("fork"):
            subprocess.Popen(child["argv"], env=child["env"], start_new_session=child.get("session", False))
        elif os.fork() == 0:
            live(child)
    (marks / f".{spec['label']}").write_text(str(os.getpid()))
    (marks / f".{spec['label']}").replace(marks / spec["label"])
    if spec.get("leaves"):
        _until(lambda: all((marks / child["label"]).exists() for child in spec["below"]), "those that are left run")
        os._exit(0)
    while True:
        signal.pause()


def main() -> None:
    live(json.loads(Path(sys.argv[-1]).read_text()))


if __name__ == "__main__":
    main()
