"""Calls of Slurm's commands are bounded and always mean the same, whatever the programs do. These are shell scripts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.slurm.client import Commands, SlurmClient, slurm_environment
from gpuwarden_collectors.slurm.errors import OddAnswer, Refused, SlurmError, UnknownNode, Unreachable, failure
from gpuwarden_collectors.slurm.nodes import find_name, is_node_name, is_partition_name, read_node
from support.daemons import PATIENCE

Programs = Callable[..., Commands]


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    """Commands that run these scripts; `inherited` is the environment that they are called from."""

    def make(*, timeout: float = PATIENCE, inherited: Mapping[str, str] = os.environ, **scripts: str) -> Commands:
        for name, script in scripts.items():
            path = tmp_path / name
            path.write_text(f"#!/bin/sh\ncd {tmp_path}\n{script}\n")
            path.chmod(0o755)
        return SlurmClient(folder=tmp_path, conf=tmp_path / "slurm.conf", timeout=timeout, inherited=inherited).routine

    return make


async def test_variables_that_change_answers_are_cleared_and_those_that_find_slurm_are_kept(programs: Programs) -> None:
    inherited = {
        "PATH": os.environ["PATH"], "LANG": "de_DE.UTF-8", "LC_ALL": "de_DE.UTF-8", "SLURM_TIME_FORMAT": "relative",
        "SLURM_CONF": "/elsewhere", "SLURM_CLUSTERS": "other", "SINFO_FORMAT": "%N", "SINFO_PARTITION": "x",
        "SQUEUE_FORMAT": "%i", "SCONTROL_ALL": "1", "SLURM_JWT": "token", "SLURM_SACK_SOCKET": "/run/sack", "SLURMD_NODENAME": "n1",
    }  # fmt: skip
    answer = await programs(scontrol="env", inherited=inherited).ask("cannot ask", "scontrol")
    said = dict(line.split("=", 1) for line in answer.splitlines())
    local = {
        name: value for name, value in said.items() if name.startswith(("SINFO_", "SQUEUE_", "SCONTROL_", "SACCT_"))
    }
    assert local == dict.fromkeys(("SINFO_LOCAL", "SQUEUE_LOCAL", "SCONTROL_LOCAL", "SACCT_LOCAL"), "1"), (
        "no other cluster"
    )
    assert "SLURMD_NODENAME" not in said
    assert {name for name in said if name.startswith("SLURM_")} == {
        "SLURM_CONF",
        "SLURM_JWT",
        "SLURM_SACK_SOCKET",
        "SLURM_TIME_FORMAT",
    }
    assert (said["SLURM_TIME_FORMAT"], said["LC_ALL"]) == ("%s", "C")
    assert said["SLURM_CONF"].endswith("/slurm.conf")


def test_a_hook_of_slurm_without_path_finds_the_programs() -> None:
    assert "/usr/bin" in slurm_environment({})["PATH"]
    assert slurm_environment({"SLURM_CONF": "/kept"})["SLURM_CONF"] == "/kept"


async def test_no_shell_reads_names_or_reasons(programs: Programs) -> None:
    reason = """Reason=$(touch evil) `touch evil`; "q" 'q' | \\ * ü"""
    commands = programs(scontrol='printf "%s\\n" "$@"; ls')
    answer = await commands.ask("cannot ask", "scontrol", "update", reason)
    assert answer.splitlines()[:2] == ["update", reason]
    assert "evil" not in answer.splitlines()[2:]


@pytest.mark.slow
async def test_a_program_that_hangs_is_ended_and_called_unreachable(programs: Programs) -> None:
    commands = programs(scontrol="echo $$ > pid; sleep 1000 & sleep 1000", timeout=3.0)
    with pytest.raises(Unreachable, match=r"^cannot drain n1: scontrol update has not ended within 3 s"):
        await commands.change("cannot drain n1", "scontrol", "update")


async def test_what_is_asked_twice_at_once_is_asked_once(programs: Programs) -> None:
    commands = programs(sinfo="echo called >> calls; until [ -e go ]; do sleep 0.01; done; cat calls")
    folder = Path(str(commands.client._folder))
    asked = [asyncio.create_task(commands.ask("cannot ask", "sinfo", "-N")) for _ in range(5)]
    async with asyncio.timeout(PATIENCE):
        while not (folder / "calls").exists():
            await asyncio.sleep(0.01)
    asked[0].cancel()  # who gives up takes nothing away from the others
    (folder / "go").touch()
    assert await asyncio.gather(*asked[1:]) == ["called\n"] * 4
    assert await commands.ask("cannot ask", "sinfo", "-N") == "called\ncalled\n"
    assert commands.client.calls == 2


async def test_what_is_asked_after_a_change_does_not_get_an_answer_from_before_it(programs: Programs) -> None:
    commands = programs(
        sinfo="state=$(cat state); echo x >> asked; until [ -e go ]; do sleep 0.01; done; echo $state",
        scontrol="echo new > state",
    )
    folder = Path(str(commands.client._folder))
    (folder / "state").write_text("old")
    before = asyncio.create_task(commands.ask("cannot ask", "sinfo"))
    async with asyncio.timeout(PATIENCE):
        while not (folder / "asked").exists():
            await asyncio.sleep(0.01)
    await commands.change("cannot change", "scontrol")
    after = asyncio.create_task(commands.ask("cannot ask", "sinfo"))
    (folder / "go").touch()
    assert (await before, await after) == ("old\n", "new\n")


async def test_two_programs_run_at_once_at_most(programs: Programs) -> None:
    commands = programs(sinfo="mkdir run.$1; ls -d run.* | wc -l >> most; sleep 0.05; rmdir run.$1")
    await asyncio.gather(*(commands.ask("cannot ask", "sinfo", str(n)) for n in range(8)))
    counts = [int(line) for line in (Path(str(commands.client._folder)) / "most").read_text().split()]
    assert len(counts) == 8
    assert max(counts) <= 2


async def test_a_flood_is_cut_and_refused(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuwarden_collectors.slurm.client._MOST_OUTPUT", 1 << 16)
    with pytest.raises(SlurmError, match="more than"):
        await programs(sinfo="head -c 1000000 /dev/zero | tr '\\0' x").ask("cannot ask", "sinfo")


async def test_a_program_that_is_not_there_is_reported_as_missing(programs: Programs) -> None:
    with pytest.raises(Unreachable, match=r"set slurm.folder to where"):
        await programs().ask("cannot ask", "sinfo")


async def test_a_refusal_is_distinguished_from_an_unreachable_controller(programs: Programs) -> None:
    with pytest.raises(Refused, match="Operator is not enough"):
        await programs(scontrol="echo 'slurm_update error: Invalid user id' >&2; exit 1").change("cannot", "scontrol")
    with pytest.raises(Unreachable, match="see 'scontrol ping'"):
        await programs(scontrol="echo 'slurm_update error: Unable to contact slurm controller' >&2; exit 1").change(
            "cannot", "scontrol"
        )


_NO_TOKEN = (
    "sinfo: error: create_external: failed to create token\n"
    "sinfo: error: slurm_buffers_pack_msg: auth_g_create: REQUEST_PARTITION_INFO has authentication error\n"
    "slurm_load_partitions: Protocol authentication error\n"
)


@pytest.mark.parametrize("sockets", ["any sack sockets", "'SLURM_SACK_SOCKET=/run/gwsack/sack.socket'"])
def test_who_cannot_reach_the_socket_of_auth_slurm_is_not_sent_to_munge(sockets: str) -> None:
    """The lines are those of 26.05.3 with a sackd that had ended."""
    error = failure("cannot read", "sinfo", f"sinfo: error: failed to connect to {sockets}\n{_NO_TOKEN}")
    assert isinstance(error, Unreachable)
    assert "systemctl status sackd slurmd" in str(error)
    assert "munge" not in str(error)


def test_a_controller_that_ends_the_connection_may_not_accept_the_credential() -> None:
    """The line is that of 22.05.8 with the munge key of another cluster; 24.11.5 has "Protocol authentication error"."""
    error = failure("cannot read", "sinfo", "slurm_load_partitions: Zero Bytes were transmitted or received")
    assert isinstance(error, Unreachable)
    assert "clocks and keys (munge)" in str(error)


async def test_closing_ends_what_runs(programs: Programs) -> None:
    commands = programs(sinfo="echo $$ > pid.tmp; mv pid.tmp pid; exec sleep 1000")
    asked = asyncio.create_task(commands.ask("cannot ask", "sinfo"))
    pid = Path(str(commands.client._folder)) / "pid"
    async with asyncio.timeout(PATIENCE):
        while not pid.exists():
            await asyncio.sleep(0.01)
    await commands.client.close()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()


NODE = "printf 'n1\\037gpu\\037idle\\037Unknown\\037gpu:4\\037(null)\\037(null)\\037none\\036\\n'"


@pytest.mark.parametrize(
    ("sinfo", "scontrol", "kind"),
    [
        ("", "", OddAnswer),  # nothing at all
        ("echo slurm_load_node error: something; exit 0", "", OddAnswer),
        ("", "echo NodeName=n2 State=IDLE Partitions=gpu", OddAnswer),  # another node's
        ("", "echo NodeName=n1 State=IDLE Partitions=gpu", OddAnswer),  # sinfo should have had it
        ("", "echo 'Node n1 not found' >&2; exit 1", Refused),
        ("echo something new >&2; exit 1", "", SlurmError),
        ("kill -SEGV $$", "", Unreachable),
    ],
)
async def test_a_node_is_never_guessed(programs: Programs, sinfo: str, scontrol: str, kind: type[SlurmError]) -> None:
    with pytest.raises(kind, match=r"^cannot read node n1: |^sinfo reports|^scontrol reports"):
        await read_node(programs(sinfo=sinfo, scontrol=scontrol), "n1")


async def test_warnings_beside_an_answer_do_no_harm(programs: Programs) -> None:
    commands = programs(sinfo=f"echo 'sinfo: error: deprecated option' >&2; echo 'a warning'; {NODE}")
    assert (await read_node(commands, "n1")).state == "idle"


async def test_a_host_of_several_node_names_needs_one_configured(programs: Programs) -> None:
    with pytest.raises(Refused, match=r"it has 2, n1, n2; set slurm.node"):
        await find_name(programs(scontrol="echo n1 n2"), "host")
    assert await find_name(programs(scontrol='[ "$3" = host ] && echo n7; true'), "host.example.org") == "n7"


DYNAMIC = (
    "NodeName=gpu7 Arch=x86_64 CoresPerSocket=1\n   NodeAddr=10.0.0.7 NodeHostName=gpu7 Version=25.11.7\n"
    "   State=IDLE+DYNAMIC_NORM ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A\n   Partitions=gpu\n"
    "   BootTime=1795700000 SlurmdStartTime=1795700100\n"
)
"""As 25.11.7 shows a node of `slurmd -Z`, which `scontrol show aliases` does not know."""


async def test_a_dynamic_node_has_the_name_of_its_host_if_it_booted_when_this_machine_did(programs: Programs) -> None:
    commands = programs(
        scontrol=f"[ \"$2\" = aliases ] && exit 0\necho '{DYNAMIC}'",
        sinfo='case "$*" in *--nodes=gpu7\\ *) echo gpu7;; esac',
    )
    assert await find_name(commands, "gpu7.example.org", clock=lambda: Stamp(100.0, 1795700130.0)) == "gpu7"
    with pytest.raises(UnknownNode, match=r"booted at another time; set slurm\.node"):
        await find_name(commands, "gpu7.example.org", clock=lambda: Stamp(100.0, 1795500100.0))
    with pytest.raises(UnknownNode, match=r"set slurm\.node"):
        await find_name(commands, "gpu8", clock=lambda: Stamp(100.0, 1795700130.0))


@pytest.mark.parametrize("name", ["n1", "gpu-007.example.org", "A_b-3"])
def test_a_node_name_is_one_nodes(name: str) -> None:
    assert is_node_name(name)


@pytest.mark.parametrize(
    "name", ["", "n[1-3]", "n1,n2", "ALL", "all", "-n", "n1 ", "n1\n", "n1;reboot", "ü", "x" * 300]
)
def test_what_slurm_takes_for_many_nodes_is_no_name(name: str) -> None:
    assert not is_node_name(name)


@pytest.mark.parametrize(
    ("name", "sound"), [("gpu", True), ("gpu-h100.eu", True), ("a,b", False), ("-p", False), ("", False)]
)
def test_a_partition_name_is_one_partitions(name: str, *, sound: bool) -> None:
    assert is_partition_name(name) is sound
