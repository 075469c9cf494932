"""A feature that raises inside of the judge: the node is judged as ever, and the error is reported."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwarden.engine.engine import MEMORY_EVENTS, Engine
from gpuwarden.engine.faults import Faults
from gpuwarden.features import parts
from gpuwarden.health.checkpoint import checkpoint
from gpuwarden.health.model import EventKind, Health
from gpuwarden.health.view import Rules
from gpuwarden_collectors.facts import Stamp
from support.whole_hosts import WholeHost


def broken(*_: object) -> Any:
    raise LookupError("a bug")


def why(host: WholeHost) -> str:
    (finding,) = host.found("collector_failed")
    return str(finding.evidence["why"])


@pytest.mark.parametrize(
    ("module", "feature", "function"),
    [
        ("memory", "why", "fold"),
        ("set_aside", "active_test", "is_own"),
        ("set_aside", "active_test", "without_own"),
    ],
)
def test_a_failure_is_seen_although_a_feature_raises(
    monkeypatch: pytest.MonkeyPatch, module: str, feature: str, function: str
) -> None:
    host = WholeHost(2)
    host.run(30)
    monkeypatch.setattr(parts(module)[feature], function, broken)
    host.step(host.xid(0, 95))
    host.run(60)
    assert f"{feature}: LookupError: a bug" in why(host)
    assert host.health is Health.FAILURE
    assert "xid" in host.codes
    monkeypatch.undo()
    host.restart_daemon()
    host.run(60)
    assert not host.found("collector_failed")


def test_a_checkpoint_without_what_a_feature_remembers_is_not_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = Faults()
    engine = Engine("boot", Rules(), faults=faults)
    now = Stamp(boottime=1.0, wall=1.0)
    with monkeypatch.context() as patch:
        patch.setattr(parts("memory")["active_test"], "events", broken)
        assert EventKind.HEALTH in [event.kind for event in engine.checkpoint(now)]
        assert faults.stands({MEMORY_EVENTS})
        assert "active_test: memory.events failed: LookupError: a bug" in faults.error(now)
    assert engine.checkpoint(now) == checkpoint(engine.state, now)
    assert not faults.stands({MEMORY_EVENTS})
