"""The collectors of a host together: when events of the kernel log are handed over."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuwarden.collect.collectors import Readers, Sources
from gpuwarden.config.collectors import Collectors, PciOptions
from gpuwarden_collectors.base import PassOutcome, host_clock
from gpuwarden_collectors.event_facts import HostEvent
from gpuwarden_collectors.nvml.options import NvmlOptions
from support.fake_nvml_library import FakeNvml
from support.kernel_log import line
from support.waiting import until


async def test_after_close_nothing_is_handed_over_though_lines_of_xid_79_wait_for_their_witnesses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuwarden.collect.collectors.ANSWERED_WITHIN", 0.5)
    log = tmp_path / "kmsg"
    log.touch()
    taken: list[Sequence[HostEvent]] = []
    collectors = Collectors(nvml=NvmlOptions(enabled=False), pci=PciOptions(enabled=False))
    sources = Sources(collectors=collectors, sysfs=tmp_path, kmsg=log, gpus_alone=True)
    readers = Readers(sources, "b1", taken.append, host_clock)
    readers.follow_kernel_log(None, first=False)
    try:
        for number in (1, 2):
            with log.open("a") as file:
                file.write(line(number, xid=79))
            await until(lambda number=number: sum(map(len, taken)) == number)  # type: ignore[misc]
    finally:
        await readers.close()
    handed_over = len(taken)
    await asyncio.sleep(0.7)
    assert len(taken) == handed_over


async def test_while_the_reader_is_kept_off_the_gpus_passes_go_on_and_say_that_nothing_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence would end the daemon by its watchdog, and a failed pass would accuse the driver."""
    fake = FakeNvml.build(tmp_path).write(gpus=2)
    nvml = NvmlOptions(library=str(fake.library), interval=0.05)
    sources = Sources(
        collectors=Collectors(nvml=nvml, pci=PciOptions(enabled=False)), sysfs=tmp_path, kmsg=None, gpus_alone=True
    )
    made: list[PassOutcome] = []
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    readers = Readers(sources, "b1", lambda _: None, host_clock)
    readers.run(lambda seen: made.append(seen.outcome))
    try:
        await until(lambda: PassOutcome.OBSERVED in made)
        async with readers.off_the_gpus("a GPU is reset") as gone:
            assert gone
            made.clear()
            await until(lambda: len(made) > 3)
            assert set(made) == {PassOutcome.PAUSED}
        made.clear()
        await until(lambda: PassOutcome.OBSERVED in made)
    finally:
        await readers.close()
