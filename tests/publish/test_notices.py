"""Notices for jobs: `act` only when it is meant, and at once; and nobody who waits for it costs more than is allowed."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gpuwarden.cli.enforcement_text import enforcement_lines
from gpuwarden.collect.termination_sources import chosen
from gpuwarden.config.model import Config, ConfigError, load
from gpuwarden.config.sources import Sources
from gpuwarden.config.termination import TerminationOptions
from gpuwarden.policy.model import Notice
from gpuwarden.publish.metrics.exposition import Holder, Renderer
from gpuwarden.publish.notices import Notices, document
from gpuwarden.publish.snapshot import Enforced, NoticeSource, Snapshot
from gpuwarden.publish.status import status
from gpuwarden.publish.web.pages import Web
from gpuwarden_collectors.base import host_clock
from gpuwarden_collectors.cloud.registry import CLOUDS
from support.scrape import scrape
from support.snapshots import UPTIME, at, snapshot

PATIENCE = 60.0
NOTICE = Notice(
    source="aws", kind="interruption", id="spot:stop", at=at(UPTIME), boot_id="b", deadline=at(UPTIME + 120)
)


def announced(mode: str = "enforce", *, simulated: bool = False, near: bool = True, **more: Any) -> Snapshot:
    base = snapshot()
    notice = replace(NOTICE, **more)
    enforced = Enforced(notices=(notice,), notice=notice if near else None)
    return replace(base, enforced=enforced, service=replace(base.service, mode=mode, simulated=simulated))


def test_act_is_set_only_for_an_imminent_end_in_mode_enforce_on_real_gpus() -> None:
    acts = [
        document(node_snapshot)["act"]
        for node_snapshot in (
            announced(),
            announced("observe"),
            announced(simulated=True),
            announced(near=False),
            snapshot(),
        )
    ]
    assert acts == [True, False, False, False, False]
    published = document(announced())
    assert (published["id"], published["kind"], published["deadline_boottime"]) == (
        "aws/spot:stop@1000",
        "interruption",
        UPTIME + 120,
    )
    assert set(document(snapshot())) == set(published)


def test_a_person_is_shown_what_changes_nothing_and_who_does_not_answer() -> None:
    source = NoticeSource(name="aws", up=False, error="no answer within 2 s")
    hint = replace(NOTICE, id="rebalance:x", hard=False, kind="rebalance", reason="more likely")
    off = replace(NOTICE, called_off=True)
    shown = replace(announced(near=False), enforced=Enforced(notices=(hint, off)), notice_sources=(source,))
    text = "\n".join(enforcement_lines(status(shown, at(UPTIME))))
    for expected in ("hint: rebalance", "cancelled by an operator: interruption", "no answer within 2 s"):
        assert expected in text
    assert "this machine ends" not in text
    assert "this machine ends at" in "\n".join(enforcement_lines(status(announced(), at(UPTIME))))


def test_an_end_that_did_not_come_is_shown_with_what_calls_it_off() -> None:
    later = at(UPTIME + 3600)
    text = "\n".join(enforcement_lines(status(replace(announced(), observed=later), later)))
    assert "this machine was to end at" in text
    assert "cancel the notice: `gpuwarden notify-termination --cancel`" in text


def test_metrics_are_there_before_the_first_notice() -> None:
    source = NoticeSource(name="aws", up=False, kinds=("interruption", "rebalance"))
    quiet = scrape(replace(snapshot(), notice_sources=(source,)))
    assert quiet.value("gpuwarden_termination_notice", source="aws", kind="rebalance") == 0
    assert quiet.value("gpuwarden_termination_source_up", source="aws") == 0
    loud = scrape(replace(announced(), notice_sources=(source,)))
    assert loud.value("gpuwarden_termination_notice", source="aws", kind="interruption") == 1
    assert loud.value("gpuwarden_termination_deadline_timestamp_seconds") == at(UPTIME + 120).wall


async def test_waiters_are_notified_at_once_and_one_too_many_is_refused() -> None:
    notices = Notices(waiters=2)
    notices.show(b"quiet", imminent=False)
    waiting = [asyncio.create_task(notices.wait(PATIENCE)) for _ in range(2)]
    await asyncio.sleep(0)
    assert not await notices.wait(PATIENCE)
    assert not notices.show(b"quiet", imminent=False)
    notices.show(b"a notice far away", imminent=False)
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    notices.show(b"now", imminent=True)
    assert await asyncio.gather(*waiting) == [True, True]
    assert await notices.wait(PATIENCE)  # there is one: nothing to wait for
    waiter = asyncio.create_task(notices.wait(PATIENCE, notices.tag))
    await asyncio.sleep(0)
    notices.show(b"it is over", imminent=False)
    assert await waiter
    last = asyncio.create_task(notices.wait(PATIENCE))
    await asyncio.sleep(0)
    notices.close()
    assert await last


async def test_over_http_the_answer_waits_and_nonsense_does_not() -> None:
    async def no_events(*_: Any) -> list[Any]:
        return []

    notices = Notices(waiters=1)
    notices.show(b'{"act":false}', imminent=False)
    web = Web(Holder(Renderer(), snapshot()), no_events, notices=notices)
    await web.start("127.0.0.1", 0)
    root = f"http://127.0.0.1:{web.addresses[0][1]}/v1/notice"
    async with aiohttp.ClientSession() as client, asyncio.timeout(PATIENCE):
        for query in ("?wait=soon", "?wait=-1", "?wait=61", "?wait=nan", "?wait=inf"):
            async with client.get(root + query) as answer:
                assert answer.status == 400
        async with client.get(root) as answer:
            assert (answer.status, await answer.json()) == (200, {"act": False})
            tag = answer.headers["ETag"]
        waiting = asyncio.create_task(client.get(f"{root}?wait=60&tag={tag}"))
        while not notices.waiting["web"]:
            await asyncio.sleep(0.01)
        async with client.get(f"{root}?wait=60") as answer:
            assert answer.status == 503
        notices.show(b'{"act":true}', imminent=True)
        assert json.loads(await (await waiting).read()) == {"act": True}
    await web.stop()


# --- configuration


def loaded(folder: Path, text: str) -> Config:
    file = folder / "gpuwarden.toml"
    file.write_text(text)
    return load(Sources(file=file, environment={}))


def test_every_fault_is_reported_at_once_with_its_key(tmp_path: Path) -> None:
    faults = {
        "termination.horizon": 'horizon = "1s"', "termination.planned_end": 'planned_end = "2026-12-01T11:30:00"',
        "termination.aws.endpoint": '[termination.aws]\nendpoint = "https://169.254.169.254/latest"',
        "termination.gcp.endpoint": '[termination.gcp]\nendpoint = "http://user@host"',
        "termination.azure.interval": '[termination.azure]\ninterval = "10s"',
        "termination.tencent.endpoint": '[termination.tencent]\nendpoint = "http://host:99999"',
        "termination.alibaba.key": "[termination.alibaba]\nkey = 1",
    }  # fmt: skip
    with pytest.raises(ConfigError) as raised:
        loaded(tmp_path, "[termination]\n" + "\n".join(faults.values()))
    assert {fault.key for fault in raised.value.faults} == set(faults)
    for sources in ('["aws", "aws"]', '["azur"]', '"auto"'):
        with pytest.raises(ConfigError, match="sources"):
            loaded(tmp_path, f"[termination]\nsources = {sources}")


def names(options: TerminationOptions, sysfs: Path) -> list[str]:
    return [source.name for source in chosen(options, sysfs, host_clock)]


def test_the_sources_follow_from_the_firmware_unless_they_are_configured(tmp_path: Path) -> None:
    folder = tmp_path / "class/dmi/id"
    folder.mkdir(parents=True)
    assert names(TerminationOptions(), tmp_path) == []
    (folder / "sys_vendor").write_text("Amazon EC2\n")
    assert names(TerminationOptions(), tmp_path) == ["aws"]
    assert names(TerminationOptions(sources=("auto", "shutdown", "aws")), tmp_path) == ["shutdown", "aws"]
    assert names(TerminationOptions(sources=("gcp",)), tmp_path) == ["gcp"]
    assert names(TerminationOptions(sources=()), tmp_path) == []
    (folder / "chassis_asset_tag").write_text("OracleCloud.com\n")
    assert names(TerminationOptions(), tmp_path) == ["shutdown"]
    v6 = loaded(tmp_path, '[termination.aws]\nendpoint = "http://[fd00:ec2::254]"\n').termination
    assert v6.of(CLOUDS["aws"]).endpoint.endswith("::254]")
    planned = loaded(tmp_path, '[termination]\nsources = []\nplanned_end = "2026-12-01T11:30:00Z"\n').termination
    assert names(planned, tmp_path) == ["planned"]
