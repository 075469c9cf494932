"""A text to paste into a vendor's form, with the facts that large vendors request.

Sources. NVIDIA: "RMA Process" (docs.nvidia.com/deploy/rma-process) requires nvidia-bug-report.sh run right after the failure, again after a
power cycle where it hung, proof that causes in the system were ruled out, and the field diagnostic, "a required piece of the RMA
process" (docs.nvidia.com/deploy). HPE: "Symptom information checklist" (techlibrary.hpe.com): when, what preceded it, what was
changed, logs of iLO. Dell: the collection of SupportAssist, by which its support decides about a part (SupportAssist User's Guide, "SupportAssist capabilities").
Lenovo: service data of the XClarity Controller (pubs.lenovo.com/lxca, Call Home). Supermicro: an explanation of the deficiency, and its
RMA process (supermicro.com/en/support/warranty). None of them was asked; the order is that in which forms have their fields.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from gpuwarden.cli.text import clean, event_data
from gpuwarden.features.bundle.contents import Contents, Document, Overview
from gpuwarden.features.bundle.index_page import BOARD

VENDORS = (
    (
        "dell",
        "Dell",
        "the service tag is the system serial number; attach a SupportAssist collection (TSR) of the iDRAC",
    ),
    ("hpe", "HPE", "serial and product number of the server; attach the Active Health System log of iLO"),
    ("hewlett", "HPE", "serial and product number of the server; attach the Active Health System log of iLO"),
    ("lenovo", "Lenovo", "machine type and serial number; attach the service data of the XClarity Controller"),
    ("supermicro", "Supermicro", "system and board serial number, and the RMA form; attach the event log of the BMC"),
    ("nvidia", "NVIDIA", "serial number of the system and of the board or tray; the Enterprise Support portal"),
)
"""A word in the firmware's vendor name, the vendor, and what it requests in addition to this archive."""
_SYSTEM = (
    ("Vendor", "sys_vendor"),
    ("Product", "product_name"),
    ("SKU", "product_sku"),
    ("System serial number", "product_serial"),
    ("Chassis serial number", "chassis_serial"),
    ("Board serial number", "board_serial"),
    ("BIOS", "bios_version"),
    ("Kernel", "kernel"),
    ("Distribution", "distribution"),
    ("Driver", "driver"),
)
_LINES_MOST, _TRIED_MOST, _LINE_MOST = 20, 30, 300
_ALIKE_MOST = 4
"""Most lines that are shown for one Xid, and for lines without one."""
_XID = re.compile(r"\bXid \([^)]*\): (\d+)")
SIMULATED = "SIMULATED: these GPUs do not exist, and nobody replaces them"
_UNKNOWN = "(not known: read it from the label, or from the BMC)"


def text(contents: Contents) -> bytes:
    return ("\n".join(_lines(contents)) + "\n").encode(errors="replace")


def _lines(contents: Contents) -> Iterator[str]:
    overview = contents.overview
    yield SIMULATED if overview.simulated else "REQUEST FOR A REPLACEMENT"
    yield ""
    yield "1. System"
    for label, key in _SYSTEM:
        if overview.host.get(key) or "serial" in key:
            yield f"  {label + ':':<24}{clean(overview.host.get(key) or _UNKNOWN)}"
    yield ""
    yield "2. Failed part"
    yield from _parts(overview)
    yield ""
    yield "3. Failure"
    none = f"not known: {overview.unknown}" if overview.unknown else "none is in force"
    for failure in overview.failures or [{"title": none, "id": "-", "since": "-"}]:
        yield f"  {clean(failure['title'])} ({clean(failure['id'])}), first seen {clean(failure['since'])}"
    yield ""
    yield "4. What the kernel logged (all lines: kernel.txt, meanings: xids.txt)"
    yield from (f"  {clean(line.strip())[:_LINE_MOST]}" for line in _telling(overview))
    if not overview.lines:
        yield _nothing("no line about GPUs or their bus", contents.unknown("kernel.txt"))
    yield ""
    yield "5. What was tried"
    yield from (_tried(event) for event in overview.tried[-_TRIED_MOST:])
    if not overview.tried:
        yield _nothing("nothing that gpuwarden saw", contents.unknown("events.jsonl"))
    yield ""
    yield "6. Please answer before you send this"
    yield "  Power cycled (power removed) since the failure, and did it come back? ..."
    yield "  The part in another slot, or another part in its slot, with what result? ..."
    yield "  NVIDIA's field diagnostic (fieldiag, or the vendor's own run of it): log and result ..."
    yield "  Changed shortly before: hardware, firmware, driver, cabling, cooling? ..."
    yield ""
    yield "7. Attached"
    report = next((entry for entry in contents.entries if entry.name == "nvidia-bug-report.log.gz"), None)
    if report is None or not report.is_there:
        why = "" if report is None else f" ({clean(report.why)})"
        yield f"  nvidia-bug-report.log.gz is MISSING{why}: run nvidia-bug-report.sh after a power cycle and attach it"
    yield "  this archive: manifest.json lists its files with their hashes"
    vendor = overview.host.get("sys_vendor", "").lower()
    yield from (f"  {name} also asks for: {request}" for word, name, request in VENDORS if word in vendor)


def _telling(overview: Overview) -> list[str]:
    """Return the newest lines about the failed boards, a few for each Xid, since a lost board repeats itself; if there
    are none, the newest of all lines.
    """
    places = [failure["slot"].rpartition(".")[0] for failure in overview.failures if failure["slot"]]
    own = [line for line in overview.lines if any(place in line.lower() for place in places)]
    kept: list[str] = []
    count = Counter[str]()
    for line in reversed(own):
        xid = _XID.search(line)
        alike = "" if xid is None else xid[1]
        count[alike] += 1
        if count[alike] <= _ALIKE_MOST and len(kept) < _LINES_MOST:
            kept.append(line)
    return kept[::-1] or overview.lines[-_LINES_MOST:]


def _nothing(text: str, unknown: str) -> str:
    return f"  not known: {clean(unknown)}" if unknown else f"  {text}"


def _parts(overview: Overview) -> Iterator[str]:
    failed = {failure["slot"] for failure in overview.failures if failure["slot"]}
    boards = [board for board in overview.boards if board["slot"] in failed]
    if not boards:
        yield "  not a GPU that is known here: see 3"
    for board in boards:
        for key, label in BOARD:
            if board[key] or key in ("serial", "part"):
                yield f"  {label + ':':<24}{clean(board[key] or _UNKNOWN)}"
        yield ""


def _tried(event: Document) -> str:
    about = f" {clean(event['id'])}" if event["id"] else ""
    return f"  {clean(event['at'])[:19].replace('T', ' ')} UTC  {clean(event['kind'])}{about}  {event_data(event['data'])}"[
        :_LINE_MOST
    ].rstrip()
