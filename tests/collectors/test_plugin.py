"""Site checks that are real processes: their results, and how they are kept within bounds whatever they do."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpuwarden_collectors.base import Observation
from gpuwarden_collectors.host_facts import PluginFacts, PluginResult, PluginState
from gpuwarden_collectors.host_files import text_or_empty
from gpuwarden_collectors.plugin.options import SiteCheck
from gpuwarden_collectors.plugin.plugin import PluginRunner, plugin_environment
from gpuwarden_collectors.plugin.run import Process, run
from support import job_world
from support.daemons import children
from support.hung_mounts import hung_mount
from support.waiting import until

ENVIRONMENT = plugin_environment(os.environ)
SOON = 4.0  # seconds, for a check that is to run out of time, once it has begun on a busy machine
LATE = 60.0  # for one that is not


Named = tuple[str, SiteCheck]


def script(name: str, text: str, *, timeout: float = LATE, interval: float = LATE) -> Named:
    return name, SiteCheck(command=("/bin/sh", "-c", text), timeout=timeout, interval=interval)


Seen = list[Observation[PluginFacts]]


@asynccontextmanager
async def running(*plugins: Named, limit: int = 8) -> AsyncIterator[Seen]:
    seen: Seen = []
    runner = PluginRunner(dict(plugins), environment=ENVIRONMENT, limit=limit, dice=lambda: 0.0)
    task = asyncio.create_task(runner.run(seen.append))
    try:
        yield seen
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def newest(seen: Seen) -> dict[str, PluginResult]:
    return {} if not seen or seen[-1].facts is None else {result.name: result for result in seen[-1].facts.results}


async def results(*plugins: Named) -> dict[str, PluginResult]:
    async with running(*plugins) as seen:
        await until(lambda: len(newest(seen)) == len(plugins))
    return newest(seen)


async def result(text: str, *, within: float = LATE) -> PluginResult:
    return (await results(script("one", text, timeout=within)))["one"]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


# --- Their results -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (0, PluginState.OK),
        (1, PluginState.WARNING),
        (2, PluginState.FAILURE),
        (3, PluginState.UNKNOWN),
        (4, PluginState.UNKNOWN),
        (255, PluginState.UNKNOWN),
    ],
)
async def test_the_exit_code_is_the_state(code: int, state: PluginState) -> None:
    outcome = await result(f"echo DISK so so; exit {code}")
    assert (outcome.state, outcome.exit_code, outcome.text) == (state, code, "DISK so so")


async def test_a_site_names_the_exit_codes_of_its_script() -> None:
    nhc = "nhc", SiteCheck(("/bin/sh", "-c", "exit 1"), warning_codes=(), failure_codes=(1, 2))
    assert (await results(nhc))["nhc"].state is PluginState.FAILURE


@pytest.mark.parametrize(
    ("script_text", "text"),
    [
        ("echo 'OK - all fine | time=0.1s'; echo more", "OK - all fine"),
        ("printf '\\n\\n  late \\n'", "late"),
        ("echo whole >&2", "whole"),
        ("echo noise >&2; echo word", "word"),
        ("printf 'a\\033[2J\\007b\\377'", "a?[2J?b\ufffd"),
        ("true", ""),
        ("head -c 9999 /dev/zero | tr '\\0' x", "x" * 200),
    ],
)
async def test_the_message_is_one_printable_line(script_text: str, text: str) -> None:
    assert (await result(script_text)).text == text


async def test_a_check_has_empty_stdin_and_runs_in_the_root_directory() -> None:
    assert (await result("cat; pwd")).text == "/"


async def test_its_arguments_are_not_interpreted_by_a_shell(tmp_path: Path) -> None:
    arguments = ("/bin/echo", "$HOME", "`id`", ";", ">", str(tmp_path / "file"), "a b")
    outcome = (await results(("echo", SiteCheck(arguments))))["echo"]
    assert outcome.text == " ".join(arguments[1:])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("program", "code", "why"),
    [("/no/such", 127, "/no/such"), ("/etc/passwd", 126, "ermission denied"), ("a\0b", None, "cannot be started")],
)
async def test_a_check_that_cannot_be_started_is_unknown_with_the_cause(
    program: str, code: int | None, why: str
) -> None:
    outcome = (await results(("one", SiteCheck((program,)))))["one"]
    assert (outcome.state, outcome.exit_code) == (PluginState.UNKNOWN, code)
    assert why in outcome.text


async def test_a_check_that_is_killed_is_unknown_with_the_signal() -> None:
    outcome = await result("echo so far; kill -SEGV $$")
    assert (outcome.state, outcome.exit_code, outcome.text) == (PluginState.UNKNOWN, None, "died by SIGSEGV: so far")


def test_a_check_gets_no_more_of_our_environment_than_it_needs() -> None:
    environment = {"PATH": "/bin", "SLURM_CONF": "/x", "SLURMD_NODENAME": "n1", "TZ": "UTC", "NOTIFY_SOCKET": "/run/n"}
    assert plugin_environment(environment | {"WATCHDOG_USEC": "1", "GPUWARDEN_MODE": "enforce", "SECRET": "x"}) == {
        "PATH": "/bin", "SLURM_CONF": "/x", "SLURMD_NODENAME": "n1", "TZ": "UTC",
    }  # fmt: skip
    assert "PATH" in plugin_environment({})


# --- Over and over -------------------------------------------------------------------------------------------------


async def test_inconclusive_runs_are_counted_until_a_conclusive_one(tmp_path: Path) -> None:
    text = f"[ -e {tmp_path}/fixed ] || exit 3"
    async with running(script("one", text, interval=0.01)) as seen:
        await until(lambda: newest(seen).get("one") and newest(seen)["one"].unknown_runs >= 3)
        (tmp_path / "fixed").touch()
        await until(lambda: newest(seen)["one"].state is PluginState.OK)
    counts = [next(iter(o.facts.results)).unknown_runs for o in seen if o.facts]
    assert counts[:3] == [1, 2, 3]
    assert counts[-1] == 0


async def test_no_more_than_the_limit_run_at_once(tmp_path: Path) -> None:
    text = f"mkdir {tmp_path}/$$; ls {tmp_path} | wc -l; sleep 0.05; rmdir {tmp_path}/$$"
    async with running(*(script(f"p{n}", text) for n in range(6)), limit=2) as seen:
        await until(lambda: len(newest(seen)) == 6)
    assert {result.text for result in newest(seen).values()} <= {"1", "2"}


async def test_each_observation_carries_the_newest_result_of_every_check() -> None:
    async with running(script("once", "echo 1"), script("often", "echo 2", interval=0.01)) as seen:
        await until(lambda: set(newest(seen)) == {"once", "often"})
        first = len(seen)
        await until(lambda: len(seen) > first + 5)
    carried = [{result.name for result in each.facts.results} for each in seen[first:] if each.facts]
    assert carried == [{"once", "often"}] * len(seen[first:])
    assert {observation.collector for observation in seen} == {"plugin"}


# --- Whatever they do ----------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_check_that_never_ends_is_ended(tmp_path: Path) -> None:
    outcome = await result(f"echo $$ > {tmp_path}/pid; echo working; sleep 1000", within=SOON)
    assert (outcome.state, outcome.exit_code, outcome.text) == (
        PluginState.UNKNOWN,
        None,
        f"has not ended within {SOON:g} s: working",
    )
    assert not alive(int((tmp_path / "pid").read_text()))


@pytest.mark.slow
async def test_a_check_that_ignores_sigterm_is_killed_and_all_that_it_started_with_it(tmp_path: Path) -> None:
    text = f"trap '' TERM; (trap '' TERM; echo $$ > {tmp_path}/a; sleep 1000) & echo $! > {tmp_path}/b; wait; wait"
    outcome = await result(text, within=SOON)
    assert outcome.state is PluginState.UNKNOWN
    await until(lambda: not any(alive(int((tmp_path / name).read_text())) for name in "ab"))


@pytest.mark.slow
async def test_what_a_shell_with_job_control_started_is_killed_too(tmp_path: Path) -> None:
    text = f"set -m; sleep 1000 & echo $! > {tmp_path}/pid; wait"
    outcome = (await results(("one", SiteCheck(("/bin/bash", "-c", text), timeout=SOON))))["one"]
    assert outcome.state is PluginState.UNKNOWN
    await until(lambda: not alive(int((tmp_path / "pid").read_text())))


@pytest.mark.slow
async def test_a_check_that_cleans_up_on_sigterm_may(tmp_path: Path) -> None:
    text = f"trap 'touch {tmp_path}/clean; exit 0' TERM; while :; do sleep 0.01; done"
    outcome = await result(text, within=SOON)
    assert (outcome.state, outcome.exit_code) == (PluginState.UNKNOWN, None)
    assert (tmp_path / "clean").exists()


@pytest.mark.slow
async def test_a_flood_is_kept_short_and_leaves_the_loop_its_turns() -> None:
    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    ticking = asyncio.create_task(tick())
    outcome = await result("yes flood; yes >&2", within=SOON)
    ticking.cancel()
    assert outcome.state is PluginState.UNKNOWN
    assert outcome.text.endswith(": flood")
    assert turns > 100


async def test_a_long_report_is_read_to_its_end() -> None:
    outcome = await result("head -c 1000000 /dev/zero | tr '\\0' x; echo end >&2; exit 1")
    assert outcome.state is PluginState.WARNING
    assert set(outcome.text.removesuffix("…")) == {"x"}


async def test_what_a_check_leaves_behind_holds_nothing_up_and_is_killed(tmp_path: Path) -> None:
    outcome = await result(f"sleep 1000 & echo $! > {tmp_path}/pid; echo done")
    assert (outcome.state, outcome.text) == (PluginState.OK, "done")
    await until(lambda: not alive(int((tmp_path / "pid").read_text())))


@pytest.mark.slow
@pytest.mark.parametrize("end", ["exit 1", "sleep 1000"], ids=["ends", "too late"])
async def test_what_escapes_into_a_session_of_its_own_holds_nothing_up_and_is_killed(tmp_path: Path, end: str) -> None:
    """Its parent is gone by then, and so is that parent's."""
    escapes = f"setsid sh -c 'setsid sh -c \"echo \\$\\$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; exec sleep 1000\" &' &"
    waits = f"until [ -e {tmp_path}/pid ]; do sleep 0.01; done"
    outcome = await result(f"{escapes} {waits}; echo done; {end}", within=LATE if end == "exit 1" else 5.0)
    assert outcome.state is (PluginState.WARNING if end == "exit 1" else PluginState.UNKNOWN)
    await until(lambda: not alive(int((tmp_path / "pid").read_text())))


