"""The page at `/` for browsers: verdict, GPUs, findings with remedies, and links to the other pages. One self-contained
document without scripts, made from the data of `/v1/status`. All values are escaped: names of devices, evidence and
advice may contain text written by a user.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from gpuwarden.publish.evidence_text import evidence_text
from gpuwarden.publish.web.endpoints import ENDPOINTS

SHOWN_MOST = 100
"""Maximum number of findings and GPUs on the page; `/v1/status` has all."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:64em;padding:0 1em;color:#1b1f24;background:#fff;
overflow-wrap:anywhere}
h1{font-size:1.5em}h2{font-size:1.1em;margin-top:1.6em}table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.3em .7em .3em 0;border-bottom:1px solid #d8dde3;vertical-align:top}
.healthy{color:#116329}.warning{color:#8a5300}.failure{color:#b3121d;font-weight:600}.unknown{color:#57606a}
.note{color:#57606a}code{font:13px ui-monospace,monospace}th,a,.gpus td:nth-child(-n+3){overflow-wrap:normal}
@media (max-width:50em){.gpus tr{display:block;padding:.3em 0;border-bottom:1px solid #d8dde3}.gpus td{display:inline;border:0}
.gpus tr:first-child{display:none}.gpus td:first-child:before{content:"GPU\\a0"}}
@media (prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}th,td,.gpus tr{border-color:#30363d}
.healthy{color:#3fb950}.warning{color:#e3b341}.failure{color:#ff7b72}.unknown,.note{color:#9198a1}a{color:#79c0ff}}
"""
_GPU = ("GPU", "health", "PCI bus ID", "name", "temperature", "power", "utilization", "why")


def front_page(document: Mapping[str, Any]) -> str:
    """Return the HTML page for a document of `/v1/status`."""
    node, state = escape(str(document["node"])), escape(str(document["status"]))
    may = "may take work" if document["schedulable"] else "may not take work"
    simulated = "<p><strong>These GPUs are simulated.</strong></p>" if document["simulated"] else ""
    since = f"{document['present']} of {document['expected']['count'] or 'an unknown number of'} GPUs present"
    about = f"{since}; mode {document['mode']}; gpuwarden {document['version']}; read again every 10 s"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<meta http-equiv="refresh" content="10"><title>{node}: {state}</title><style>{_STYLE}</style></head><body>'
        f'<h1>{node}: <span class="{state}">{state}</span>, {may}</h1>{simulated}<p class="note">{escape(about)}</p>'
        f"{_findings(document['findings'])}{_gpus(document['gpus'])}{_pages()}</body></html>\n"
    )


def _findings(findings: Iterable[Mapping[str, Any]]) -> str:
    """Return sections for findings, causes before consequences. Checks in shadow are omitted: they have no effect."""
    active = [finding for finding in findings if not finding["shadow"]]
    active.sort(key=lambda finding: (finding["severity"] != "failure", finding["caused_by"] is not None))
    if not active:
        return "<h2>Findings</h2><p>None.</p>"
    more = f"<p>And {len(active) - SHOWN_MOST} more.</p>" if len(active) > SHOWN_MOST else ""
    return "<h2>Findings</h2>" + "".join(map(_finding, active[:SHOWN_MOST])) + more


def _finding(finding: Mapping[str, Any]) -> str:
    severity = escape(str(finding["severity"]))
    where = f"GPU {finding['gpu']} " if finding["gpu"] is not None else ""
    rows = (
        ("since", finding["first_seen"]),
        ("evidence", evidence_text(finding["evidence"])),
        ("caused by", finding["caused_by"]),
        ("to do", finding["to_do"]),
        ("ends when", finding["ends_when"]),
        ("the node comes back when", finding["comes_back_when"]),
    )
    lines = "".join(f"<tr><th>{escape(name)}</th><td>{_text(value)}</td></tr>" for name, value in rows if value)
    link = f'<a rel="noreferrer" href="{escape(str(finding["runbook"]))}">runbook</a>'
    title = f"{escape(str(finding['title']))}: {escape(where)}<code>{escape(str(finding['id']))}</code>"
    return f'<h3><span class="{severity}">{severity}</span> {title}</h3><table>{lines}<tr><th></th><td>{link}</td></tr></table>'


def _text(value: object) -> str:
    """Escape a text, and format text between backticks as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(str(value)))


def _gpus(gpus: list[Mapping[str, Any]]) -> str:
    head = "".join(f"<th>{name}</th>" for name in _GPU)
    rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in _cells(gpu))}</tr>" for gpu in gpus[:SHOWN_MOST])
    return f'<h2>GPUs</h2><table class="gpus"><tr>{head}</tr>{rows}</table>' if gpus else ""


def _cells(gpu: Mapping[str, Any]) -> Iterable[str]:
    readings, health = gpu["readings"], escape(str(gpu["health"]))
    power = readings.get("power_usage_mw")
    texts = (
        gpu["pci_bus_id"],
        gpu["name"],
        _with(readings.get("temperature"), " °C"),
        _with(None if power is None else round(power / 1000), " W"),
        _with(readings.get("utilization_gpu"), " %"),
        ", ".join(gpu["reasons"]),
    )
    return (
        "-" if gpu["index"] is None else escape(str(gpu["index"])),
        f'<span class="{health}">{health}</span>',
        *(escape(str(text)) for text in texts),
    )


def _with(value: object, unit: str) -> str:
    return "" if value is None else f"{value}{unit}"


def _pages() -> str:
    rows = "".join(
        f'<tr><td><a href="{escape(each.path)}"><code>{escape(each.path)}</code></a></td><td>{escape(each.about)}</td></tr>'
        for each in ENDPOINTS
        if each.path != "/"
    )
    return f"<h2>Pages</h2><table>{rows}</table>"
