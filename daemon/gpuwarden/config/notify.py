"""The keys of `[notify]`: the targets of notifications about this node, in both modes. They exclude no node."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Literal

from gpuwarden.base.web_address import address_fault
from gpuwarden.config.exec import program_misfits
from gpuwarden.config.secrets import SecretFile
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.options import Misfit, bounded

Group = Literal["health", "finding", "exclusion", "termination", "job"]
GROUPS: tuple[Group, ...] = ("health", "finding", "exclusion", "termination", "job")


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    """A webhook that gets the events of this node ([exclusion.md](../use/exclusion.md#notifications))."""

    url: str = ""
    """The address. Either `url` or `url_file` is required."""
    url_file: SecretFile | None = None
    """A file with the address, if the address itself is a secret."""
    key: SecretFile | None = None
    """The key that signs each request."""
    token: SecretFile | None = None
    """A bearer token for the login."""
    basic: SecretFile | None = None
    """A line `USER:PASSWORD` for the login."""
    ca: Path | None = None
    """Certificates (PEM) to trust instead of the system's."""
    timeout: float = bounded(10.0, 0.1, 60.0)
    """Time limit of a request."""
    events: tuple[Group, ...] = GROUPS
    """The groups of events that are sent."""


@dataclass(frozen=True, slots=True)
class NotifyProgram:
    """A program that gets the events of this node ([exclusion.md](../use/exclusion.md#notifications))."""

    command: tuple[str, ...] = ()
    """Absolute path of the program, and its arguments. It is run without a shell. Required."""
    timeout: float = bounded(10.0, 0.1, 60.0)
    """Time limit of a run."""
    events: tuple[Group, ...] = GROUPS
    """The groups of events that it gets."""


@dataclass(frozen=True, slots=True)
class NotifyOptions:
    """What happens to this node, for people and other systems."""

    webhook: Mapping[str, WebhookOptions] = field(default_factory=dict)
    exec: Mapping[str, NotifyProgram] = field(default_factory=dict)


TARGETS_MOST = 8
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")


def notify_misfits(options: NotifyOptions) -> Iterator[Misfit]:
    """Yield values that have the right type but are invalid, by their keys."""
    if len(options.webhook) + len(options.exec) > TARGETS_MOST:
        count = len(options.webhook) + len(options.exec)
        message = f"expected at most {TARGETS_MOST} targets, found {count}: let one of them forward to the others"
        yield ("notify",), message
    for name in (*options.webhook, *options.exec):
        if not _NAME.fullmatch(name):
            here = "notify.webhook" if name in options.webhook else "notify.exec"
            yield (f"{here}.{name}",), "expected a name of lower-case letters, digits and _ such as pager"
    for name, webhook in options.webhook.items():
        yield from _webhook_misfits(f"notify.webhook.{name}", webhook)
    for name, program in options.exec.items():
        yield from program_misfits(f"notify.exec.{name}", program.command)


def _webhook_misfits(here: str, webhook: WebhookOptions) -> Iterator[Misfit]:
    if bool(webhook.url) == (webhook.url_file is not None):
        present = "both" if webhook.url else "neither"
        yield (f"{here}.url", f"{here}.url_file"), f"expected url or url_file, found {present}"
    elif webhook.url and (fault := address_fault(webhook.url, query=True)):
        yield (f"{here}.url",), fault
    if webhook.token is not None and webhook.basic is not None:
        yield ((f"{here}.token", f"{here}.basic"), "set either a bearer token or a password, not both")
    if webhook.ca is not None and webhook.url.startswith("http://"):
        yield (f"{here}.ca",), "certificates are used with https:// only"
