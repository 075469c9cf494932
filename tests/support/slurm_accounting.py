"""A real Slurm with accounting: a slurmdbd with a MariaDB of its own, in the folder of the rig.

With slurmdbd a controller treats reasons and its own drains of nodes differently from one without (23.11 and later).
"""

from __future__ import annotations

import subprocess

from support.slurm import CONTROLLER, MUNGE, Slurm, keep_ports

DATABASE = "mariadbd"
ACCOUNTING = "slurmdbd"
_CONF = """
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database}
StorageUser=root
StorageLoc=accounting
"""


class AccountedSlurm(Slurm):
    """A Slurm whose controller sends its accounting to slurmdbd. For root."""

    def prepare(self) -> None:
        self._database, self._accounting = keep_ports(2)
        super().prepare()
        made = ("mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={self.folder}/database")
        subprocess.run([*made, "--skip-test-db"], capture_output=True, timeout=120, check=True)

    def configure(self, more: str | None = None) -> None:
        super().configure(more)
        database, port = (kept.getsockname()[1] for kept in (self._database, self._accounting))
        lines = (
            "accounting_storage/slurmdbd",
            "AccountingStorageHost=127.0.0.1",
            f"AccountingStoragePort={port}",
            f"AccountingStoragePass={self.folder}/munge.sock",
        )
        self.conf.write_text(self.conf.read_text().replace("accounting_storage/none", "\n".join(lines)))
        conf = self.folder / "slurmdbd.conf"  # read beside slurm.conf
        conf.write_text(_CONF.format(folder=self.folder, port=port, database=database))
        conf.chmod(0o600)

    def start(self, *names: str, booted: bool = False) -> None:
        super().start(*(names or (MUNGE, DATABASE, ACCOUNTING, CONTROLLER, *self.names)), booted=booted)

    def end(self) -> None:
        super().end()
        for kept in (self._database, self._accounting):
            kept.close()

    def _start(self, name: str, *options: str) -> None:
        if name not in (DATABASE, ACCOUNTING):
            super()._start(name, *options)
            return
        port = self._database.getsockname()[1]
        database = [
            DATABASE, "--no-defaults", "--user=root", f"--datadir={self.folder}/database", "--skip-grant-tables",
            f"--port={port}", "--bind-address=127.0.0.1", f"--socket={self.folder}/database.sock",
            "--innodb-lock-wait-timeout=900", f"--pid-file={self.folder}/database.pid",
        ]  # fmt: skip
        with (self.folder / f"{name}.start").open("ab") as printed:
            self.processes[name] = subprocess.Popen(
                database if name == DATABASE else [ACCOUNTING, "-D"],
                env=self.environment, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed, cwd="/",
            )  # fmt: skip
        awaited = (self.folder / "database.sock").exists if name == DATABASE else self._accounts
        self.wait(awaited, f"{name} to answer")

    def _accounts(self) -> bool:
        return "Cluster" in self.command("sacctmgr", "show", "cluster", check=False)
