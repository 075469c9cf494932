"""The page at `/` in a browser: the verdict and what to do are on it, no script is, and nothing that others wrote becomes markup."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from gpuwarden.base.printable import clean
from gpuwarden.health.model import Finding, Health, Severity, gpu
from gpuwarden.publish import status
from gpuwarden.publish.web.endpoints import ENDPOINTS
from gpuwarden.publish.web.front_page import SHOWN_MOST, front_page
from support.snapshots import UPTIME, at, finding, missing, slot, snapshot
from support.web_server import get, serving

VOID = {"meta"}
HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>&amp;\x1b[31m"


class Page(HTMLParser):
    """Its elements, and the texts between them. Fails where an element is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def page(*findings: Finding) -> Page:
    shown = snapshot(2, health=Health.FAILURE, findings=findings)
    return Page(front_page(status.status(shown, at(UPTIME + 1))))


def test_a_gpu_that_nvml_does_not_list_has_no_index() -> None:
    made = Page(front_page(status.status(missing(snapshot(2), 1), at(UPTIME + 1))))
    assert "-" in made.texts
    assert "None" not in made.texts


def test_the_verdict_the_gpus_and_what_to_do_are_on_it() -> None:
    made = page(finding("gpu_missing", gpu(slot(1))))
    text = "".join(made.texts)
    assert "failure, may not take work" in text
    assert "Drain the node and power-cycle the machine" in text
    assert "0000:" in text
    links = [attributes.get("href") for tag, attributes in made.elements if tag == "a"]
    assert all(each.path in links for each in ENDPOINTS if each.path != "/")
    assert any(link and link.endswith("/GpuwardenGpuMissing.md") for link in links)


def test_a_failure_comes_before_a_warning_and_a_check_in_shadow_is_not_shown() -> None:
    made = page(
        finding("memory_degrading", gpu(slot(0)), Severity.WARNING),
        replace(finding("nvlink_down", gpu(slot(0))), shadow=True),
        finding("gpu_missing", gpu(slot(1))),
    )
    ids = [text for text in made.texts if "@gpu/" in text]
    assert [text.partition("@")[0] for text in ids] == ["gpu_missing", "memory_degrading"]


def test_nothing_that_others_wrote_becomes_markup() -> None:
    hostile = replace(finding("gpu_missing", gpu(slot(1))), evidence={"why": HOSTILE, HOSTILE: HOSTILE})
    made = page(hostile)
    assert {tag for tag, _ in made.elements}.isdisjoint({"script", "img", "iframe", "object", "form"})
    assert not [name for _, attributes in made.elements for name in attributes if name.startswith("on")]
    assert clean(HOSTILE) in "".join(made.texts)


def test_the_evidence_is_shown_with_names_and_units_as_status_does() -> None:
    evidence = {"power_limit": 230_000, "power_limit_of_siblings": 700_000}
    made = page(replace(finding("gpu_misconfigured", gpu(slot(1)), Severity.WARNING), evidence=evidence))
    assert "power limit: 230 W; power limit of siblings: 700 W" in made.texts


def test_a_thousand_findings_make_no_endless_page() -> None:
    made = page(*(finding("xid", gpu(slot(1)), detail=str(number)) for number in range(1_000)))
    assert sum(tag == "h3" for tag, _ in made.elements) == SHOWN_MOST
    assert "And 900 more." in "".join(made.texts)


@pytest.mark.parametrize("accept", ["text/html,application/xhtml+xml;q=0.9", "*/*"])
async def test_a_browser_gets_the_page_and_curl_the_list_of_pages(accept: str) -> None:
    async with serving(snapshot(2)) as served:
        answer = await get(served, "/", Accept=accept)
        if accept == "*/*":
            assert answer.headers["content-type"].startswith("text/plain")
        else:
            assert answer.headers["content-type"] == "text/html; charset=utf-8"
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert "healthy" in "".join(Page(answer.body.decode()).texts)
