"""The declaration of a cloud, one row of `registry.py`.

It defines the cloud's source, its configuration table, its firmware rules and the texts of `gpuwarden doctor`.
Reading the configuration imports these rows, so the sources, with asyncio and aiohttp, are only loaded by `open`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.options import bounded

if TYPE_CHECKING:
    from gpuwarden_collectors.cloud.source import CloudSource

Rule = Callable[[Mapping[str, str]], bool]
"""True if the firmware fields match a cloud (`detect.py`)."""


@dataclass(frozen=True, slots=True)
class MetadataOptions:
    """The metadata service of a cloud."""

    endpoint: str = ""
    """Address of the service. Empty: the cloud's usual address."""
    interval: float = bounded(
        1.0, 0.2, 5.0, "longer wastes a notice of 30s; shorter loads an address that also serves DNS and time"
    )
    """Time between two requests."""
    timeout: float = bounded(2.0, 0.1, 5.0, "a service on the same host answers in milliseconds")
    """Time limit of a request, until the end of the answer."""


Options = TypeVar("Options", bound=MetadataOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudSpec(Generic[Options]):
    """A cloud whose metadata service announces an end."""

    name: str
    """Its name as a source and as a table `[termination.NAME]`."""
    source: str
    """The class of its source in `gpuwarden_collectors.cloud`, as in `aws:Aws`."""
    endpoint: str = "http://169.254.169.254"
    """The service's address, numeric because DNS may fail while a machine shuts down."""
    options: type[Options]
    """Its table of the configuration."""
    firmware: tuple[Rule, ...]
    """Rules for the firmware; a machine of this cloud matches at least one."""
    unreachable: str
    """The remedy, for operators, if the service does not answer."""
    unread: str = ""
    """What `gpuwarden doctor` does not read from it, and why."""

    def open(self, clock: Clock, options: MetadataOptions) -> CloudSource:
        """Loads the source's module and returns the source."""
        from gpuwarden_collectors.cloud.metadata import Metadata  # noqa: PLC0415 - loads aiohttp

        module, _, name = self.source.partition(":")
        make: Callable[[Metadata, Clock, float], CloudSource] = getattr(import_module(f"{__package__}.{module}"), name)
        return make(Metadata(options.endpoint or self.endpoint, options.timeout), clock, options.interval)


AnyCloud = CloudSpec[Any]


def equals(field: str, text: str) -> Rule:
    return lambda firmware: firmware[field].lower() == text.lower()


def begins(field: str, text: str) -> Rule:
    return lambda firmware: firmware[field].lower().startswith(text.lower())
