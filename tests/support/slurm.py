"""A real Slurm on this machine: munged, slurmctld and a slurmd for each node, from Debian's packages, in one folder.

    from support.slurm import SLURM, Slurm
    pytestmark = SLURM

    def test_x(slurm: Slurm):  # three idle nodes n1 to n3, no jobs, nothing drained, whatever the test before did

Everything runs as root on the loopback, on free ports, without systemd, and is ended by its process id. `slurm_rig` lives
as long as a module of tests. A Slurm that is set up otherwise is made with `with running(Slurm(folder, …))`.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from support.needs import unmet
from support.slurm_conf import CONF

SLURM = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]
"""For every test that runs on a Slurm: one after the other, but for those of two more chains, since a Slurm mostly waits. All three
take about the same time; a new file belongs to the shortest (`pytest --durations=0`).
"""
SLURM_BESIDE = [pytest.mark.slurm, pytest.mark.xdist_group("slurm beside")]
"""For evacuations, kills of the daemon, power cycles and repaired nodes."""
SLURM_PARTS = [pytest.mark.slurm, pytest.mark.xdist_group("slurm parts")]
"""For those of parts of gpuwarden without a daemon, the jobs that Slurm lists, and what ended them."""

PATIENCE = 150.0
"""Seconds after which a test gives up waiting; nothing is asserted about how much of it is used."""

PROGRAMS = ("munged", "slurmctld", "slurmd", "scontrol", "sinfo", "squeue", "sbatch", "runuser")
PACKAGES = "apt-get install slurmctld slurmd slurm-client munge"
GPUS = 4
CONTROLLER = "slurmctld"
MUNGE = "munged"
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_OWN_PREFIXES = ("SLURM_", "SQUEUE_", "SINFO_", "SCONTROL_", "SBATCH_")


@dataclass(slots=True)
class Slurm:
    """`nodes` of them have a slurmd and `gpus` GPUs; `phantoms` more, f1 to fN, are in the configuration only: idle, and silent.

    `more`: further lines of slurm.conf; `cgroup`: those of cgroup.conf; of `partitions` the first is the default one. With control groups
    a Slurm needs a `prefix` of its own for its nodes: they are named by them, and all of this host. Everything can be stopped, paused and started alone, by its name:
    `slurmctld`, `munged` or a node's. Times without an answer are `PATIENCE`.
    """

    folder: Path
    nodes: int = 3
    phantoms: int = 0
    more: str = ""
    partitions: Sequence[str] = ()
    gpus: int = GPUS
    cpus: int = 4
    prefix: str = "n"
    cgroup: str = "CgroupPlugin=autodetect"
    slurmd_timeout: int = 60
    return_to_service: int = 1
    ports: list[int] = field(default_factory=list)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    _kept: list[socket.socket] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return [f"{self.prefix}{n}" for n in range(1, self.nodes + 1)]

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment for clients of this Slurm."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OWN_PREFIXES)}
        return {
            **inherited,
            "PATH": f"{inherited.get('PATH', '')}:{_PATH}",
            "SLURM_CONF": str(self.conf),
            "LC_ALL": "C",
        }

    # --- setting up

    def prepare(self) -> None:
        self.folder.chmod(0o755)  # the jobs of users go through it
        for name in ("state", "dev"):
            (self.folder / name).mkdir(exist_ok=True)
        jobs = self.folder / "jobs"
        jobs.mkdir(exist_ok=True)
        jobs.chmod(0o777)
        key = self.folder / "munge.key"
        if not key.exists():
            key.write_bytes(os.urandom(1024))
            key.chmod(0o400)
        self._devices()
        self.configure()

    def configure(self, more: str | None = None) -> None:
        """Write slurm.conf, with other lines of `more` than before if given; it counts from the next start on."""
        self.more = self.more if more is None else more
        if not self.ports:
            self._kept = keep_ports(self.nodes + 1)
            self.ports = [kept.getsockname()[1] for kept in self._kept]
        names = [*self.names, *(f"f{n}" for n in range(1, self.phantoms + 1))]
        conf = CONF.format(
            folder=self.folder,
            port=self.ports[0],
            slurmd_timeout=self.slurmd_timeout,
            return_to_service=self.return_to_service,
        )
        lines = [conf, self.more]
        shape = f"NodeHostname=localhost NodeAddr=127.0.0.1 CPUs={self.cpus} RealMemory=1000 Gres=gpu:{self.gpus}"
        lines += [f"NodeName={n} Port={p} {shape}" for n, p in zip(self.names, self.ports[1:], strict=True)]
        if self.phantoms:
            lines.append(f"NodeName=f[1-{self.phantoms}] NodeAddr=127.0.0.1 CPUs=4 RealMemory=1000")
        partitions = self.partitions or (f"PartitionName=gpu Nodes={','.join(names)} Default=YES MaxTime=INFINITE",)
        self.conf.write_text("\n".join([*lines, *partitions, ""]))
        self.plug(self.gpus)
        (self.folder / "cgroup.conf").write_text(f"{self.cgroup}\n")

    def plug(self, gpus: int) -> None:
        """Set the GPUs that a slurmd finds from its next start on. Slurm drains a node with fewer than slurm.conf has."""
        devices = f"{self.folder}/dev/nvidia[0-{gpus - 1}]"
        (self.folder / "gres.conf").write_text(f"NodeName={','.join(self.names)} Name=gpu File={devices}\n")

    def _devices(self) -> None:
        for n in range(self.gpus):
            device = self.folder / f"dev/nvidia{n}"
            if device.exists():
                continue
            try:
                os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(195, n))
            except PermissionError:
                device.touch()  # slurmd complains, and counts it

    # --- its processes

    def start(self, *names: str, booted: bool = False) -> None:
        """Start those named, else all of them, and wait until every slurmd that runs is registered. With `booted` the
        machine of a slurmd has rebooted.
        """
        for name in names or (MUNGE, CONTROLLER, *self.names):
            self._start(name, *(("-b",) if booted else ()))
        if CONTROLLER in self.processes and MUNGE in self.processes:
            self.wait(self.answers, f"{CONTROLLER} to answer")
            for name in self.names:
                if self._runs(name) and name not in self.paused:
                    self.wait(partial(self._registered, name), f"{name} to register")
            if self.phantoms and "UNKNOWN" in self.state("f1"):
                self.drain(f"f[1-{self.phantoms}]", "never seen", state="DOWN")
                self.scontrol("update", f"NodeName=f[1-{self.phantoms}]", "State=RESUME")

    def _registered(self, name: str) -> bool:
        state = self.state(name)
        return bool(state) and not state & {"UNKNOWN", "NOT_RESPONDING"}

    def _start(self, name: str, *options: str) -> None:
        commands = {
            MUNGE: [
                MUNGE, "--foreground", "--force", f"--key-file={self.folder}/munge.key", f"--socket={self.folder}/munge.sock",
                f"--pid-file={self.folder}/munged.pid", f"--log-file={self.folder}/munged.log",
                f"--seed-file={self.folder}/munged.seed", "--num-threads=10",
            ],
            CONTROLLER: [CONTROLLER, "-D"],
        }  # fmt: skip
        command = commands.get(name, ["slurmd", "-D", "-N", name, *options])
        # A daemon's output goes to its own log as well; only the last lines before that are worth having.
        with (self.folder / f"{name}.start").open("ab") as printed:
            self.processes[name] = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed, cwd="/"
            )
        if name == MUNGE:
            self.wait((self.folder / "munge.sock").exists, "munged to listen")

    def stop(self, *names: str, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop those named, else all of them, in reverse order. A process that does not end is killed."""
        for name in names or tuple(reversed(self.processes)):
            process = self.processes.pop(name, None)
            if process is None:
                continue
            process.send_signal(how)
            process.send_signal(signal.SIGCONT)
            self.paused.discard(name)
            try:  # a controller that is killed has not written its state
                process.wait(60.0 if name == CONTROLLER else 10.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def restart(self, *names: str) -> None:
        names = names or (CONTROLLER, *self.names)
        self.stop(*names)
        self.start(*names)

    def pause(self, name: str) -> None:
        """Stop the process without ending it, so that it hangs."""
        self.processes[name].send_signal(signal.SIGSTOP)
        self.paused.add(name)

    def resume(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGCONT)
        self.paused.discard(name)

    def remembers(self) -> Path:
        """Return a copy of the controller's state, in the form that `crashes` takes."""
        copy = self.folder / f"state.{time.monotonic_ns()}"
        self.stop(CONTROLLER)  # which writes all of it
        shutil.copytree(self.folder / "state", copy)
        self.start(CONTROLLER)
        return copy

    def crashes(self, state: Path) -> None:
        """The controller is killed, and comes back with what it wrote last."""
        self.stop(CONTROLLER, how=signal.SIGKILL)
        shutil.rmtree(self.folder / "state")
        shutil.copytree(state, self.folder / "state")
        self.start(CONTROLLER)

    def clear(self) -> None:
        """Everything runs, no jobs, every node idle: as at the beginning."""
        for name in tuple(self.paused):
            self.resume(name)
        gone = [name for name in (MUNGE, CONTROLLER, *self.names) if not self._runs(name)]
        for name in gone:
            self.stop(name)
        if gone:
            self.start(*gone)
        self.scontrol("delete", "reservation", "spare", check=False)
        if jobs := self.command("squeue", "-h", "--format=%A").split():
            self.command("scancel", *jobs, check=False)
        self.wait(lambda: not self.command("squeue", "-h").strip(), "jobs to end")
        for name in self.names:
            self.wait(partial(self._idle, name), f"{name} to be idle; it is {self.show(name)}")

    def _runs(self, name: str) -> bool:
        return name in self.processes and self.processes[name].poll() is None

    def _idle(self, name: str) -> bool:
        state = self.state(name)
        if state == {"IDLE"}:
            self.scontrol("update", f"NodeName={name}", "Comment=", "Extra=", check=False)
            return True
        if "NOT_RESPONDING" not in state:  # RESUME sets that flag, and a node is not to be resumed twice for it
            how = "UNDRAIN" if state == {"IDLE", "DRAIN"} else "RESUME"
            self.scontrol("update", f"NodeName={name}", f"State={how}", check=False)
        return False

    def end(self) -> None:
        """Nothing of it is left running: its jobs and their helpers neither."""
        self.stop()
        for kept in self._kept:
            kept.close()
        for pid in {*processes_with(f"SLURM_CONF={self.conf}"), *step_daemons(self.folder)}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    # --- queries

    def command(
        self,
        *words: str,
        check: bool = True,
        timeout: float = PATIENCE,
        user: str = "",
        more: Mapping[str, str] | None = None,
    ) -> str:
        """Return the output of a Slurm command on both streams. Raises AssertionError if it fails, unless `check` is false."""
        done = subprocess.run(
            [*(("runuser", "-u", user, "--") if user else ()), *words], env={**self.environment, **(more or {})},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout, check=False, cwd="/",
        )  # fmt: skip
        printed = done.stdout.decode(errors="replace")
        assert done.returncode == 0 or not check, f"{words} ended with {done.returncode}: {printed}"
        return printed

    def scontrol(self, *words: str, check: bool = True) -> str:
        return self.command("scontrol", *words, check=check)

    def answers(self) -> bool:
        return "is UP" in self.scontrol("ping", check=False)

    def show(self, node: str) -> str:
        return self.scontrol("show", "node", node)

    def state(self, node: str) -> set[str]:
        """The parts of its state, such as IDLE and DRAIN; none if there is no answer."""
        return set(filter(None, self._field(node, "   State=").partition(" ")[0].split("+")))

    def reason(self, node: str) -> str:
        """Return the reason without its user and time; "" if there is none."""
        return self._field(node, "   Reason=").rpartition(" [")[0]

    def _field(self, node: str, field: str) -> str:
        text = self.scontrol("show", "node", node, check=False)
        return text.partition(field)[2].partition("\n")[0] if field in text else ""

    def drain(self, node: str, reason: str, *, state: str = "DRAIN", user: str = "") -> None:
        """Drain the node as an administrator does."""
        self.command("scontrol", "update", f"NodeName={node}", f"State={state}", f"Reason={reason}", user=user)

    def submit(self, script: str, *options: str, user: str = "nobody") -> int:
        """The number of a batch job."""
        output = f"--output={self.folder}/jobs/%j.out"
        words = (*options, output, "--parsable", "--wrap", script)
        return int(self.command("sbatch", "--chdir=/tmp", *words, user=user).split()[-1])

    def output(self, job: int) -> str:
        path = self.folder / f"jobs/{job}.out"
        return path.read_text() if path.exists() else ""

    def job(self, job: int) -> dict[str, str]:
        """Return the output of `scontrol show job` as keys and values."""
        words = self.scontrol("show", "job", str(job), check=False).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def job_state(self, job: int) -> str:
        return self.job(job).get("JobState", "")

    def has_ended(self, job: int) -> bool:
        """Return True if the controller says so; no answer is none."""
        return self.job_state(job) not in ("", "PENDING", "CONFIGURING", "RUNNING", "COMPLETING")

    def log(self, name: str = CONTROLLER) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait(self, condition: Callable[[], object], awaited: str) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            for name, process in self.processes.items():
                if process.poll() is not None:
                    printed = (self.folder / f"{name}.start").read_text(errors="replace")[-2000:]
                    raise AssertionError(
                        f"{name} exited with {process.returncode} while waited for {awaited}:\n{printed}"
                    )
            if time.monotonic() > end:
                raise AssertionError(f"waited {PATIENCE:g} s in vain for {awaited}:\n{self.log()[-3000:]}")
            time.sleep(0.05)


def keep_ports(count: int) -> list[socket.socket]:
    """Return sockets that keep a port each, also while a daemon of the Slurm is away: another Slurm beside this one gets none of them,
    and who reuses addresses, as Slurm does, may listen on it. They are below those that outgoing connections take.
    """
    sockets: list[socket.socket] = []
    while len(sockets) < count:
        kept = socket.socket()
        try:
            kept.bind(("0.0.0.0", random.randrange(20000, 32000)))
        except OSError:
            kept.close()
            continue
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sockets.append(kept)
    return sockets


def processes_with(*variables: str) -> list[int]:
    """Return all processes that were started with these variables and values. Jobs of other Slurms here have the same numbers."""
    wanted, pids = {variable.encode() for variable in variables}, []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and wanted <= set((folder / "environ").read_bytes().split(b"\0")):
                pids.append(int(folder.name))
    return [pid for pid in pids if pid != os.getpid()]


def step_daemons(folder: Path, job: int | None = None) -> list[int]:
    """Return each slurmstepd that writes to a log in this folder: from 24.11 on its environment does not name its configuration.
    `job`: those of its steps.
    """
    pids, title = [], b"slurmstepd" if job is None else b"slurmstepd: [%d." % job
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            named = process.name.isdigit() and (process / "comm").read_text().startswith("slurmstepd")
            if named and title in (process / "cmdline").read_bytes():
                files = [str(fd.readlink()) for fd in (process / "fd").iterdir()]
                pids += [int(process.name)] if any(file.startswith(f"{folder}/") for file in files) else []
    return pids


def missing_parts() -> list[str]:
    path = os.environ.get("PATH", "") + ":" + _PATH
    absent = [f"no {program}: {PACKAGES}" for program in PROGRAMS if shutil.which(program, path=path) is None]
    return absent[:1] + (["it needs root"] if os.geteuid() else [])


def require_slurm() -> None:
    if missing := missing_parts():
        unmet(f"this test runs a real Slurm: {'; '.join(missing)}")


Started = TypeVar("Started", bound=Slurm)


@contextmanager
def running(slurm: Started) -> Iterator[Started]:
    """Started, with its nodes registered, and gone at the end whatever state it is in."""
    slurm.prepare()
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.end()


@pytest.fixture(scope="module")
def slurm_rig() -> Iterator[Slurm]:
    """Three nodes for all tests of a module; as the test before left them."""
    require_slurm()
    with (
        tempfile.TemporaryDirectory(prefix="gw-slurm-", ignore_cleanup_errors=True) as folder,
        running(Slurm(Path(folder))) as slurm,
    ):
        yield slurm


@pytest.fixture
def slurm(slurm_rig: Slurm) -> Slurm:
    """Return a Slurm with three idle nodes."""
    slurm_rig.clear()
    return slurm_rig
