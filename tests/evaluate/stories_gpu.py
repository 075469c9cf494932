"""Stories about GPUs: links, IMEX, heat, Xids."""

from __future__ import annotations

from dataclasses import replace

from evaluate.stories import Story
from support.dcgm_hosts import DcgmHost
from support.hosts import Host


def many_cleanups() -> Host:
    """280 lines every five minutes, on every GPU."""
    host = Host(4)
    host.run(60)
    for _ in range(40):
        lines = [replace(host.xid(n, 45), pid=4711, text="pid=4711, name=python3, Ch 00000008") for n in range(4)]
        host.step(*[line for line in lines for _ in range(70)])
        host.run(300, every=60)
    return host


def kept_xid_31() -> DcgmHost:
    """DCGM keeps the incident until the engine is restarted."""
    host = DcgmHost(8)
    host.run(120)
    host.incident(101, gpu=4, xid=31, latched=True)
    host.step(host.xid(4, 31))
    host.run(6 * 3600, every=60)
    return host


STORIES: tuple[Story, ...] = (
    Story(id="A06", source="NVIDIA/NVSentinel#1748", name="11,200 Xids 45 of jobs that ended", made=many_cleanups),
    Story(id="A09", source="NVIDIA/NVSentinel#911", name="an Xid 31 of an application, which DCGM keeps reporting", made=kept_xid_31),
)  # fmt: skip
