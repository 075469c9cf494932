"""A Slurm whose controller and nodes are booted machines, with gpuwarden on each node as its package installs it, and the repairs allowed.

What a node does to itself is recorded by the programs that do it, in a folder of this host: `nvidia-smi`, the restarted service, RebootProgram
and the boot. Each line has the time, what was done, and how many steps of jobs ran at that moment.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.debian_trees import BUILD, made_once
from support.fake_nvml_library import CONTROL_VARIABLE
from support.machine import Machine
from support.machine_cluster import Computer
from support.machine_gpuwarden import HOST, FakeGpus, install, set_profile
from support.newer_slurm import newer_slurm

PACKAGES = ("slurmd", "slurmctld", "slurm-client", "munge", "iproute2", "zstd")
CONTROLLER = "controller"
BAD, OTHER = 1, 0
"""The GPU that fails, and one that never does."""
SERVICE = "nvidia-persistenced.service"
_SLURM = "/etc/slurm"
_NEWER = ("usr/bin/s*", "usr/sbin/slurm*", "usr/bin/*munge*", "usr/sbin/*munge*", "usr/lib64", "usr/lib/*-linux-gnu")
_KEY = "/etc/munge/munge.key"
_SLURM_CONF = """ClusterName=test
SlurmctldHost={controller}
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation=/var/lib/slurm/state
SlurmdSpoolDir=/var/lib/slurm/spool
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=5,bf_interval=5,nohold_on_prolog_fail
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
KillWait=2
MinJobAge=600
SlurmdTimeout=60
ResumeTimeout=600
SlurmdParameters=config_overrides
GresTypes=gpu
RebootProgram=/usr/local/sbin/reboot-node
{nodes}
PartitionName=gpu Nodes={names} Default=YES MaxTime=INFINITE
"""
_RECORD = f"""#!/bin/sh
# What was done, with the jobs' steps that run now.
jobs=0
for comm in /proc/[0-9]*/comm; do
    read -r name 2>/dev/null <"$comm" || continue
    case $name in slurmstepd*) jobs=$((jobs + 1)) ;; esac
