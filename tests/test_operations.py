"""What docs/use/operations.md has an operator type and query: it exists, and does what the page documents."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuwarden.config.model import Config
from gpuwarden.engine.reload import TAKEN_OVER
from gpuwarden.publish.metrics.table import METRICS
from gpuwarden_collectors.options import keys
from prometheus_rules.model import Recording
from prometheus_rules.recording import recordings
from support.prometheus import promtool
from test_rules import SETTINGS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/use/operations.md").read_text(encoding="utf-8")
QUERIES = re.findall(r"```promql\n(.*?)\n```", PAGE, re.DOTALL)
NODES = {"a": "1.0", "b": "1.0", "c": "2.0"}
"""Three instances, and their versions: b failed, and somebody drained c."""
SERIES = {
    'up{job="gpuwarden",instance="%s"}': "abc", 'gpuwarden_enforcing{job="gpuwarden",instance="%s"}': "a",
    'gpuwarden_node_health{job="gpuwarden",instance="%s",state="healthy"}': "ac",
    'gpuwarden_node_health{job="gpuwarden",instance="%s",state="failure"}': "b",
    'gpuwarden_node_health{job="gpuwarden",instance="%s",state="unknown"}': "",
    'gpuwarden_finding_info{job="gpuwarden",instance="%s",check="gpu_missing",severity="failure",gpu="1"}': "b",
    'gpuwarden_excluded{job="gpuwarden",instance="%s",actuator="slurm",owner="other",cause="foreign"}': "c",
    'gpuwarden:node:exclusion{job="gpuwarden",instance="%s"}': "c",
}  # fmt: skip


def names(query: str) -> set[str]:
    return set(re.findall(r"\b(?:gpuwarden[a-z_:]+|up)\b(?!\")", re.sub(r'"[^"]*"', '""', query)))


@pytest.mark.parametrize("query", QUERIES)
def test_a_question_asks_for_what_there_is(query: str) -> None:
    rules = (rule for group in recordings(SETTINGS.pace) for rule in group.rules)
    recorded = {rule.record for rule in rules if isinstance(rule, Recording)}
    all_names = {metric.name for metric in METRICS} | recorded | {"up"}
    assert names(query)
    assert names(query) <= all_names


def test_prometheus_understands_every_query_and_they_return_what_the_page_shows(tmp_path: Path) -> None:
    rules = "".join(f"  - record: asked:{n}\n    expr: |-\n      {query}\n" for n, query in enumerate(QUERIES))
    (tmp_path / "asked.yml").write_text(f"groups:\n- name: asked\n  rules:\n{rules}")
    run = promtool("check", "rules", tmp_path / "asked.yml")
    assert run.returncode == 0, run.stdout + run.stderr
    wanted = {
        "count by (version)": ['{version="1.0"} 2', '{version="2.0"} 1'],
        "count by (version, state)": [
            '{version="1.0", state="healthy"} 1', '{version="1.0", state="failure"} 1', '{version="2.0", state="healthy"} 1',
        ],
        'cause="foreign"': ['{job="gpuwarden", instance="c"} 1'],
        "unless on (job, instance) gpuwarden:node:exclusion": [
            'gpuwarden_node_health{job="gpuwarden", instance="b", state="failure"} 1'
        ],
        "sort_desc": [f'{{check="gpu_missing", severity="failure"}} {109 / 2016}'],  # of nine hours
        "gpuwarden_enforcing": ['{job="gpuwarden"} 1'],
        "max_over_time(sum": ['{job="gpuwarden"} 1'],
        'state="unknown"': ['{job="gpuwarden"} 0'],
    }  # fmt: skip
    asked = [(next(query for query in QUERIES if begins in query), samples) for begins, samples in wanted.items()]
    (tmp_path / "test.yml").write_text(_unit_test(asked))
    run = promtool("test", "rules", tmp_path / "test.yml")
    assert run.returncode == 0, run.stdout + run.stderr


def _unit_test(asked: list[tuple[str, list[str]]]) -> str:
    series = [
        (name % node, int(node in ones))
        for name, ones in SERIES.items()
        for node in NODES
        if node in ones or not name.startswith("gpuwarden_finding_info")  # which is there only while a finding holds
    ]
    series += [(f'gpuwarden_build_info{{job="gpuwarden",instance="{n}",version="{v}"}}', 1) for n, v in NODES.items()]
    input_series = "".join(f"  - series: '{name}'\n    values: '{value}x600'\n" for name, value in series)
    tests = ""
    for query, samples in asked:
        tests += f"  - expr: '{query}'\n    eval_time: 9h\n    exp_samples:\n"
        tests += "".join(
            f"    - labels: '{sample.rpartition(' ')[0]}'\n      value: {sample.rpartition(' ')[2]}\n"
            for sample in samples
        )
    return f"rule_files: []\ntests:\n- interval: 1m\n  input_series:\n{input_series}  promql_expr_test:\n{tests}"


def test_the_row_of_what_a_reload_changes_at_once_is_what_a_reload_does() -> None:
    row = next(line for line in PAGE.splitlines() if line.startswith("| at once |"))
    listed = set(re.findall(r"`([^`]+)`", row))
    assert {name.strip("[]") for name in listed if name.startswith("[")} == {
        key.partition(".")[0] for key in TAKEN_OVER
    } - {"inventory", "jobs"}
    of_breaker = re.findall(r"`([^`]+)`", row.partition("of `[breaker]`")[2])
    assert {f"breaker.{name}" for name in of_breaker} == {key for key in TAKEN_OVER if key.startswith("breaker.")}
    assert {"percent", "count", "window", "recount_after", "inventory.expected_gpus", "jobs.stalled_after"} <= listed
    policy = {f"policy.{key.name}" for key in keys(type(Config().policy))}
    assert policy == {key for key in TAKEN_OVER if key.startswith("policy.")}, "the page has: all of [policy]"
