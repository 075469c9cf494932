"""What the doctor says of this host's node in Slurm: programs of Slurm here are scripts that print what it is shown as."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuwarden.doctor.row import Grade, Row
from gpuwarden.features.slurm.examination import SlurmDoctor
from gpuwarden_collectors.slurm.options import SlurmOptions

SCONTROL = """#!/bin/sh
cd {folder}
case "$*" in
*"show config"*) echo "SLURM_VERSION           = $(cat controller)"; cat config ;;
*"show node"*) cat node ;;
esac
"""
NODE = (
    "NodeName=gpu7 Arch=x86_64 CoresPerSocket=1\n   Gres={gres}\n   NodeAddr=10.0.0.7 NodeHostName=gpu7 Version={version}\n"
    "   State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A\n"
)
"""As 25.11.7 shows a node that is in no partition."""


class Controller:
    """A slurmctld as its programs show it; sinfo knows no node. `version`: its own."""

    def __init__(self, folder: Path, version: str = "25.11.7") -> None:
        self._folder = folder
        for name, text in (("scontrol", SCONTROL.format(folder=folder)), ("sinfo", "#!/bin/sh\n")):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        (folder / "slurm.conf").touch()
        (folder / "controller").write_text(f"{version}\n")
        (folder / "config").touch()

    def shows(self, *, version: str = "25.11.7", state: str = "IDLE", gres: str = "gpu:8") -> None:
        (self._folder / "node").write_text(NODE.format(version=version, state=state, gres=gres))

    async def rows(self, node: str = "gpu7") -> dict[str, Row]:
        """Return the rows by their check. `node`: what slurm.node says; empty: nothing."""
        folder = self._folder
        options = SlurmOptions(enabled=True, conf=folder / "slurm.conf", folder=folder, node=node)
        rows = await SlurmDoctor(options, "gpu7", folder, folder, {"PATH": "/usr/bin:/bin"}).rows()
        return {row.check: row for row in rows}


@pytest.mark.parametrize(
    ("slurmd", "slurmctld", "warned"),
    [
        ("25.11.7", "25.11.7", False),
        ("25.11.4", "25.11.7", False),
        ("24.11.5", "25.11.7", True),
        ("25.11.7", "24.11.5", True),
    ],
)
async def test_a_controller_of_another_release_than_the_node_is_a_warning_with_both_versions(
    slurmd: str, slurmctld: str, warned: bool, tmp_path: Path
) -> None:
    controller = Controller(tmp_path, slurmctld)
    controller.shows(version=slurmd)
    row = (await controller.rows()).get("versions")
    shown = None if row is None else (row.grade, row.found)
    assert shown == ((Grade.WARN, f"slurmd {slurmd}, slurmctld {slurmctld}") if warned else None)


async def test_the_advice_for_a_host_that_slurm_does_not_know_is_right_for_a_dynamic_node_too(tmp_path: Path) -> None:
    row = (await Controller(tmp_path).rows(node=""))["node name"]
    assert row.grade is Grade.FAIL
    assert row.to_do == (
        "set slurm.node to the NodeName of this host ('scontrol show nodes'); a dynamic node is not in slurm.conf:"
        " start its slurmd -Z first"
    )


@pytest.mark.parametrize(
    ("state", "where"),
    [
        ("IDLE", "to its line in slurm.conf, and gres.conf"),
        ("IDLE+DYNAMIC_NORM", "to --conf of its slurmd -Z, and gres.conf"),
    ],
)
async def test_the_advice_for_a_node_without_gpus_names_where_they_belong(
    state: str, where: str, tmp_path: Path
) -> None:
    controller = Controller(tmp_path)
    controller.shows(state=state, gres="(null)")
    assert (await controller.rows())["gres"].to_do == f"add Gres=gpu:N {where}"


@pytest.mark.parametrize(
    ("sacctmgr", "grade", "text"),
    [
        ("echo Administrator", Grade.OK, "is an administrator of slurmdbd"),
        ("echo Operator", Grade.FAIL, "and Operator of slurmdbd"),
        ("echo 'sacctmgr: error: Problem talking to the database' >&2; exit 1", Grade.WARN, "is unknown"),
    ],
)
async def test_a_slurmdbd_that_does_not_answer_is_no_verdict_on_the_rights_of_a_user(
    sacctmgr: str, grade: Grade, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user may have the right all the same, as seen with slurmdbd 22.05.8."""
    controller = Controller(tmp_path)
    controller.shows()
    (tmp_path / "config").write_text(
        "AccountingStorageType   = accounting_storage/slurmdbd\nSlurmUser               = slurm(64030)\n"
    )
    (tmp_path / "sacctmgr").write_text(f"#!/bin/sh\n{sacctmgr}\n")
    (tmp_path / "sacctmgr").chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    row = (await controller.rows())["authority"]
    assert (row.grade, text in row.found) == (grade, True)


@pytest.mark.parametrize(
    ("conf", "asked"),
    [("", True), ("AuthType=auth/munge\n", True), ("#AuthType=auth/munge\n  authtype = auth/slurm\n", False)],
)
async def test_munge_is_examined_only_where_slurm_uses_it(conf: str, asked: bool, tmp_path: Path) -> None:
    controller = Controller(tmp_path)
    (tmp_path / "slurm.conf").write_text(conf)
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2\nexit 1\n")
    assert ("munge" in await controller.rows()) is asked