done
echo "$(date +%s.%N) jobs=$jobs $*" >>{HOST}/record
"""
# A power cycle of the GPUs. What is in `boot` happens at each boot from then on.
_FIRMWARE = f"""#!/bin/sh
mkdir -p /run/fake
touch /run/fake/kmsg
cat /proc/sys/kernel/random/boot_id >/run/fake/boot_id
record "boot $(cat /proc/sys/kernel/random/boot_id)"
[ ! -e {HOST}/control.boot ] || {{ cp {HOST}/control.boot {HOST}/control.new; mv {HOST}/control.new {HOST}/control; }}
"""
_NVIDIA_SMI = f"""#!/bin/sh
case "$*" in
"--gpu-reset -i "*) gpu=$3 ;;
--gpu-reset*) gpu=all ;;
-q*) echo "Driver Version : of the test"; exit 0 ;;
*) exit 0 ;;
esac
record "begin reset $gpu"
read -r how <{HOST}/reset
case $how in
in_use) sleep 1; record "end reset refused"; echo "GPU $gpu: In use by another client"; exit 255 ;;
hangs) trap '' TERM; sleep 600; exit 1 ;;
esac
sleep 3
case $how in
wrong) gpu=00000000:1B:00.0 ;;
cures) cp {HOST}/control.well {HOST}/control.new; mv {HOST}/control.new {HOST}/control ;;
esac
record "end reset $gpu"
echo "GPU $gpu was successfully reset."
echo "All done."
"""
_REBOOT = """#!/bin/sh
# A machine takes a while: for one whose boot begins within the second of the order slurmctld 24.11 waits for ever.
record "order reboot"
sleep 4
exec systemctl reboot
"""
_MANAGER = """[Service]
ExecStartPre=/usr/local/bin/record start service
ExecStart=/bin/sleep infinity
[Install]
WantedBy=multi-user.target
"""


def address_book(names: Sequence[str], network: str) -> str:
    rows = [f"{network}.{number} {name}" for number, name in enumerate(names, 1)]
    return "\n".join(("127.0.0.1 localhost", *rows, ""))


def newer_slurm_layer() -> Path:
    """Slurm 24.11 of Debian 13 and the libraries that it needs, to be put upon a Debian 12."""
    return made_once(BUILD / "machine-slurm", _NEWER, lambda layer: _make_layer(newer_slurm(), layer))


def _make_layer(tree: Path, layer: Path) -> None:
    for pattern in _NEWER:
        for path in tree.glob(pattern):
            target = layer / path.relative_to(tree)
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, target, symlinks=True)
            else:
                shutil.copy2(path, target, follow_symlinks=False)
    for library in layer.glob("usr/lib/*/libdbus-1.so*"):  # D-Bus is the older one's
        library.unlink()
    (plugins,) = layer.glob("usr/lib/*/slurm-wlm")
    os.setxattr(plugins, "trusted.overlay.opaque", b"y")  # the older ones beside them would be errors


@dataclass(frozen=True, slots=True)
class SlurmPlan:
    """What all machines of one Slurm have in common. The controller is the first of the network."""

    trees: tuple[Path, ...]
    """What the disk of each holds at first, the topmost first."""
    nodes: tuple[str, ...]
    network: str
    key: bytes

    def put(self, computer: Computer) -> None:
        """Give a machine slurm.conf, the key of munge and the addresses of all."""
        names = ",".join(self.nodes)
        nodes = "\n".join(f"NodeName={name} CPUs=2 RealMemory=500 Gres=gpu:2" for name in self.nodes)
        conf = _SLURM_CONF.format(controller=CONTROLLER, nodes=nodes, names=names)
        computer.write(f"{_SLURM}/slurm.conf", conf)
        computer.write(f"{_SLURM}/gres.conf", f"NodeName={names} Name=gpu File=/dev/nvidia[0-1]\n")
        computer.write(f"{_SLURM}/cgroup.conf", "CgroupPlugin=disabled\n" if len(self.trees) > 1 else "")
        computer.write("/etc/hosts", address_book((CONTROLLER, *self.nodes), self.network))
        computer.path("/var/lib/slurm").mkdir(parents=True)
        key = computer.path(_KEY)
        key.parent.mkdir(mode=0o700, parents=True)
        key.write_bytes(self.key)
        key.chmod(0o400)
        owner = next(
            line.split(":")
            for line in (self.trees[-1] / "etc/passwd").read_text().splitlines()
            if line.startswith("munge:")
        )
        for path in (key.parent, key):
            os.chown(path, int(owner[2]), int(owner[3]))
        off = "slurmd" if computer.name == CONTROLLER else "slurmctld"
        computer.path("/etc/systemd/system").mkdir(parents=True, exist_ok=True)
        computer.path(f"/etc/systemd/system/{off}.service").symlink_to("/dev/null")


_CONFIGURATION = f"""mode = "enforce"
[paths]
sysfs = "{HOST}/sys"
kmsg = "/run/fake/kmsg"
[publish]
listen = "0.0.0.0:9839"
[collectors.nvml]
library = "{HOST}/libnvidia-ml.so.1"
interval = "1s"
[policy]
restore_passes = 3
restore_after = "0s"
look_often = "5s"
[checks.service_down]
severity = "failure"
[breaker]
percent = 100
count = 1000
recount_after = "1s"
[slurm]
enabled = true
[repair]
steps = ["restart_service", "reset_gpu", "reboot"]
at_once = AT_ONCE
per_day = 1000
[bundle]
on_failure = BUNDLES
"""
# systemd-nspawn mounts the machine's own boot id over that of this host, and systemd mounts another /proc for a unit in a sandbox, which lacks that.
_BOOT_ID = "[Service]\nBindReadOnlyPaths=/run/fake/boot_id:/proc/sys/kernel/random/boot_id\n"
# The record of the test is beside what the helper may write.
_HELPER = f"[Service]\nReadWritePaths={HOST}\nEnvironment={CONTROL_VARIABLE}={HOST}/control\n"
_UNITS = ("gpuwarden.service", "gpuwarden-repair@.service", "gpuwarden-bundle@.service")
_PROGRAMS = {
    "/usr/local/bin/record": _RECORD,
    "/usr/local/bin/nvidia-smi": _NVIDIA_SMI,
    "/usr/local/sbin/reboot-node": _REBOOT,
    "/usr/local/sbin/firmware": _FIRMWARE,
}
_FIRMWARE_UNIT = """[Unit]
DefaultDependencies=no
After=local-fs.target
Before=sysinit.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/firmware
"""


def installed(folder: Path, tree: Path, *, at_once: int, bundles: bool) -> Path:
    """The files of gpuwarden and of the programs of the test, which all nodes have."""
    base = Machine(tree, folder)
    gpus = FakeGpus(folder)
    install(base, gpus, _CONFIGURATION.replace("AT_ONCE", str(at_once)).replace("BUNDLES", str(bundles).lower()))
    set_profile(base, "enforce")
    for socket in ("gpuwarden-repair", *(("gpuwarden-bundle",) if bundles else ())):
        link = base.path(f"/etc/systemd/system/sockets.target.wants/{socket}.socket")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"/usr/lib/systemd/system/{socket}.socket")
    for unit in _UNITS:
        base.write(f"/etc/systemd/system/{unit}.d/60-boot.conf", _BOOT_ID)
    base.write("/etc/systemd/system/gpuwarden-repair@.service.d/50-fake.conf", _HELPER)
    for path, text in _PROGRAMS.items():
        base.write(path, text, 0o755)
    base.write("/etc/systemd/system/firmware.service", _FIRMWARE_UNIT)
    base.write(f"/etc/systemd/system/{SERVICE}", _MANAGER)
    base.write("/etc/tmpfiles.d/nvidia.conf", "".join(f"c /dev/nvidia{n} 0666 - - - 195:{n}\n" for n in range(2)))
    return base.folder / "files"


class Controller(Computer):
    """The machine of slurmctld."""

    def __init__(self, plan: SlurmPlan, folder: Path, bridge: str) -> None:
        super().__init__(plan.trees, folder, CONTROLLER, bridge, 1)
        plan.put(self)

    def scontrol(self, *words: str) -> str:
        return self.run("scontrol", *words).stdout

    def state(self, node: str) -> frozenset[str]:
        """Return the words of a node's state."""
        shown = self.run("scontrol", "show", "node", node, "--oneliner", check=False).stdout
        match = re.search(r"\bState=(\S+)", shown)
        return frozenset(re.split(r"[+*]", match[1])) if match else frozenset()

    def submit(self, node: str, seconds: float) -> str:
        """Submit a job for this node, and return its number."""
        words = ("--parsable", "--no-requeue", "--exclusive", f"--nodelist={node}", "--output=/dev/null", "--chdir=/")
        return self.run("sbatch", *words, f"--wrap=sleep {seconds:.0f}").stdout.strip()

    def job(self, number: str) -> dict[str, str]:
        """Return what Slurm knows of a job."""
        shown = self.run("scontrol", "show", "job", number, "--oneliner", check=False).stdout
        return dict(word.partition("=")[::2] for word in shown.split())


