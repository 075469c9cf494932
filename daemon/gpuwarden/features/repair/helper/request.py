"""Parses requests to the helper. Every field is checked here, whoever sends it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from gpuwarden.features.repair.model import Service, StepKind
from gpuwarden_collectors.dataclass import dataclass

MOST = 4096
"""Bytes of a request."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}", re.ASCII)
_SLOT = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_UUID = re.compile(r"(GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})?", re.ASCII)
"""Empty for a GPU that never reported one."""
_REASON = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{1,200}")
"""No control character, and no line separator."""
_FIELDS: Mapping[str, Mapping[str, re.Pattern[str]]] = {
    StepKind.RESTART_SERVICE: {"service": re.compile("|".join(Service))},
    StepKind.RESET_GPU: {"slot": _SLOT, "uuid": _UUID},
    StepKind.RESET_ALL: {},
    StepKind.RELOAD_DRIVER: {},
    StepKind.REBOOT: {"reason": _REASON},
}
"""By step, the fields of a request for it, in addition to `verb`, `id` and `step`."""
STEPS = tuple(_FIELDS)


class BadRequest(Exception):  # noqa: N818 - what somebody sent
    """The request is malformed. The message says which part of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request. `fields` are those of the step."""

    verb: str
    id: str = ""
    step: str = ""
    fields: Mapping[str, str]

    @property
    def subject(self) -> str:
        """Return what the step is about, for people."""
        return " ".join(filter(None, (self.step, *self.fields.values())))


def request_of(line: bytes) -> Request:
    """Parse a request. Raises BadRequest unless it has exactly the documented form."""
    try:
        document = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        raise BadRequest("the request is not one line of JSON") from None
    if not isinstance(document, dict) or not all(isinstance(value, str) for value in document.values()):
        raise BadRequest("the request is not an object of texts")
    return _checked(document)


def _checked(document: Mapping[str, str]) -> Request:
    verb = document.get("verb")
    if verb == "probe":
        fields = _exactly(document, {}, ("verb", "step"))
        return Request(verb=verb, step=_step(document) if "step" in document else "", fields=fields)
    if verb == "result":
        return Request(verb=verb, id=_id(document), fields=_exactly(document, {}, ("verb", "id")))
    if verb != "step":
        raise BadRequest("verb: expected probe, step or result")
    step = _step(document)
    fields = _exactly(document, _FIELDS[step], ("verb", "id", "step"))
    return Request(verb=verb, id=_id(document), step=step, fields=fields)


def _step(document: Mapping[str, str]) -> str:
    step = document.get("step", "")
    if step not in _FIELDS:
        raise BadRequest(f"step: expected one of {', '.join(STEPS)}")
    return step


def _id(document: Mapping[str, str]) -> str:
    if not _ID.fullmatch(document.get("id", "")):
        raise BadRequest("id: expected 1 to 64 letters, digits, '.', '_', ':' and '-'")
    return document["id"]


def _exactly(
    document: Mapping[str, str], patterns: Mapping[str, re.Pattern[str]], others: tuple[str, ...]
) -> Mapping[str, str]:
    if unknown := document.keys() - patterns.keys() - set(others):
        raise BadRequest(f"{len(unknown)} unknown fields")
    for name, pattern in patterns.items():
        if name not in document or not pattern.fullmatch(document[name]):
            raise BadRequest(f"{name}: not of the required form")
    return {name: document[name] for name in patterns}
