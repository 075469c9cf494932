"""Parses the output of Slurm's commands about nodes into facts.

`sinfo` prints fields without fixed width, separated by control characters, because a reason may contain anything,
even line breaks. The output is the same from 22.05 to 26.05 (src/sinfo/print.c of each release), and so are the parts
of `scontrol show node` that are read.

No field names a user: sinfo would look up the author of a reason, who may be in a directory that hangs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuwarden_collectors.slurm.errors import OddAnswer, one_line
from gpuwarden_collectors.slurm.facts import NodeFacts, NodeTexts

_BETWEEN, _END = "\x1f", "\x1e"  # unit and record separator
_FIELDS = ("NodeList", "PartitionName", "StateComplete", "Timestamp", "Gres", "Comment", "Extra", "Reason")
_ROW = ("NodeList", "PartitionName", "StateComplete", "Timestamp", "Gres", "Reason")
_TEXTS = ("NodeList", "Comment", "Extra")
_NOTHING = ("", "(null)", "none", "Unknown")
_STATE = re.compile(r"[A-Za-z_]+(\+[A-Za-z_]+)*")
_GPU = re.compile(r"(?:^|,)gpu(?::[^,:()]*?)*?(?::(\d{1,5}))?(?=\(|,|$)")
"""Matches `gpu:4`, `gpu:h100:8(S:0-1)`; a bare `gpu` means one."""
_SHOWN_REASON = re.compile(r"(.*) \[[^\[\]@]*@([^\[\]@]*)\]")
_MOVED_IN = " " * 10


def _format(fields: tuple[str, ...]) -> str:
    return ",".join(f"{name}:0{_BETWEEN}" for name in fields[:-1]) + f",{fields[-1]}:0{_END}"


NODE_FORMAT = _format(_FIELDS)
"""Argument of `sinfo --Format` for one node."""
ROW_FORMAT = _format(_ROW)
"""Argument of `sinfo --Format` for a whole partition, with the fewest fields."""
TEXTS_FORMAT = _format(_TEXTS)
"""Argument of `sinfo --Format` for the text fields of all nodes."""


def sinfo_nodes(text: str) -> list[NodeFacts]:
    """Parses `NODE_FORMAT`: one record for each partition that the node is in. Raises OddAnswer."""
    return [_node(record) for record in _records(text, _FIELDS)]


def sinfo_rows(text: str) -> list[NodeFacts]:
    """Parses nodes in `ROW_FORMAT`. Raises OddAnswer."""
    return [_node(record) for record in _records(text, _ROW)]


def sinfo_texts(text: str) -> list[NodeTexts]:
    """Parses node texts in `TEXTS_FORMAT`. Raises OddAnswer."""
    return [
        NodeTexts(record["NodeList"].rpartition("\n")[2], _text(record["Comment"]), _text(record["Extra"]))
        for record in _records(text, _TEXTS)
    ]


def _records(text: str, fields: tuple[str, ...]) -> Iterator[dict[str, str]]:
    *records, rest = text.split(_END)
    if rest.strip() and not records:
        raise OddAnswer(f"sinfo reports {one_line(rest)!r}")
    for record in records:
        values = record.split(_BETWEEN, len(fields) - 1)
        if len(values) != len(fields):
            raise OddAnswer(f"sinfo reports {one_line(record)!r}")
        yield dict(zip(fields, values, strict=True))


def _node(record: dict[str, str]) -> NodeFacts:
    base, flags = _state(record["StateComplete"])
    return NodeFacts(
        name=record["NodeList"].rpartition("\n")[2],  # a warning may precede it
        base=base,
        flags=flags,
        reason=_text(record["Reason"]),
        reason_at=_time(record["Timestamp"]),
        partitions=(record["PartitionName"],),
        gpus=_gpus(record["Gres"]),
        comment=_text(record.get("Comment", "")),
        extra=_text(record.get("Extra", "")),
    )


def shown_node(text: str) -> NodeFacts:
    """Parses `scontrol show node` for one node, which may be in no partition. Raises OddAnswer."""
    head, _, tail = text.partition("\n   Reason=")
    pairs = dict(item.split("=", 1) for item in head.split() if "=" in item)
    if "NodeName" not in pairs or "State" not in pairs:
        raise OddAnswer(f"scontrol reports {one_line(text)!r}")
    base, flags = _state(pairs["State"])
    reason, reason_at = _shown_reason(tail)
    partitions = pairs.get("Partitions", "")
    return NodeFacts(
        name=pairs["NodeName"],
        base=base,
        flags=flags,
        reason=reason,
        reason_at=reason_at,
        partitions=tuple(partitions.split(",")) if partitions else (),
        gpus=_gpus(pairs.get("Gres", "")),
        comment=_shown(text, "Comment"),
        extra=_shown(text, "Extra"),
    )


def _shown_reason(text: str) -> tuple[str, float | None]:
    """Parses the reason and its time: author and time follow its first line; further lines are indented by ten blanks."""
    first, *more = text.splitlines() or [""]
    match = _SHOWN_REASON.fullmatch(first)
    reason, at = match.groups() if match else (first.strip(), "")
    others = (line.removeprefix(_MOVED_IN) for line in more if line.startswith(_MOVED_IN))
    return "\n".join((reason, *others)), _time(at)


def _shown(text: str, name: str) -> str:
    match = re.search(rf"^   {name}=(.*)$", text, re.MULTILINE)
    return _text(match[1]) if match else ""


def _state(text: str) -> tuple[str, frozenset[str]]:
    """Parses the state. A trailing `*`, which old releases append for a node that does not respond, becomes a flag."""
    states, not_responding = text.removesuffix("*"), text.endswith("*")
    if _STATE.fullmatch(states) is None:
        raise OddAnswer(f"Slurm reports that a node's state is {one_line(text)!r}")
    base, *flags = states.lower().split("+")
    return base, frozenset((*flags, "not_responding") if not_responding else flags)


def _gpus(gres: str) -> int:
    """Counts the GPUs of all types together."""
    return sum(int(count or 1) for count in _GPU.findall(gres))


def _time(text: str) -> float | None:
    """Unix time of a text: SLURM_TIME_FORMAT=%s gives seconds, except without a reason."""
    return float(text) if text.isascii() and text.isdigit() and len(text) < 15 else None


def _text(value: str) -> str:
    return "" if value in _NOTHING else value
