"""The services collector on recorded responses, on odd ones, and on a real systemd."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwarden_collectors.base import CollectorError, SourceAbsent
from gpuwarden_collectors.host_collectors.services import ServicesCollector
from gpuwarden_collectors.host_facts import ServiceFacts, ServicesFacts
from support.systemd import systemd
from support.trees import DATA


def answering(folder: Path, script: str, *configured: str, timeout: float = 60.0) -> ServicesCollector:
    """Asks a program that answers as the shell script does, on a host that runs systemd."""
    (folder / "systemd/system").mkdir(parents=True)
    return ServicesCollector(
        configured=configured, units=("nvidia-dcgm.service",), command=("sh", "-c", script), run=folder, timeout=timeout
    )


def test_a_recorded_answer_gives_exactly_the_services_that_are_installed_or_configured(tmp_path: Path) -> None:
    (tmp_path / "systemd/system").mkdir(parents=True)
    recorded = ("sh", "-c", f"cat {DATA}/services/systemd-252.txt")
    collector = ServicesCollector(configured=["lustre-client", "absent.service"], command=recorded, run=tmp_path)
    assert collector.read() == ServicesFacts(
        services=(
            ServiceFacts(
                unit="lustre-client.service", configured=True, load="loaded", active="active", sub="exited",
                result="success", enabled=True, restarts=0,
            ),
            ServiceFacts(
                unit="absent.service", configured=True, load="not-found", active="inactive", sub="dead",
                result="success", restarts=0,
            ),
            ServiceFacts(
                unit="nvidia-fabricmanager.service", load="loaded", active="failed", sub="failed", result="exit-code",
                enabled=True, restarts=5,
            ),
            ServiceFacts(
                unit="nvidia-persistenced.service", load="masked", active="inactive", sub="dead", result="success",
                restarts=0,
            ),
            ServiceFacts(
                unit="nvidia-dcgm.service", load="loaded", active="active", sub="running", result="success",
                enabled=True, restarts=1,
            ),
        )
    )  # fmt: skip


def test_a_host_without_systemd_has_no_source(tmp_path: Path) -> None:
    with pytest.raises(SourceAbsent, match="does not run systemd"):
        ServicesCollector(run=tmp_path).read()


def test_only_the_units_are_asked_for_and_no_shell_reads_them(tmp_path: Path) -> None:
    (tmp_path / "systemd/system").mkdir(parents=True)
    script = f'printf "%s\\n" "$@" > {tmp_path}/words; printf "Id=x\\n\\nId=y\\n"'
    collector = ServicesCollector(
        configured=["a;reboot", "data.mount"], units=(), command=("sh", "-c", script, "sh"), run=tmp_path
    )
    collector.read()
    arguments = (tmp_path / "words").read_text().splitlines()
    assert arguments[0] == "show"
    assert arguments[2:] == ["--", "a;reboot.service", "data.mount"]


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("echo Failed to connect to bus >&2; exit 1", "ended with 1: Failed to connect to bus"),
        ("true", "answered for 0 units, asked for 1"),
        ("printf 'Id=a\\n\\nId=b\\n'", "answered for 2 units, asked for 1"),
        ("exec sleep 1000", "has not answered within 0.3 s"),
    ],
)
def test_a_systemd_that_does_not_answer_fails_the_pass(tmp_path: Path, script: str, complaint: str) -> None:
    with pytest.raises(CollectorError, match=complaint):
        answering(tmp_path, script, timeout=0.3 if "sleep" in script else 60.0).read()


def test_a_host_without_systemctl_fails_the_pass(tmp_path: Path) -> None:
    (tmp_path / "systemd/system").mkdir(parents=True)
    with pytest.raises(CollectorError, match="/no/systemctl does not start: No such file"):
        ServicesCollector(command=("/no/systemctl",), run=tmp_path).read()


@pytest.mark.parametrize(
    ("answer", "facts"),
    [
        ("garbage", ServiceFacts(unit="nvidia-dcgm.service")),
        ("LoadState=error", ServiceFacts(unit="nvidia-dcgm.service", load="error")),
        ("Id=a=b", ServiceFacts(unit="a=b")),
        ("NRestarts=18446744073709551615", ServiceFacts(unit="nvidia-dcgm.service")),
        ("NRestarts=-1", ServiceFacts(unit="nvidia-dcgm.service")),
        ("StateChangeTimestampMonotonic=18446744073709551615", ServiceFacts(unit="nvidia-dcgm.service")),
        ("UnitFileState=static", ServiceFacts(unit="nvidia-dcgm.service")),
        ("\\377=\\377", ServiceFacts(unit="nvidia-dcgm.service")),
    ],
)
def test_unusual_responses_of_systemd(tmp_path: Path, answer: str, facts: ServiceFacts) -> None:
    assert answering(tmp_path, f"printf '{answer}\\n'").read() == ServicesFacts(services=(facts,))


@pytest.mark.slow
@pytest.mark.disposable
def test_real_systemd_reports_what_runs_what_failed_and_what_keeps_restarting(tmp_path: Path) -> None:
    units = {
        "good-enabled": "ExecStart=/bin/sleep 1000",
        "bad-enabled": "ExecStart=/bin/false",
        "again-enabled": "ExecStart=/bin/sh -c 'exit 3'\nRestart=always\nRestartSec=2.5",
        "stopped": "ExecStart=/bin/sleep 1000",
    }
    with systemd(tmp_path / "units", units) as own:
        collector = ServicesCollector(
            configured=["good-enabled", "absent"], units=[f"{name}.service" for name in (*units, "none")],
            command=own.command, run=own.run, timeout=60.0,
        )  # fmt: skip
        facts = by_name(collector.read())
        while not facts["again-enabled"].restarts or facts["again-enabled"].sub != "auto-restart":
            facts = by_name(collector.read())
    assert {name: (s.configured, s.load, s.active, s.sub, s.result, s.enabled) for name, s in facts.items()} == {
        "good-enabled": (True, "loaded", "active", "running", "success", True),
        "absent": (True, "not-found", "inactive", "dead", "success", False),
        "bad-enabled": (False, "loaded", "failed", "failed", "exit-code", True),
        "again-enabled": (False, "loaded", "activating", "auto-restart", "exit-code", True),
        "stopped": (False, "loaded", "inactive", "dead", "success", False),
    }


def by_name(facts: ServicesFacts) -> dict[str, ServiceFacts]:
    return {service.unit.removesuffix(".service"): service for service in facts.services}
