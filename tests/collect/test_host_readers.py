"""The collectors of the host as the daemon runs them, on this very machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.collect.host_collectors import host_sources, site_checks
from gpuwarden.collect.schedule import Source
from gpuwarden.config.collectors import Collectors
from gpuwarden_collectors.base import Observation, PassOutcome, host_clock
from gpuwarden_collectors.host_collectors import infiniband
from gpuwarden_collectors.host_facts import MemoryFacts, PluginFacts, ProcessesFacts, StorageFacts
from gpuwarden_collectors.host_files import text_or_empty
from gpuwarden_collectors.plugin.options import PluginOptions, SiteCheck
from gpuwarden_collectors.registry import HOST_COLLECTORS
from gpuwarden_collectors.spec import Host

PROC, SYSFS = Path("/proc"), Path("/sys")
LATE = 60.0
ALL, HERE = Collectors(), Host(proc=PROC, sysfs=SYSFS, clock=host_clock)
OFF = replace(
    ALL, plugin=PluginOptions(enabled=False),
    **{spec.name: replace(ALL.of(spec), enabled=False) for spec in HOST_COLLECTORS},
)  # fmt: skip


def sources(collectors: Collectors = ALL, host: Host = HERE) -> dict[str, Source]:
    return {source.name: source for source in host_sources(collectors, host)}


async def found(source: Source) -> Any:
    return (await source.once()).facts


async def test_each_collector_makes_a_pass_of_this_machine() -> None:
    passes = {name: await source.once() for name, source in sources().items()}
    assert list(passes) == [spec.name for spec in HOST_COLLECTORS]
    assert all(name == made.collector for name, made in passes.items())
    kinds = {"storage": StorageFacts, "memory": MemoryFacts, "processes": ProcessesFacts}
    for name, kind in kinds.items():
        assert isinstance(passes[name].facts, kind), passes[name].error


async def test_disabled_sources_are_not_read_and_the_absence_of_site_checks_is_reported() -> None:
    assert sources(OFF) == {}
    checks = {"one": SiteCheck(command=("/bin/true",))}
    assert (await site_checks(OFF.plugin, checks, host_clock).once()).outcome is PassOutcome.ABSENT
    assert (await site_checks(ALL.plugin, {}, host_clock).once()).outcome is PassOutcome.ABSENT
    assert OFF.off == ("infiniband", "storage", "memory", "processes", "services")
    assert ALL.off == ()


async def test_devices_are_left_out_by_pattern(tmp_path: Path) -> None:
    for device in ("mlx5_0", "mlx5_4"):
        folder = tmp_path / "class/infiniband" / device / "ports/1"
        folder.mkdir(parents=True)
        (folder / "state").write_text("4: ACTIVE\n")
    table: Any = {"infiniband": replace(ALL.of(infiniband.SPEC), exclude=("mlx5_[45]",))}
    facts = await found(sources(replace(ALL, **table), replace(HERE, sysfs=tmp_path))["infiniband"])
    assert [port.name for port in facts.ports] == ["mlx5_0/1"]
    assert len(facts.excluded) == 1


# --- Site checks ---------------------------------------------------------------------------------------------------


def checks(limit: int = 3, **commands: str) -> Source:
    plugins = {name: SiteCheck(command=("/bin/sh", "-c", text), interval=1.0) for name, text in commands.items()}
    return site_checks(PluginOptions(limit=limit), plugins, host_clock)


@asynccontextmanager
async def running(source: Source) -> AsyncIterator[list[Observation[Any]]]:
    seen: list[Observation[Any]] = []
    task = asyncio.ensure_future(source.run(seen.append))
    try:
        yield seen
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(seen: list[Observation[Any]], names: set[str]) -> PluginFacts:
    async with asyncio.timeout(LATE):
        while True:
            facts = seen[-1].facts if seen else None
            if isinstance(facts, PluginFacts) and {result.name for result in facts.results} == names:
                return facts
            await asyncio.sleep(0.01)


async def test_before_any_site_check_has_run_it_is_known_which_there_are() -> None:
    async with running(checks(slow="exec sleep 1000", fast="exit 1")) as seen:
        facts = await until(seen, {"fast"})
        assert seen[0].facts == PluginFacts(names=("slow", "fast"))
        assert facts.names == ("slow", "fast")


async def test_one_pass_runs_each_site_check_once(tmp_path: Path) -> None:
    text = f"echo run >> {tmp_path}/runs"
    facts = await found(checks(limit=1, one=text, two=text, three="exit 2"))
    assert sorted(result.name for result in facts.results) == ["one", "three", "two"]
    assert (tmp_path / "runs").read_text().split() == ["run", "run"]


async def test_a_site_check_that_is_not_enabled_does_not_run() -> None:
    plugins = {"on": SiteCheck(command=("/bin/true",)), "off": SiteCheck(command=("/bin/true",), enabled=False)}
    facts = await found(site_checks(ALL.plugin, plugins, host_clock))
    assert facts.names == ("on",)


async def test_no_secret_of_the_daemon_s_environment_reaches_a_site_check(tmp_path: Path) -> None:
    written = tmp_path / "environment"
    checks = {"env": SiteCheck(command=("/bin/sh", "-c", f"env > {written}"))}
    environment = {"PATH": "/usr/bin:/bin", "NOTIFY_SOCKET": "/run/secret", "SLURM_CONF": "/etc/slurm/slurm.conf"}
    await found(site_checks(ALL.plugin, checks, host_clock, environment))
    assert "SLURM_CONF" in written.read_text()
    assert "NOTIFY_SOCKET" not in written.read_text()


@pytest.mark.parametrize("when", ["run", "once"])
async def test_no_probe_of_a_mount_outlives_its_source(when: str) -> None:
    source = sources()["storage"]
    if when == "once":
        await source.once()
    else:
        async with running(source) as seen, asyncio.timeout(LATE):
            while not seen:
                await asyncio.sleep(0.01)
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert not [pid for pid in children if "stat\0-f" in text_or_empty(Path(f"/proc/{pid}/cmdline"))]
