"""The reason texts that gpuwarden writes with an exclusion, and their parser.

    gpuwarden: failure gpu=3 xid=79 - power-cycle the machine
    gpuwarden: failure gpu=3 xid=79 gpu=5 row_remap_failed
    gpuwarden: failure domain=8f3c6a1e.0 gpu=3 xid=79
    gpuwarden: termination boot=1b4e28ba instance=i-0af01c23
    gpuwarden: operator by=alice replacing a fan

A reason is one line of at most 120 bytes, without counters and times: a text that changes would be written on every
pass, and each write resets the time of the exclusion. It never contains " : ", with which Slurm appends its own remarks
from 23.02 on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from gpuwarden.health.model import Finding, GpuVerdict
from gpuwarden.health.to_do import in_brief, to_do
from gpuwarden.policy.model import Why
from gpuwarden_collectors.dataclass import dataclass

PREFIX = "gpuwarden: "
LONGEST = 120  # bytes; slurmdbd keeps 255 of a reason
_OPERATOR_NAME = 32  # characters
_INSTANCE = 64  # characters
_BOOT = 8  # hexadecimal digits

_SUFFIX = " : "
_DOMAIN, _UNKNOWN = "domain=", "unknown="
_ODD = str.maketrans({'"': "'", "|": "/", "\\": "/", "`": "'", "[": "(", "]": ")", "$": " "})
"""Characters that a scheduler, a shell or a parser of tables could interpret."""
_NOT_A_TOKEN = re.compile(r"[^A-Za-z0-9_.:+-]+")
_KIND = re.compile(r"(failure|termination|operator)(?: (.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A reason of ours, as read back. `text` is what we wrote; `suffix` what the scheduler added to it."""

    why: Why
    text: str
    suffix: str = ""
    boot: str = ""
    instance: str = ""
    domain: str = ""
    unknown: bool = False
    """The node was excluded because its health was unknown."""


def failure(findings: Iterable[Finding], gpus: Mapping[str, GpuVerdict], domain: str = "") -> str:
    """The reason for a failure: each GPU with what is wrong with it, in the order of the findings, and the advised
    action if there is only one and it fits.

    `gpus`: by slot. `+2` stands for two that did not fit. `domain`: the node's NVLink domain, by which others count it.
    """
    findings = tuple(findings)
    by_subject: dict[str, list[str]] = {}
    for finding in findings:
        by_subject.setdefault(_subject(finding, gpus), []).append(_what(finding))
    groups = [" ".join(filter(None, (subject, *dict.fromkeys(texts)))) for subject, texts in by_subject.items()]
    return _with_action(_fitting(_kind(domain), groups), findings)


def _with_action(text: str, findings: Iterable[Finding]) -> str:
    actions = {in_brief(to_do(finding.key, finding.advice, finding.evidence)) for finding in findings}
    whole = f"{text} - {line(min(actions, default=''))}"
    return whole if len(actions) == 1 and len(whole.encode()) <= LONGEST else text


def names(text: str, finding: Finding) -> bool:
    """Return True if a reason of ours was written for a failure like this one: for its kind, on whichever GPU."""
    written = parse(text)
    return written is not None and written.why is Why.FAILURE and _what(finding) in written.text.split()


def unknown(why: Iterable[str], domain: str = "") -> str:
    return _fitting(_kind(domain), [f"{_UNKNOWN}{_token(text)}" for text in why])


def _kind(domain: str) -> str:
    return f"failure {_DOMAIN}{_token(domain)}" if domain else "failure"


def termination(boot_id: str, instance: str) -> str:
    """The reason for a termination. It names boot and instance, so that a replacement machine can tell that another was
    meant. Unknown names are `unknown`.
    """
    return f"{PREFIX}termination boot={boot_name(boot_id) or 'unknown'} instance={instance_name(instance) or 'unknown'}"


def operator(by: str, text: str) -> str:
    who = f"operator by={_token(by)[:_OPERATOR_NAME] or 'unknown'}"
    return _cut(f"{PREFIX}{who} {line(text)}".rstrip(), LONGEST)


def boot_name(boot_id: str) -> str:
    """The first 8 hex digits of a boot id; "" for anything else."""
    name = boot_id[:_BOOT].lower()
    return name if re.fullmatch(r"[0-9a-f]{8}", name) else ""


def instance_name(instance: str) -> str:
    return _token(_token(instance)[:_INSTANCE])


def parse(text: str) -> Reason | None:
    """Parse a reason of ours. None for any other text and for an unknown kind: such an exclusion is left alone."""
    text = text.strip().strip('"').strip()
    if not text.startswith(PREFIX):
        return None
    own, _, suffix = text.partition(_SUFFIX)
    kind = _KIND.fullmatch(own.removeprefix(PREFIX).strip())
    if kind is None:
        return None
    words = (kind[2] or "").split()
    fields = dict(word.split("=", 1) for word in words if "=" in word)
    named = kind[1] == Why.TERMINATION
    domain, first = _domain_and_first(words) if kind[1] == Why.FAILURE else ("", "")
    return Reason(
        why=Why(kind[1]),
        text=own.strip(),
        suffix=suffix.strip(),
        boot=_known(fields.get("boot", "")) if named else "",
        instance=_known(fields.get("instance", "")) if named else "",
        domain=domain,
        unknown=first.startswith(_UNKNOWN),
    )


def _domain_and_first(words: list[str]) -> tuple[str, str]:
    """Return the domain in a failure's words, and the first word after it. Later words may be arbitrary text."""
    first, second, *_ = *words, "", ""
    return (first.removeprefix(_DOMAIN), second) if first.startswith(_DOMAIN) else ("", first)


def _known(name: str) -> str:
    return "" if name == "unknown" else name


def _subject(finding: Finding, gpus: Mapping[str, GpuVerdict]) -> str:
    slot = finding.key.subject.slot
    gpu = gpus.get(slot)
    if not slot:
        return _token(finding.key.subject.part)
    return f"gpu={slot if gpu is None or gpu.index is None else gpu.index}" if gpu is not None else _token(slot)


def _what(finding: Finding) -> str:
    code, detail = _token(finding.key.code), _token(finding.key.detail)
    return f"{code}={detail}" if detail else code


def _fitting(kind: str, groups: list[str]) -> str:
    """Join as many groups as fit, the first in any case."""
    text = PREFIX + kind
    for number, group in enumerate(groups):
        left = len(groups) - number
        room = LONGEST - (len(f" +{left - 1}") if left > 1 else 0)
        if number and len(f"{text} {group}".encode()) > room:
            return f"{text} +{left}"
        text = _cut(f"{text} {group}", room)
    return text


def _token(text: str) -> str:
    return _NOT_A_TOKEN.sub("-", text).strip("-:")


def line(text: str) -> str:
    """Make a text printable, on one line, without characters that others could interpret and without the separator of
    suffixes.
    """
    shown = "".join(char if char.isprintable() else " " for char in text[: 4 * LONGEST].translate(_ODD))
    return " ".join(word for word in shown.split() if word != _SUFFIX.strip())


def _cut(text: str, longest: int) -> str:
    """Cut a text to at most `longest` bytes of UTF-8."""
    return text.encode("utf-8", "ignore")[:longest].decode("utf-8", "ignore").rstrip(" :")
