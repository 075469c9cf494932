"""Writes the rules for Prometheus from the tables of `prometheus_rules`: `make docs`. A test keeps both equal.

    .venv/bin/python tools/rules.py --job gpu-nodes --runbooks https://wiki.example.org/gpuwarden --output /etc/prometheus/gpuwarden

The texts of findings and of their advice are not here: alerts ask the daemon for them (`gpuwarden_finding_info`).
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from pathlib import Path

from gpuwarden.health.runbooks import RUNBOOKS
from prometheus_rules.alerts import alerts
from prometheus_rules.model import JOB, Alert, Group, Pace, Recording, Settings
from prometheus_rules.recording import recordings

FOLDER = Path(__file__).parents[1] / "grafana" / "prometheus"

HEAD = """\
# Made by tools/rules.py from tools/prometheus_rules; edit those. Prometheus 2.42 or later (keep_firing_for).
"""
ALERTS_HEAD = """\
#
# severity: page    an operator must act now, at night too
#           ticket  an operator must act in working hours
#           info    for the record
#
# The addresses of the runbooks are a placeholder. Put your own there, and the name of your scrape job if it is not "gpuwarden":
#   .venv/bin/python tools/rules.py --runbooks https://wiki.example.org/gpuwarden --job gpu-nodes --output .
#
# The label `cluster` is an external label of Prometheus. How pages of single nodes are inhibited while a whole fleet is in
# failure: alertmanager.yml.
"""


def recording_rules(settings: Settings) -> str:
    return HEAD + _groups(recordings(settings.pace), settings)


def alert_rules(settings: Settings) -> str:
    return HEAD + ALERTS_HEAD + _groups(alerts(settings), settings)


FILES = {"recording.rules.yml": recording_rules, "alerts.rules.yml": alert_rules}


def write(folder: Path, settings: Settings) -> None:
    """Write all rule files into `folder`, which is created if it does not exist. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        (folder / name).write_text(text(settings), encoding="utf-8")


def _groups(groups: tuple[Group, ...], settings: Settings) -> str:
    return "groups:\n" + "\n".join("\n".join(_group(group, settings)) for group in groups) + "\n"


def _group(group: Group, settings: Settings) -> Iterator[str]:
    yield f"  - name: {group.name}"
    yield f"    interval: {settings.pace(group.interval)}"
    yield "    rules:"
    for rule in group.rules:
        lines = _recording(rule) if isinstance(rule, Recording) else _alert(rule, settings)
        yield from (f"      {line}" for line in lines)


def _recording(rule: Recording) -> Iterator[str]:
    yield from (f"# {line}" for line in textwrap.wrap(rule.why, 110))
    yield f"- record: {rule.record}"
    yield from _block("expr", rule.expr)


def _alert(rule: Alert, settings: Settings) -> Iterator[str]:
    yield f"- alert: {rule.name}"
    yield from _block("expr", rule.expr)
    if rule.lasts != "0s":
        yield f"  for: {settings.pace(rule.lasts)}"
    if rule.keeps:
        yield f"  keep_firing_for: {settings.pace(rule.keeps)}"
    yield "  labels:"
    yield f"    severity: {rule.severity}"
    yield "  annotations:"
    for name, text in (
        ("summary", rule.summary),
        ("description", rule.description),
        ("runbook_url", f"{settings.runbooks}/{rule.runbook or f'{rule.name}.md'}"),
    ):
        yield f"    {name}: {_quoted(text)}"


def _block(name: str, text: str) -> Iterator[str]:
    yield f"  {name}: |-"
    yield from (f"    {line}" for line in text.splitlines())


def _quoted(text: str) -> str:
    """Quote the text with single quotes, in which YAML knows no escape but the quote itself."""
    return "'" + text.replace("'", "''") + "'"


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes the rules for Prometheus.")
    parser.add_argument("--job", default=JOB, help=f"the job name of your scrape configuration (default: {JOB})")
    parser.add_argument(
        "--runbooks", default=RUNBOOKS, help="where your people read docs/use/runbooks, without the last /"
    )
    parser.add_argument(
        "--output", default=FOLDER, type=Path, help="the folder to write to (default: grafana/prometheus)"
    )
    parser.add_argument(
        "--speed", default=1.0, type=float, help="for trying out: 60 makes each minute of every rule a second"
    )
    options = parser.parse_args()
    try:
        write(options.output, Settings(job=options.job, runbooks=options.runbooks, pace=Pace(options.speed)))
    except OSError as error:
        parser.error(f"cannot write to {options.output}: {error.strerror}")


if __name__ == "__main__":
    main()