async def test_a_check_that_closes_its_output_is_waited_for() -> None:
    assert (await result("exec >&- 2>&-; sleep 0.1; exit 2")).state is PluginState.FAILURE


async def test_what_runs_is_killed_when_the_daemon_ends(tmp_path: Path) -> None:
    async with running(script("one", f"trap '' TERM; echo $$ > {tmp_path}/pid; sleep 1000")):
        await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    assert not alive(int((tmp_path / "pid").read_text()))


@pytest.mark.slow
@pytest.mark.disposable
@pytest.mark.parametrize(
    ("killable", "message"),
    [(True, f"has not ended within {SOON:g} s"), (False, "of an earlier run is still stuck in the kernel")],
)
async def test_a_check_on_a_dead_file_system_holds_nobody_up_and_runs_again_when_it_can(
    tmp_path: Path, message: str, *, killable: bool
) -> None:
    dead = "dead", SiteCheck((str(tmp_path / "gone/check"),), timeout=SOON, interval=0.01)
    async with running(dead, script("alive", "echo fine", interval=0.01), limit=1) as seen:
        with hung_mount(tmp_path / "gone", killable=killable):
            await until(lambda: newest(seen).get("dead") and newest(seen)["dead"].unknown_runs >= 2)
            assert message in newest(seen)["dead"].text
            before = len(seen)
            await until(lambda: len(seen) > before + 10)
            assert newest(seen)["alive"].state is PluginState.OK
        await until(lambda: newest(seen)["dead"].exit_code == 127)


