"""The keys of `[notify]`: who is told what happens to this node, in both modes. Nothing of it keeps work away."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gpuwarden.base.durations import format_duration
from gpuwarden.base.web_address import address_fault
from gpuwarden.config.exec import Misfit, program_misfits
from gpuwarden.config.secrets import SecretFile

Group = Literal["health", "finding", "exclusion", "termination"]
GROUPS: tuple[Group, ...] = ("health", "finding", "exclusion", "termination")


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    """One table `[notify.webhook.NAME]`. `events`: the groups that it is told. `timeout`: seconds for one request.

    `url_file` for an address that is a secret itself. `key`: signs each request. `ca`: certificates (PEM) to trust instead of
    the system's.
    """

    url: str = ""
    url_file: SecretFile | None = None
    key: SecretFile | None = None
    token: SecretFile | None = None
    basic: SecretFile | None = None
    ca: Path | None = None
    timeout: float = 10.0
    events: tuple[Group, ...] = GROUPS


@dataclass(frozen=True, slots=True)
class NotifyProgram:
    """One table `[notify.exec.NAME]`. `command`: the program, by its whole path, and its arguments; no shell reads it."""

    command: tuple[str, ...] = ()
    timeout: float = 10.0
    events: tuple[Group, ...] = GROUPS


@dataclass(frozen=True, slots=True)
class NotifyOptions:
    webhook: Mapping[str, WebhookOptions] = field(default_factory=dict)
    exec: Mapping[str, NotifyProgram] = field(default_factory=dict)


TARGETS_MOST = 8
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_TIMEOUT = (0.1, 60.0)


def notify_misfits(options: NotifyOptions) -> Iterator[Misfit]:
    """Values that are of the right kind and yet wrong, by their keys."""
    if len(options.webhook) + len(options.exec) > TARGETS_MOST:
        found = len(options.webhook) + len(options.exec)
        yield (
            ("notify",),
            f"expected at most {TARGETS_MOST} who are told, found {found}: let one of them tell the others",
        )
    for name in (*options.webhook, *options.exec):
        if not _NAME.fullmatch(name):
            here = "notify.webhook" if name in options.webhook else "notify.exec"
            yield (f"{here}.{name}",), "expected a name of lower-case letters, digits and _ such as pager"
    for name, webhook in options.webhook.items():
        yield from _webhook_misfits(f"notify.webhook.{name}", webhook)
    for name, program in options.exec.items():
        yield from program_misfits(f"notify.exec.{name}", program.command, program.timeout)


def _webhook_misfits(here: str, webhook: WebhookOptions) -> Iterator[Misfit]:
    if bool(webhook.url) == (webhook.url_file is not None):
        found = "both" if webhook.url else "neither"
        yield (f"{here}.url", f"{here}.url_file"), f"expected url or url_file, found {found}"
    elif webhook.url and (fault := address_fault(webhook.url, query=True)):
        yield (f"{here}.url",), fault
    if webhook.token is not None and webhook.basic is not None:
        yield (
            (f"{here}.token", f"{here}.basic"),
            "expected a bearer token or a password, found both: which of them is it?",
        )
    if webhook.ca is not None and webhook.url.startswith("http://"):
        yield (f"{here}.ca",), "certificates are of use with https:// only"
    least, most = _TIMEOUT
    if not least <= webhook.timeout <= most:
        allowed = f"{format_duration(least)} to {format_duration(most)}"
        yield (f"{here}.timeout",), f"expected {allowed}, found {format_duration(webhook.timeout)}"
