"""What the kernel's lines of processes killed for lack of memory become: events of their jobs, and no finding."""

from __future__ import annotations

from dataclasses import replace

from evaluate.kernel_text import happened
from gpuwarden.health.model import Event, EventKind, Health
from gpuwarden_collectors.event_facts import OomKillEvent
from support.whole_hosts import WholeHost

HEAD = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0"
NODE_HEAD = "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom"


def of_limit(job: int, pid: int) -> str:
    group = f"/slurm/uid_1000/job_{job}"
    return f"{HEAD},oom_memcg={group},task_memcg={group}/step_0,task=python,pid={pid},uid=1000"


def kills(host: WholeHost) -> list[Event]:
    return [event for event in host.ledger if event.kind == EventKind.OOM_KILL]


def test_a_kill_is_an_event_of_its_job_and_nothing_follows_from_it() -> None:
    host = WholeHost()
    host.run(60)
    happened(host, of_limit(7, 4711))
    host.run(600)
    (event,) = kills(host)
    assert str(event.key) == "oom_kill.limit@job/slurm/7"
    assert event.data == {
        "of_limit": True,
        "job": "slurm/7",
        "limit_job": "slurm/7",
        "pid": 4711,
        "uid": 1000,
        "count": 1,
    }
    assert host.health is Health.HEALTHY
    assert host.findings == ()


def test_kills_of_one_step_are_one_event_for_each_job_and_cause() -> None:
    host = WholeHost()
    host.run(60)
    happened(
        host,
        *(of_limit(7, pid) for pid in range(100, 140)),
        of_limit(8, 200),
        f"{NODE_HEAD},task_memcg=/slurm/uid_1000/job_7/step_0,task=python,pid=300,uid=1000",
        f"{NODE_HEAD},task_memcg=/user.slice,task=python,pid=301,uid=1000",
        HEAD,
    )
    assert [(str(e.key), e.data["count"], e.data.get("pid")) for e in kills(host)] == [
        ("oom_kill.limit@job/slurm/7", 40, 139),
        ("oom_kill.limit@job/slurm/8", 1, 200),
        ("oom_kill.node@job/slurm/7", 1, 300),
        ("oom_kill.node@node", 1, 301),
    ]


def test_a_kill_from_before_the_first_start_is_no_event() -> None:
    host = WholeHost()
    host.run(60)
    kill = OomKillEvent(at=host.now, of_limit=True, job="slurm/7", pid=1, uid=1)
    host.step(replace(kill, history=True))
    assert kills(host) == []
    host.step(kill)
    assert len(kills(host)) == 1


def test_a_restart_and_a_replay_of_the_ledger_change_nothing() -> None:
    host = WholeHost()
    host.run(60)
    happened(host, of_limit(7, 4711))
    host.restart_daemon()
    host.run(60)
    assert len(kills(host)) == 1
