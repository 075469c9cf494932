"""A real Slurm with two controllers that share their state, as two hosts on one: each has a host name, an address of the loopback and a pid
file of its own, in namespaces of its own.

The primary is `slurmctld`, the backup BACKUP. It takes over a few seconds after the primary is gone, and gives back when that returns.
"""

from __future__ import annotations

import signal
import subprocess

from support.slurm import CONTROLLER, MUNGE, Slurm

BACKUP = "slurmctld-backup"
_HOSTS = {CONTROLLER: "ctl1", BACKUP: "ctl2"}
_TIMEOUT = 5  # seconds without a sign of the primary until the backup takes over
_ALONE = (
    'mount --bind "$1/hosts" /etc/hosts; mount -t tmpfs none "$1/pid"; hostname "$2"; exec slurmctld -D -L "$1/$3.log"'
)


class FailoverSlurm(Slurm):
    def configure(self, more: str | None = None) -> None:
        super().configure(more)
        lines = (
            "SlurmctldHost=ctl1(127.0.0.1)",
            "SlurmctldHost=ctl2(127.0.0.2)",
            "CommunicationParameters=NoCtldInAddrAny",
            f"SlurmctldTimeout={_TIMEOUT}",
        )
        conf = self.conf.read_text().replace("SlurmctldHost=localhost(127.0.0.1)", "\n".join(lines))
        (self.folder / "pid").mkdir(exist_ok=True)
        self.conf.write_text(conf.replace(f"SlurmctldPidFile={self.folder}/", f"SlurmctldPidFile={self.folder}/pid/"))
        (self.folder / "hosts").write_text("127.0.0.1 localhost ctl1\n127.0.0.2 ctl2\n")

    def start(self, *names: str, booted: bool = False) -> None:
        super().start(*(names or (MUNGE, CONTROLLER, *self.names)), booted=booted)
        if not names:
            self._start(BACKUP)
            self.wait(lambda: "(backup) at ctl2 is UP" in self.scontrol("ping"), "the backup to wait")

    def _start(self, name: str, *options: str) -> None:
        if name not in _HOSTS:
            super()._start(name, *options)
            return
        command = ("unshare", "--uts", "--mount", "sh", "-ec", _ALONE, "sh", str(self.folder), _HOSTS[name], name)
        with (self.folder / f"{name}.start").open("ab") as printed:
            self.processes[name] = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed, cwd="/"
            )

    def answers(self) -> bool:
        return self.command("sinfo", "--noheader", "--format=%D", check=False).strip().isdigit()

    def primary_dies(self) -> None:
        """The primary is killed."""
        self.stop(CONTROLLER, how=signal.SIGKILL)

    def primary_dies_with_its_nodes(self) -> None:
        """The primary is killed, and what is on disk of the nodes is lost before the backup reads it: that has them from slurm.conf alone."""
        self.pause(BACKUP)
        self.primary_dies()
        for file in (self.folder / "state").glob("node_state*"):
            file.unlink()
        self.resume(BACKUP)