class GpuNode(Computer):
    """A node with two GPUs. Its disk is that of a new machine each time that one is made. `service`: NVIDIA's service runs there."""

    def __init__(
        self, plan: SlurmPlan, folder: Path, bridge: str, name: str, base: Path, *, service: bool = False
    ) -> None:
        folder.mkdir(mode=0o755)
        self.gpus = FakeGpus(folder)
        super().__init__((base, *plan.trees), folder, name, bridge, 2 + plan.nodes.index(name), binds=self.gpus.binds)
        plan.put(self)
        self.enable("firmware.service", "sysinit.target")
        if service:
            self.enable(SERVICE)
        (self.gpus.folder / "control.well").write_text(self.gpus.fake.control.read_text())
        self.says(reset="cures")

    def says(self, **files: str) -> None:
        """Set what the programs of the node find: what a reset does (`reset`), and what the GPUs are at each boot (`control_boot`)."""
        for name, text in files.items():
            (self.gpus.folder / name.replace("_", ".")).write_text(f"{text}\n")

    @property
    def record(self) -> list[str]:
        """Return what was done to it."""
        file = self.gpus.folder / "record"
        return file.read_text().splitlines() if file.exists() else []

    def status(self) -> dict[str, Any]:
        """Return what the daemon says; empty if it does not answer."""
        try:
            with urllib.request.urlopen(f"http://{self.address}:9839/v1/status", timeout=5) as answer:
                document: dict[str, Any] = json.load(answer)
        except (OSError, ValueError):
            return {}
        return document
