"""A job as text: the answer first, then how it ended, what touched it in order of time, and what it used. Made of its document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuwarden.cli.text import clean, when

Document = dict[str, Any]

CAUSES = {
    "none": "it ended well",
    "hardware": "hardware",
    "host": "this host",
    "fabric": "the fabric between nodes",
    "job": "the job itself",
    "scheduler": "the scheduler or an operator",
    "notice": "the announced end of this machine",
    "other_node": "another node of the job",
    "not_seen": "nothing that this node saw",
}
"""Causes, for people."""
_TOUCHES = {
    "xid": "Xid",
    "sxid": "SXid",
    "finding": "finding",
    "rising": "seen for a moment:",
    "standing": "was there before:",
    "reset": "GPU reset",
    "oom_limit": "out of memory: the job reached its own limit",
    "oom_shared": "out of memory: a limit that the job shares with others was reached",
    "oom_node": "out of memory: this node had none left",
    "oom_count": "processes of the job were killed for lack of memory",
    "memory_error": "uncorrected error of this node's memory",
    "notice": "termination notice",
    "announced": "termination notice for later",
    "signalled": "the job was signalled",
    "saved": "the job saved",
    "requeued": "the job was requeued",
    "excluded": "this node was taken out of scheduling:",
    "excluded_by_others": "another party took this node out of scheduling:",
    "boot": "this node booted",
}
"""What touches a job, for people; another name is shown as it is."""
_ANSWERS = {
    ("signalled", "sent"): "the job was signalled",
    ("signalled", "watched"): "the job was signalled by another node",
    ("signalled", "unknown"): "the job may have been signalled",
    ("signalled", "unsent"): "the job could not be signalled",
    ("saved", "saved"): "the job saved its work",
    ("saved", "unsaved"): "the job was done, and did not acknowledge that it saved its work",
}
"""What touches a job and its detail, where they make one sentence."""
_KNOWN_FROM = {
    "epilog": "Slurm's epilog",
    "scheduler": "the scheduler",
    "cgroup": "the end of its control group",
    "processes": "the end of its last process",
    "restart": "the restart of gpuwarden, which did not find it again: it ended before",
    "boot": "a boot, which it did not survive: it ended before",
}
_LABEL = 8


def lines(document: Document) -> Iterator[str]:
    """Yield the screen of one job."""
    yield headline(document)
    if (answer := document["answer"]) is not None:
        yield f"cause: {_cause(answer)}"
    yield ""
    yield from _labelled("job", _job(document))
    yield from _labelled("GPUs", _gpus(document["gpus"]))
    yield from _labelled("began", when(document["began"]))
    yield from _labelled("ended", _ended(document))
    yield from _labelled("used", *_used(document["use"]))
    yield ""
    yield from _timeline(document)
    if older := document["older"]:
        yield ""
        yield f"this is the newest of its name: {older} older {'jobs' if older > 1 else 'job'} ended here"


def short(document: Document) -> str:
    """Return one line: the job, the answer and its certainty."""
    answer = document["answer"]
    return f"gpuwarden: {headline(document)}" + ("" if answer is None else f" ({_cause(answer)})")


def headline(document: Document) -> str:
    name = clean(document["job"])
    answer = document["answer"]
    if not (document["running"] or document["final"]):
        name += " has ended"
        if answer is None:
            return f"{name}: what ended it is not known yet; ask again in a minute"
        name += ", so far"
    if answer is not None:
        if document["running"]:
            name += " is running; if it ended now"
        return f"{name}: {clean(answer['sentence']) or CAUSES.get(answer['cause'], clean(answer['cause']))}"
    if not document["touches"]:
        return f"{name} is running: nothing touched it so far"
    last = document["touches"][-1]
    return (
        f"{name} is running: {_where(last)}: {_what(last)}, {_length(document['seconds'] - last['after_seconds'])} ago"
    )


def _cause(answer: Document) -> str:
    code = f", {clean(answer['code'])}" if answer["code"] else ""
    certainty = "" if answer["cause"] in ("none", "not_seen") else f", {clean(answer['certainty'])}"
    serial = f", serial {clean(answer['serial'])}" if answer["serial"] else ""
    return f"{CAUSES.get(answer['cause'], clean(answer['cause']))}{certainty}{code}{serial}"


def _labelled(label: str, *texts: str) -> Iterator[str]:
    for number, text in enumerate(texts):
        yield f"{'' if number else label:<{_LABEL}}{text}".rstrip()


def _job(document: Document) -> str:
    name = f" {clean(document['job_name'])}" if document["job_name"] else ""
    uid = "" if document["uid"] is None else f"uid {document['uid']}"
    user = clean(document["user"])
    owner = f" of {user} ({uid})" if user and uid else f" of {user or uid}" if user or uid else ""
    node = f" on {clean(document['node'])}" if document["node"] else ""
    return f"{clean(document['job'])}{name}{owner}{node}"


def _gpus(gpus: list[Document]) -> str:
    if not gpus:
        return "none"
    return f"{len(gpus)}: {', '.join(_gpu(gpu) for gpu in gpus)}"


def _gpu(gpu: Document) -> str:
    """Return the index of a GPU, and its PCI address where the driver does not list it."""
    return clean(gpu["pci_bus_id"]) if gpu["gpu"] is None else str(gpu["gpu"])


def _ended(document: Document) -> str:
    length = _length(document["seconds"])
    end = document["end"]
    if end is None:
        return f"not yet, after {length}"
    parts = [f"{when(document['ended'])}, after {length}"]
    if end["state"]:
        parts.append(clean(end["state"]) + (f" by {clean(end['by'])}" if end["by"] else ""))
    if end["exit_code"] is not None:
        parts.append(f"exit code {end['exit_code']}")
    if end["signal"]:
        parts.append(f"signal {end['signal']}")
    source = _KNOWN_FROM.get(end["known_from"], clean(end["known_from"]))
    return f"{', '.join(parts)}; known from {source}"


def _timeline(document: Document) -> Iterator[str]:
    touches = document["touches"]
    if not touches:
        yield "this node saw nothing that touched it"
        return
    yield "what touched it, by time since its start"
    rows = [(f"+{_clock(touch['after_seconds'])}", _where(touch), _what(touch)) for touch in touches]
    ends = document["end"] is not None
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    ended = False
    for touch, (at, where, description) in zip(touches, rows, strict=True):
        if ends and not ended and touch["after_seconds"] > document["seconds"]:
            ended = True
            yield f"  +{_clock(document['seconds'])}  end of the job"
        yield f"  {at:>{widths[0]}}  {where:<{widths[1]}}  {description}"
    if ends and not ended:
        yield f"  +{_clock(document['seconds'])}  end of the job"


def _where(touch: Document) -> str:
    return f"GPU {_gpu(touch)}" if touch["pci_bus_id"] else "node"


def touch_name(kind: str, detail: str) -> str:
    """Return what touched a job, with the detail of it."""
    if kind in ("finding", "rising", "standing", "sxid"):
        detail = _where_is_said(detail)
    name = _TOUCHES.get(kind, clean(kind).replace("_", " "))
    return _ANSWERS.get((kind, detail)) or f"{name} {clean(detail)}".rstrip()


def _what(touch: Document) -> str:
    text = touch_name(touch["what"], touch["detail"])
    if touch["text"]:
        text += f": {clean(touch['text'])}"
    if touch["pid"] is not None:
        text += f", process {touch['pid']}"
    if (lasted := touch.get("for_seconds")) is not None:  # a daemon that was not restarted yet has no such key
        text += f", for {_length(lasted)}"
    if touch["count"] > 1:
        text += f", {touch['count']} times"
    if touch["follows"]:
        text += f" (follows from {clean(_where_is_said(touch['follows']))})"
    return text


def _where_is_said(detail: str) -> str:
    """Return the id of a finding without its subject, which the line already shows."""
    return detail.partition("@")[0]


def _used(use: Document) -> Iterator[str]:
    """Yield what was measured, with the GPU-hours over which it was measured."""
    energy = "energy not measured" if use["energy_joules"] is None else _energy(use)
    yield f"{energy}; measured over {_gpu_hours(use['observed_gpu_seconds'])}"
    shares = [(use["busy"], "busy"), (use["tensor"], "tensor cores active")]
    parts = [f"{100 * share:.0f} % {name}" for share, name in shares if share is not None]
    if use["memory_peak_bytes"] is not None:
        parts.append(f"memory peak {use['memory_peak_bytes'] / 2**30:.1f} GiB on one GPU")
    if parts:
        yield ", ".join(parts)
    yield f"{_gpu_hours(use['idle_gpu_seconds'])} without a process, {_gpu_hours(use['throttled_gpu_seconds'])} throttled"


def _energy(use: Document) -> str:
    joules, covers = use["energy_joules"], use["energy_covers"]
    energy = f"{joules / 3.6e6:.2f} kWh ({joules:.0f} J)" if joules >= 36_000 else f"{joules:.0f} J"
    return (
        energy
        if covers is None or covers > 0.995
        else f"{energy} in {100 * covers:.0f} % of its time, the rest was not measured"
    )


def _gpu_hours(seconds: float) -> str:
    return f"{seconds / 3600:.2f} GPU-hours" if seconds >= 36 else f"{seconds:.0f} GPU-seconds"


def _length(seconds: float) -> str:
    """Return a length in its two largest units, as `1 h 26 min`."""
    total = max(int(seconds), 0)
    for size, unit, below, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if total >= size:
            rest = total % size // below
            return f"{total // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{total} s"


def _clock(seconds: float) -> str:
    total = max(int(seconds), 0)
    return f"{total // 3600}:{total // 60 % 60:02}:{total % 60:02}"