def test_the_documented_script_for_a_program_that_needs_the_node_keeps_its_newest_result(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/use/site-checks.md").read_text()
    script = tmp_path / "diag"
    script.write_text(page.partition("`/usr/local/lib/site/diag`:\n\n```\n")[2].partition("```")[0])

    def environment(program: str) -> dict[str, str]:
        return {"PATH": "/usr/bin:/bin", "DIAG_RESULT": str(tmp_path / "result"), "DIAG_PROGRAM": program}

    def diag(*arguments: str, program: str = "true") -> tuple[int, str]:
        command = ["sh", str(script), *arguments]
        done = subprocess.run(command, env=environment(program), capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    assert diag() == (0, "not tested yet\n")
    assert diag("run", program="false")[0] == 1
    code, text = diag()
    assert (code, "false ended at" in text) == (1, True)
    preempted = subprocess.Popen(["sh", script, "run"], env=environment("sleep 300"))

    def runs() -> bool:
        return any(text_or_empty(Path(f"/proc/{pid}/comm")) == "sleep" for pid in children(preempted.pid))

    job_world.until(runs, "the program runs")
    preempted.terminate()
    assert preempted.wait(60) == 3
    assert diag()[0] == 1
    assert diag("run")[0] == 0
    assert diag()[0] == 0


async def test_what_has_not_ended_when_it_is_given_up_is_reaped_by_the_next_run() -> None:
    process = Process(("sleep", "600"), ENVIRONMENT)
    assert process.reap() is None
    process.signal(signal.SIGKILL)
    await until(process.gone)
    number = process.pid
    del process
    await run(("true",), ENVIRONMENT, LATE)
    assert number not in children(os.getpid())
