"""A collector of the host is declared once: one that is only in the list has everything that those of the release have."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.trace.reader import TraceReader
from gpuwarden.trace.records import Passed
from support import job_world
from support.commands import environment
from support.daemons import FakeHost
from support.made_up_collector import beside_the_real_ones
from support.traces import so_far

FAILED = "collector_failed"


class Host(FakeHost):
    """One whose gpuwarden has the collector."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, gpus=1)
        self.file = folder / "number"
        self.file.write_text("7")
        (folder / "site").mkdir()
        self.made_up = beside_the_real_ones(folder / "site")

    @property
    def environment(self) -> Mapping[str, str]:
        return {**self.fake.environment, **self.made_up}

    def record(self, trace: Path, *wanted: str) -> int:
        """Record until passes of these collectors are in the trace, and return the exit code."""
        command = [sys.executable, "-m", "gpuwarden", "record", "--config", str(self.config), "-o", str(trace)]
        with subprocess.Popen(command, env=environment(self.folder, self.environment)) as process:
            job_world.until(lambda: all(f'"pass":"{name}"' in so_far(trace) for name in wanted), f"passes of {wanted}")
            process.terminate()
            return process.wait(60)

    def gpuwarden(self, *words: str | Path, made_up: bool = True) -> subprocess.CompletedProcess[str]:
        more = self.environment if made_up else self.fake.environment
        return subprocess.run(
            [sys.executable, "-m", "gpuwarden", *map(str, words)],
            env=environment(self.folder, more), capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def python(self, script: str) -> str:
        ran = subprocess.run(
            [sys.executable, "-c", f"from pathlib import Path\n{script}"],
            env=environment(self.folder, self.environment), capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def table(self, keys: str) -> None:
        self.configure(f'[collectors.made_up]\n{keys}\n[checks.{FAILED}]\nrise = "0s"\n')


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.mark.slow
def test_it_has_a_table_with_bounds_and_a_check_of_its_own(host: Host) -> None:
    host.table('interval = "2s"')
    shown = host.gpuwarden("config", "show", "--config", host.config).stdout
    assert 'interval = "2s"' in shown.partition("[collectors.made_up]")[2].partition("\n[")[0]
    host.table('interval = "2h"\nfile = "number"\nfiel = ""')
    said = host.gpuwarden("config", "check", "--config", host.config)
    assert said.returncode != 0
    assert "collectors.made_up.interval: expected 100ms to 10m, found 2h" in said.stdout + said.stderr
    assert "collectors.made_up.fiel: unknown key; did you mean 'file'?" in said.stdout + said.stderr
    host.table('file = "number"')
    said = host.gpuwarden("config", "check", "--config", host.config)
    assert "collectors.made_up.file: expected an absolute path" in said.stdout + said.stderr
    unknown = host.gpuwarden("config", "check", "--config", host.config, made_up=False)
    assert "collectors.made_up: unknown key" in unknown.stdout + unknown.stderr


@pytest.mark.slow
def test_it_is_read_shown_recorded_and_its_failure_is_a_finding(host: Host) -> None:
    host.table(f'interval = "100ms"\nfile = "{host.file}"')
    trace = host.folder / "trace"
    with host.daemon() as daemon:

        def collector() -> dict[str, Any]:
            return next((c for c in daemon.status()["collectors"] if c["name"] == "made_up"), {})

        daemon.wait(lambda: collector().get("outcome") == "observed", "a pass")
        assert 'gpuwarden_collector_up{collector="made_up"} 1' in daemon.get("/metrics")[1].decode()
        host.file.write_text("none")
        daemon.wait(lambda: daemon.is_now("warning", f"{FAILED}.made_up"), "its finding")
        assert "holds no number" in collector()["error"]
        host.file.write_text("8")
        daemon.wait(lambda: collector()["outcome"] == "observed", "a pass again")
        assert host.record(trace, "nvml", "made_up") == 0
        host.file.unlink()
        daemon.wait(lambda: collector().get("outcome") == "absent", "its absence")
    script = f"""
from gpuwarden.trace.reader import TraceReader
with TraceReader(Path({str(trace)!r})) as reader:
    print({{record.observation.facts for record in reader if getattr(record, "observation", None) and record.observation.collector == "made_up"}})
    print(reader.skipped)
"""
    assert host.python(script).splitlines()[-2:] == ["{MadeUpFacts(number=8)}", "0"]
    with TraceReader(trace) as reader:  # by a gpuwarden without it
        read = {record.observation.collector for record in reader if isinstance(record, Passed)}
        assert "nvml" in read
        assert "made_up" not in read
        assert reader.skipped > 0


def test_it_goes_stale_and_has_its_rows_in_the_pages(host: Host) -> None:
    """All host collectors count for as long as the slowest of them needs."""
    host.table('interval = "100s"')
    script = f"""
from gpuwarden.config.model import load
from gpuwarden.config.sources import Sources
from gpuwarden.engine.engine import Engine
from gpuwarden.health.view import Sight
from gpuwarden.runtime.wiring import Site
from gpuwarden_collectors.base import Observation, PassOutcome
from gpuwarden_collectors.facts import Stamp
from support.made_up_collector import SPEC, MadeUpFacts
from tables import PAGES
config = load(Sources(file=Path({str(host.config)!r})))
assert config.collectors.of(SPEC).interval == 100.0
engine = Engine("boot", Site.of(config).rules)
now = Stamp(1000.0, 1000.0)
engine.observed(Observation(collector="made_up", outcome=PassOutcome.OBSERVED, started=now, finished=now, facts=MadeUpFacts(number=7)))
for seconds in (299.0, 301.0):
    sight = Sight.of(engine.view, engine.rules, Stamp(1000.0 + seconds, 1000.0 + seconds))
    print(sight.fresh(MadeUpFacts))
print("| `made_up` | a number that a test has written into a file | every 30 s |" in PAGES["reference/collectors.md"]())
print("[collectors.made_up]" in PAGES["reference/configuration.md"]())
"""
    assert host.python(script).splitlines() == ["MadeUpFacts(number=7)", "None", "True", "True"]
