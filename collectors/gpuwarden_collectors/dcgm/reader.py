"""The reader that runs in the DCGM worker: finds the bindings and the engine, and keeps one connection.

After an error that ends the connection, everything is created again: the ids are invalid after an engine restart.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from gpuwarden_collectors.base import Clock, CollectorError, SourceAbsent, host_clock
from gpuwarden_collectors.dcgm.addresses import Address, engine_address
from gpuwarden_collectors.dcgm.bindings import open_bindings
from gpuwarden_collectors.dcgm.engine import Engine
from gpuwarden_collectors.dcgm.errors import Misfit, failure
from gpuwarden_collectors.dcgm.facts import NOT_ANSWERING, DcgmFacts
from gpuwarden_collectors.dcgm.options import DcgmOptions
from gpuwarden_collectors.dcgm.readings import Readings
from gpuwarden_collectors.dcgm.watch import Watch

_SECOND_OPINION = 60.0  # seconds after which a process whose bindings never matched requests a replacement


class DcgmReader:
    """The reader of DCGM.

    `spent` is true if a new process must replace this one: to load a newly installed version, or because an embedded
    engine left threads in this one.
    """

    def __init__(
        self, options: DcgmOptions, *, clock: Callable[[], float] = time.monotonic, stamp: Clock = host_clock
    ) -> None:
        self._options = options
        self._clock = clock
        self._stamp = stamp
        self._engine: Engine | None = None
        self._watch: Watch | None = None
        self._last = ""  # address of the last connection
        self._replace_at: float | None = None  # time from which a Misfit makes this process spent
        self.spent = False

    def connect(self) -> None:
        """Connects. Raises SourceAbsent without DCGM or a running engine, CollectorError if one is expected."""
        try:
            self._connect()
        except Misfit:
            self._misfit()
            raise
        self._replace_at = 0.0  # versions match; a later Misfit means that another DCGM was installed

    def read(self) -> DcgmFacts:
        """Reads all watches once. Raises CollectorError when the connection ends."""
        if self._engine is None or self._watch is None:
            raise CollectorError("DCGM cannot be read: there is no connection")
        try:
            return self._watch.read()
        except self._engine.error as error:
            failed = failure(f"cannot read DCGM at {self._engine.address}", error)
            if isinstance(failed, Misfit):
                self._misfit()
            raise failed from error

    def close(self) -> None:
        engine, self._engine, self._watch = self._engine, None, None
        if engine is not None:
            # an embedded engine leaves threads and the driver's library in this process
            self.spent = self.spent or engine.embedded
            engine.close()

    def _connect(self) -> None:
        bindings = open_bindings(self._options.bindings)
        self._engine = Engine(bindings, self._address(), f"gpuwarden-{os.getpid()}-{os.urandom(4).hex()}")
        try:
            readings = Readings(self._engine, self._options.interval, profiling=self._options.profiling)
            self._watch = Watch(self._engine, readings, self._stamp)
        except self._engine.error as error:
            failed = failure(f"cannot set up watches in DCGM at {self._engine.address}", error)
            self.close()
            raise failed from error
        self._last = self._engine.address

    def _address(self) -> Address | None:
        """Returns `engine_address`; raises CollectorError, not SourceAbsent, if an engine has disappeared."""
        try:
            return engine_address(self._options)
        except SourceAbsent as absent:
            if not self._last:
                raise
            raise CollectorError(
                f"{NOT_ANSWERING}the nv-hostengine that was at {self._last} is gone: {absent}"
            ) from absent

    def _misfit(self) -> None:
        """Makes this process spent, at once if its library matched before.

        Otherwise after a delay: a new process with the same mismatch would be replaced in each pass.
        """
        if self._replace_at is None:
            self._replace_at = self._clock() + _SECOND_OPINION
        self.spent = self._clock() >= self._replace_at
