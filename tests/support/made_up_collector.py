"""A collector of the host that is in no release.

`beside_the_real_ones` gives the environment of Python processes in whose list of collectors it is from their start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gpuwarden_collectors.base import CollectorError, SourceAbsent
from gpuwarden_collectors.options import Misfit, PolledOptions, bounded
from gpuwarden_collectors.spec import CollectorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeUpFacts:
    """Facts of one pass."""

    collector: ClassVar[str] = "made_up"
    number: int = 0
    """What the file holds."""


@dataclass(frozen=True, slots=True)
class MadeUpOptions(PolledOptions):
    """A file with a number."""

    interval: float = bounded(30.0, 0.1, 600.0)
    file: str = "/nowhere"
    """Its path."""

    def misfits(self) -> Iterator[Misfit]:
        if not self.file.startswith("/"):
            yield ("file",), "expected an absolute path"


class MadeUpCollector:
    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self) -> MadeUpFacts:
        try:
            return MadeUpFacts(number=int(self._file.read_text()))
        except FileNotFoundError as error:
            raise SourceAbsent(f"there is no {self._file}") from error
        except ValueError as error:
            raise CollectorError(f"{self._file} holds no number") from error


SPEC = CollectorSpec(
    facts=MadeUpFacts, options=MadeUpOptions, reader=lambda _, options: MadeUpCollector(Path(options.file)),
    source="a number that a test has written into a file",
)  # fmt: skip


LISTED = """
from gpuwarden_collectors import registry
from support.made_up_collector import SPEC
registry.HOST_COLLECTORS = (*registry.HOST_COLLECTORS, SPEC)
"""


def beside_the_real_ones(folder: Path) -> Mapping[str, str]:
    (folder / "sitecustomize.py").write_text(LISTED)
    return {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
