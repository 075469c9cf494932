"""The index page and the text for the vendor: nothing that others wrote becomes markup or moves a cursor, and nothing is loaded."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

from gpuwarden.features.bundle import index_page, rma
from gpuwarden.features.bundle.boards import Board, documents
from gpuwarden.features.bundle.contents import Contents, Overview
from gpuwarden.features.bundle.entry import Completeness, Entry
from gpuwarden.features.bundle.series import METRICS, SPAN, Series, thinned
from support.bundling import SERIAL, SLOT

HOSTILE = "\"'><script>alert(1)</script><img src=https://x.example onerror=alert(2)>&amp;</pre>"
LOADS = {"script", "img", "link", "iframe", "object", "embed", "a", "form", "audio", "video", "base", "image", "use"}
VOID = {"meta"}


class Page(HTMLParser):
    """Its elements, with every element closed, and its texts."""

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


def contents(text: str, *, plotted: bool = True) -> Contents:
    failure = {
        "id": f"xid.79@gpu/{SLOT}",
        "title": text,
        "since": text,
        "to_do": text,
        "evidence": {text: text},
        "over": False,
        "slot": SLOT,
    }
    board = Board(
        slot=SLOT,
        index="3",
        name=text,
        serial=text,
        part=text,
        uuid=text,
        vbios=text,
        inforom=text,
        gsp=text,
        module=text,
    )
    tried = {
        "at": text,
        "kind": text,
        "id": text,
        "check": None,
        "pci_bus_id": None,
        "boot_id": text,
        "data": {text: text},
    }
    overview = Overview(
        made_at="2026-11-03T02:15:12Z",
        host={"node": text, "sys_vendor": f"Dell {text}", "product_serial": text},
        failures=[failure],
        unknown="",
        boards=documents([board]),
        lines=[text],
        tried=[tried],
        anonymised=False,
    )
    lines = {row.title: {SLOT: [(1.0, 5.0), (2.0, 6.0)], text: [(1.0, 7.0)]} for row in METRICS} if plotted else {}
    entries = (
        Entry(name=text, about=text, how=text, content=b"x"),
        Entry(name=text, about=text, how=text, state=Completeness.MISSING, why=text),
    )
    return Contents(overview=overview, series=Series(lines=lines), entries=entries)


def test_nothing_that_others_wrote_becomes_markup_and_nothing_is_loaded() -> None:
    page = Page(index_page.page(contents(HOSTILE)).decode())
    assert not {tag for tag, _ in page.elements} & LOADS
    assert not [
        name
        for _, attributes in page.elements
        for name in attributes
        if name.startswith("on") or name in ("src", "href")
    ]
    policies = [
        attributes.get("content") for tag, attributes in page.elements if tag == "meta" and "http-equiv" in attributes
    ]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]
    assert "".join(page.texts).count(HOSTILE) > 10, "it is all shown, as text"
    assert sum(tag == "svg" for tag, _ in page.elements) == len(METRICS)


def test_a_name_that_is_no_text_costs_no_page() -> None:
    odd = contents("\udcff of another coding")
    assert b"? of another coding" in index_page.page(odd)
    assert b"REQUEST FOR A REPLACEMENT" in rma.text(odd)


def test_it_tells_what_failed_which_board_and_what_is_missing() -> None:
    page = Page(index_page.page(contents(SERIAL, plotted=False)).decode())
    headings = [
        text for text in page.texts if text in ("What failed", "Its boards", "Kernel log", "Not in this archive")
    ]
    assert headings == ["What failed", "Its boards", "Kernel log", "Not in this archive"]
    assert "There is no black box to draw them from: see below." in page.texts


def test_the_evidence_is_shown_with_names_and_units_as_status_does() -> None:
    page_contents = contents(SERIAL)
    page_contents.overview.failures[0]["evidence"] = {"power_limit": 230_000, "persistence_mode": 0}
    page = Page(index_page.page(page_contents).decode())
    assert "Seen: power limit: 230 W; persistence mode: off" in page.texts


def test_the_text_for_the_vendor_names_board_vendor_and_what_is_missing() -> None:
    text = rma.text(contents(SERIAL)).decode()
    assert f"Serial number:          {SERIAL}" in text
    assert "nvidia-bug-report.log.gz is MISSING" in text
    assert "Dell also asks for: the service tag" in text
    assert "\x1b" not in rma.text(contents("\x1b[31m\n")).decode()


def test_what_could_not_be_read_is_told_as_unknown_and_not_as_nothing() -> None:
    whole = contents(SERIAL)
    missing = [
        Entry(name=name, about="", how="", state=Completeness.MISSING, why=f"the disk of {name} is dead")
        for name in ("events.jsonl", "kernel.txt")
    ]
    unread = replace(whole, overview=replace(whole.overview, tried=[], lines=[]), entries=(*whole.entries, *missing))
    text, page = rma.text(unread).decode(), Page(index_page.page(unread).decode())
    for name in ("events.jsonl", "kernel.txt"):
        assert f"  not known: the disk of {name} is dead" in text
        assert f"Not known: the disk of {name} is dead" in page.texts
    assert "nothing that gpuwarden saw" not in text


def test_an_archive_about_simulated_gpus_asks_for_no_replacement() -> None:
    real = contents(SERIAL)
    simulated = replace(real, overview=replace(real.overview, simulated=True))
    assert rma.text(simulated).decode().startswith("SIMULATED: these GPUs do not exist")
    assert "REQUEST" not in rma.text(simulated).decode()
    assert "These GPUs are simulated: they do not exist." in Page(index_page.page(simulated).decode()).texts


def test_of_many_points_the_largest_are_drawn_and_only_of_the_last_half_hour() -> None:
    points = [(float(second), 100.0 if second == 5_000 else 1.0) for second in range(6_000)]
    drawn = thinned(points[::-1])
    assert len(drawn) <= 301
    assert drawn == sorted(drawn)
    assert min(at for at, _ in drawn) >= 5_999 - SPAN
    assert (5_000.0, 100.0) in drawn


def test_the_text_for_the_vendor_has_the_lines_of_the_failed_board_however_much_came_after_them() -> None:
    place, other = SLOT.rpartition(".")[0], "0000:99:00"
    lost = f"[ 100.0] NVRM: Xid (PCI:{place}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    after = [
        *(f"[ 101.{n:02}] NVRM: Xid (PCI:{place}): 45, pid={n}, Ch {n:08x}" for n in range(30)),
        *(f"[ 102.{n:02}] NVRM: GPU {place}.0: RmInitAdapter failed! (0x23:0x65:1204)" for n in range(30)),
        *(f"[ 103.{n:02}] NVRM: Xid (PCI:{other}): 31, pid={n}, MMU Fault" for n in range(30)),
    ]
    page_contents = contents(SERIAL)
    page_contents.overview.lines[:] = [lost, *after]
    text = rma.text(page_contents).decode()
    assert lost in text
    assert "RmInitAdapter failed" in text
    assert other not in text, "another board's lines are no reason to replace this one"
    page_contents.overview.lines[:] = after[-30:]
    assert other in rma.text(page_contents).decode(), "of none of its own, those of others may tell something"
