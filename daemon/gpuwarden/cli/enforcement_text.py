"""Formats enforcement in the status document as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuwarden.cli.text import clean, when

Document = dict[str, Any]


def enforcement_lines(status: Document) -> Iterator[str]:
    """Yield lines about notices, exclusions and orders; without a scheduler, that a failure excludes nowhere."""
    enforcement = status.get("actions") or {}
    yield from _notice_lines(status)
    if "operator" in status.get("excluded_by", ()):
        order = f" ({clean(enforcement['order'])})" if enforcement.get("order") else ""
        yield f"excluded by an operator{order}; `gpuwarden restore` ends that"
    yield from _override_lines(enforcement.get("overridden"))
    for scheduler in enforcement.get("schedulers", ()):
        yield _scheduler(scheduler)
    if status["status"] == "failure" and enforcement.get("schedulers") == [] and not status.get("simulated"):
        yield _NO_SCHEDULER
    for action in enforcement.get("wanted", ()):
        # An operator's restoration has no reason.
        reason = f" ({clean(action['reason'])})" if action["reason"] else ""
        yield f"{clean(action['actuator'])}: {clean(action['intent'])} is pending{reason}: {clean(action['text'])}"
    for action in enforcement.get("would", ()):
        yield f"{clean(action['actuator'])}: would {clean(action['intent'])} ({clean(action['reason'])}), but {clean(action['text'])}"
    yield from _blocked(status, enforcement)
    if enforcement.get("breaker"):
        yield f"breaker open: {clean(enforcement['breaker'])}"
    for receiver in enforcement.get("notifications", ()):
        if receiver["queued"] or receiver["error"]:
            why = f": {clean(receiver['error'])}" if receiver["error"] else ""
            yield f"{clean(receiver['target'])}: {receiver['queued']} notifications queued{why}"
    yield from _returns(status, enforcement)


def _blocked(status: Document, enforcement: Document) -> Iterator[str]:
    """Yield why no action is taken, except for what waits for a person (`_returns`)."""
    for name, why in enforcement.get("blocked", {}).items():
        if status["schedulable"] or not (enforcement.get("needs_person") and _BY_PERSON in why):
            yield f"{clean(name)}: {'' if why.startswith(_COMES_BACK) else 'no action: '}{clean(why)}"


def _returns(status: Document, enforcement: Document) -> Iterator[str]:
    """Yield when the node returns, by the strictest of its failures; nothing if it is already schedulable."""
    if status["schedulable"]:
        return
    if person := [clean(name) for name in enforcement.get("needs_person", ())]:
        yield f"the node comes back when an operator runs `gpuwarden restore` after a repair, because of {', '.join(person)}"
        yield from (f"  {clean(why)}" for why in enforcement.get("needs_person_why", ()))
    elif enforcement.get("schedulers"):
        texts = dict.fromkeys(
            finding["comes_back_when"] for finding in status["findings"] if finding.get("comes_back_when")
        )
        yield from (f"the node comes back when {clean(text)}" for text in sorted(texts, key=_strictest_first)[:1])


def _strictest_first(text: str) -> bool:
    return _RESTORE not in text


_NO_SCHEDULER = (
    "no scheduler is configured: nothing takes this node out, and only programs that read the heartbeat, the verdict file "
    "or a socket of gpuwarden give it no work"
)
_COMES_BACK, _BY_PERSON, _RESTORE = "it comes back ", "(gpuwarden restore)", "`gpuwarden restore`"
"""Phrases in the daemon's texts about an exclusion that ends by itself, and about one that a person ends."""


def _override_lines(overridden: Document | None) -> Iterator[str]:
    if overridden:
        yield (
            f"OVERRIDDEN since {when(overridden['since'])} by {clean(overridden['by'])} (gpuwarden restore --force): jobs start despite "
            f"{', '.join(map(clean, overridden['findings']))}; `gpuwarden exclude` takes the node out again"
        )


_IF_IT_STAYS = "; if it stays, cancel the notice: `gpuwarden notify-termination --cancel`"


def _notice_lines(status: Document) -> Iterator[str]:
    notice = status.get("notice")
    if notice:
        until = f" at {when(notice['deadline'])}" if notice.get("deadline") else ""
        reason = f": {clean(notice['reason'])}" if notice.get("reason") else ""
        is_past = bool(until) and notice["deadline"] < (status.get("observed_at") or "")  # both RFC 3339 in UTC
        ends, hint = ("was to end", _IF_IT_STAYS) if is_past else ("ends", "")
        yield f"this machine {ends}{until}, announced by {clean(notice.get('source'))}{reason}{hint}"
    for other in status.get("notices", ()):
        if not notice or other.get("id") != notice.get("id"):
            yield _shown_only(other)
    for source in status.get("notice_sources", ()):
        if not source["up"]:
            yield f"termination notices of {clean(source['source'])}: no response: {clean(source['error'])}"


def _shown_only(notice: Document) -> str:
    """Format a notice that has no effect, now or ever."""
    until = f" at {when(notice['deadline'])}" if notice.get("deadline") else ""
    description = f"{clean(notice['kind'])}{until}, from {clean(notice['source'])}: {clean(notice['reason'])}"
    if notice.get("called_off"):
        return f"cancelled by an operator: {description}"
    return f"announced: {description}" if notice.get("hard") else f"hint: {description}"


def _scheduler(scheduler: Document) -> str:
    name = clean(scheduler["actuator"])
    if not scheduler["reachable"]:
        return f"{name}: unreachable: {clean(scheduler['error'])}"
    state = clean(scheduler["state"])
    if not scheduler["excluded"]:
        return f"{name}: {state}, not excluded"
    if scheduler["excluded"] == "maintenance":
        return f"{name}: {state}, kept for maintenance: gpuwarden writes nothing there until it ends"
    who = (
        "by another party" if scheduler["excluded"] == "foreign" else f"by gpuwarden for {clean(scheduler['excluded'])}"
    )
    since = f" since {when(scheduler['since'])}" if scheduler.get("since") else ""
    return f"{name}: {state}, excluded {who}{since}: {clean(scheduler['reason'])}"
