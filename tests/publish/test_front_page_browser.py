"""The page at `/` of a real daemon in a real browser: readable on a phone and a desk, and a text that others wrote runs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.chromium import Page, chromium
from support.daemons import FakeHost, RunningDaemon, slots

pytestmark = [pytest.mark.slow, pytest.mark.needs("chromium")]

HOSTILE = '<img/src="x"onerror="document.title=1"><script>document.title=1</script>'
"""Without spaces, which the name of a node may not have."""
BAD, NAMED = 3, 1
PHONE, DESK = 375, 1280
LIGHT, DARK = "rgb(255, 255, 255)", "rgb(13, 17, 23)"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[RunningDaemon]:
    """A daemon with a failed GPU, on a host whose name, a GPU's name and a line of the kernel log are markup."""
    host = FakeHost(tmp_path)
    host.config.write_text(host.config.read_text().replace('"node7"', f"'{HOSTILE}'"))
    host.fake.text(NAMED, "name", HOSTILE)
    with host.daemon() as running:
        running.wait_status("healthy")
        host.kernel_line(f"NVRM: Xid (PCI:{slots(8)[BAD].removesuffix('.0')}): 95, pid=7, name=python, {HOSTILE}")
        running.wait_status("failure", "xid.95")
        yield running


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with chromium(tmp_path) as opened:
        yield opened


def test_a_person_reads_verdict_gpus_and_what_to_do_and_no_text_of_others_is_markup(
    daemon: RunningDaemon, page: Page, tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{daemon.port}/"
    for width, dark in ((PHONE, False), (DESK, False), (DESK, True)):
        page.open(url, width=width, dark=dark)
        shown = " ".join(page.ask("document.body.innerText").split())
        assert f"{HOSTILE}: failure, may not take work" in shown
        assert f"GPU {BAD} xid.95@gpu/{slots(8)[BAD]}" in shown
        assert "Drain the node and reset the GPU when it is empty" in shown
        assert [slot for slot in slots(8) if slot not in shown] == []
        assert shown.count(HOSTILE) == 3  # of the node, the line and the GPU
        assert page.ask("document.title") == f"{HOSTILE}: failure"
        assert page.ask("document.querySelectorAll('script, img').length") == 0
        assert page.ask("document.documentElement.scrollWidth") == width, "it is to be scrolled sideways"
        assert page.ask("getComputedStyle(document.body).backgroundColor") == (DARK if dark else LIGHT)
        assert (page.requests(), page.complaints()) == ([url], [])
        picture = tmp_path / f"{width}.png"
        page.picture(picture)
        assert picture.stat().st_size > 20_000  # without a text it has some 5 kB
