"""A folder of checkpoints: saves are atomic, old ones are pruned, and the newest complete one is loaded.

With several ranks every method except `saved` is collective: all ranks call it, in the same order. The folder must
outlive the node and be the same on all nodes; use one per training run (not per restart).

`sharded`: every rank saves its own state (FSDP, ZeRO). Otherwise all ranks have the same state (DDP): rank 0 saves it,
and all load it. The newest checkpoint is the last one saved, regardless of its step: after going back to an older one
and training on, a restart resumes from there.

The default format never runs code from the folder; see formats.py and plain.py. The hashes detect corruption, not
forgery. With your own `dump` and `load`, or `load_trusted`, everyone who can write to the folder can run code in the
job.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

from gpuwarden_job import formats, manifest, plain, publishing, retention, staging
from gpuwarden_job.encoding import NotPlain
from gpuwarden_job.errors import CheckpointError, Refused, SaveFailed
from gpuwarden_job.loading import Loaded, Loader, Read, Reshard, read_shards, shard_name, shard_names
from gpuwarden_job.manifest import Broken, Manifest
from gpuwarden_job.publishing import Plan, Write
from gpuwarden_job.ranks import Ranks
from gpuwarden_job.state import host_copy

_log = logging.getLogger("gpuwarden_job")

Dump = Callable[[Any, IO[bytes]], object]
Load = Callable[[IO[bytes]], Any]


class CheckpointStore:
    """Checkpoints in one folder: the last `keep_last`, and the best one.

    `keep_best` is "min" or "max" of the metric, or None. `seconds` is the duration of the last save, None before the
    first: a notice must leave at least that much time.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        ranks: Ranks | None = None,
        sharded: bool = False,
        keep_last: int = 3,
        keep_best: str | None = None,
        dump: Dump = formats.dump,
        load: Load = formats.load,
        patience: float = 600.0,
    ) -> None:
        if keep_last < 1:
            raise ValueError(f"keep_last is {keep_last}: keep at least 1 checkpoint to resume from")
        if keep_best not in (None, *retention.MODES):
            raise ValueError(f"keep_best is {keep_best!r}: min, max or None")
        self.folder = Path(folder)
        self.ranks = Ranks.detect() if ranks is None else ranks
        self.seconds: float | None = None
        self._sharded = sharded
        self._keep = (keep_last, keep_best)
        self._dump, self._load = dump, load
        self._patience = patience
        self._background = Background()

    def save(self, state: Any, step: int, *, metric: object = None, extra: Mapping[str, Any] | None = None) -> None:
        """Saves a checkpoint durably. Raises SaveFailed, on all ranks.

        Earlier checkpoints stay untouched. Raises Refused, a SaveFailed, if this format can never store this state.
        """
        self._agree(_error_of(lambda: self._check(state)), step)
        self.save_files(self._writer(state), step, metric=metric, extra=extra)

    def save_files(
        self, write: Write, step: int, *, metric: object = None, extra: Mapping[str, Any] | None = None
    ) -> None:
        """Saves as `save` does, in a format of several files. `write` may be collective (torch.distributed.checkpoint)."""
        self.settle()  # this save replaces one that failed, and reports its own error
        job = self._attempt(write, self._plan(step, metric, extra))
        self._agree(_error_of(job), step)

    def save_async(
        self, state: Any, step: int, *, metric: object = None, extra: Mapping[str, Any] | None = None
    ) -> bool:
        """Copies the state to the host, then saves it in the background. False if skipped because a save is running.

        Raises SaveFailed, on all ranks, if the previous save failed, or Refused. Call `flush` before leaving.
        """
        if self.ranks.any(self._background.busy):
            return False
        self.flush()
        copies: list[Any] = []

        def copy() -> None:
            self._check(state)
            copies.append(host_copy(state) if self._writes else None)

        self._agree(_error_of(copy), step)
        self._background.start(self._attempt(self._writer(copies[0]), self._plan(step, metric, extra)))
        return True

    def flush(self) -> None:
        """Waits until no save is running. Raises SaveFailed, on all ranks, if that save failed."""
        self._background.wait()
        error = self._background.take_error()
        if self.ranks.any(error is not None):
            raise SaveFailed(f"background save failed: {error or 'on another rank'}") from error

    def settle(self, within: float | None = None) -> None:
        """Waits at most `within` seconds for a background save. Not collective. Raises nothing: logs a failed save.

        For a rank that leaves without another save, since a running save ends with the process.
        """
        self._background.wait(within)
        if (error := self._background.take_error()) is not None:
            _log.warning("background save failed: %s", error)

    def saved(self) -> list[Manifest]:
        """Returns the checkpoints with an intact manifest, oldest first. Their files are checked only when loaded.

        Raises OSError.
        """
        manifests = []
        for folder in publishing.folders(self.folder).values():
            with suppress(Broken):
                manifests.append(publishing.read(folder))
        return manifests

    def load_latest(self, *, reshard: Reshard | None = None, read: Read | None = None) -> Loaded | None:
        """Loads the newest complete checkpoint, the same on all ranks; None if none was ever saved.

        `reshard` distributes the states of all old ranks to this one, if their number changed. `read` is for
        `save_files`. Raises NothingLoadable, Undecodable, WorldChanged, on all ranks.
        """
        order = [path for _, path in sorted(publishing.folders(self.folder).items(), reverse=True)]
        return self._loader(reshard, read).first_whole(order)

    def load_best(self, *, reshard: Reshard | None = None, read: Read | None = None) -> Loaded | None:
        """Loads the best complete checkpoint by its metric; None if none has a metric.

        Raises as `load_latest` does.
        """
        folders, saved, order = publishing.folders(self.folder), self.saved(), []
        while self._keep[1] is not None and (winner := retention.best(saved, self._keep[1])) is not None:
            saved.remove(winner)
            order.append(folders[winner.sequence])
        return self._loader(reshard, read).first_whole(order)

    @property
    def _writes(self) -> bool:
        return self._sharded or self.ranks.first

    def _check(self, state: Any) -> None:
        """Checks the state in the foreground, before anything is written.

        The first save then already fails for a state that a restart could not load.
        """
        if self._writes and self._dump is formats.dump:
            plain.check(state)

    def _loader(self, reshard: Reshard | None, read: Read | None) -> Loader:
        self.settle()
        chosen = read or partial(read_shards, load=self._load, ranks=self.ranks, sharded=self._sharded, reshard=reshard)
        return Loader(self.folder, self.ranks, chosen) if read else Loader(self.folder, self.ranks, chosen, shard_names)

    def _plan(self, step: int, metric: object, extra: Mapping[str, Any] | None) -> Plan:
        return Plan(
            step=step,
            world=self.ranks.size if self._sharded else 1,
            metric=manifest.number_or_none(metric),
            extra=extra or {},
            patience=self._patience,
        )

    def _writer(self, state: Any) -> Write:
        def write(folder: Path) -> Sequence[Path]:
            path = folder / shard_name(self.ranks.rank)
            with path.open("xb") as file:
                self._dump(state, file)
            return [path]

        return write

    def _attempt(self, write: Write, plan: Plan) -> Callable[[], None]:
        """Creates the staging folder, the same for all ranks.

        The returned job does the rest, without collectives.
        """
        token, error = 0, None
        if self.ranks.first:
            token = secrets.randbits(62) or 1
            error = _error_of(lambda: self._claim(token))
        token = self.ranks.broadcast(0 if error else token)
        folder = staging.folder_of(self.folder, token)

        def job() -> None:
            if error is not None or not token:
                raise error or SaveFailed("rank 0 could not begin; see its own message")
            began = time.monotonic()
            if self._writes:
                self._write(folder, write, plan)
            self.seconds = time.monotonic() - began

        return job

    def _claim(self, token: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        staging.sweep(self.folder)  # first, because remains of a killed process may have filled the disk
        staging.claim(staging.folder_of(self.folder, token))

    def _write(self, folder: Path, write: Write, plan: Plan) -> None:
        try:
            publishing.write_shard(folder, self.ranks.rank, write)
            if not self.ranks.first:
                return
            made = publishing.publish(self.folder, folder, plan)
        except BaseException:
            staging.discard(folder)
            raise
        # The checkpoint is complete: if the following fails, only older ones are kept longer.
        with suppress(OSError, Broken):
            try:
                publishing.mark_latest(self.folder, made)
            except OSError:  # a full disk has space after older ones are removed
                self._prune()
                publishing.mark_latest(self.folder, made)
            self._prune()

    def _prune(self) -> None:
        folders = publishing.folders(self.folder)
        for checkpoint in retention.superfluous(self.saved(), *self._keep):
            retention.prune(folders[checkpoint.sequence])

    def _agree(self, error: Exception | None, step: int) -> None:
        if self.ranks.any(error is not None):
            if isinstance(error, CheckpointError):
                raise error
            reason = f"{type(error).__name__}: {error}" if error else "it failed on another rank"
            kind = Refused if isinstance(error, NotPlain) else SaveFailed
            raise kind(f"step {step} was not saved in {self.folder}: {reason}") from error


def _error_of(job: Callable[[], object]) -> Exception | None:
    try:
        job()
    except Exception as error:  # noqa: BLE001 - shared with all ranks before it is raised
        return error
    return None


class Background:
    """Runs one save at a time in the background. Its exception is kept until `take_error`."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, job: Callable[[], object]) -> None:
        """Starts `job`, which raises only Exceptions. Call it only while no job runs and no error is pending."""

        def run() -> None:
            try:
                job()
            except Exception as error:  # noqa: BLE001 - kept for `take_error`
                self._error = error

        # A daemon thread: a save to hung storage must not keep the process from exiting.
        self._thread = threading.Thread(target=run, name="gpuwarden-save", daemon=True)
        self._thread.start()

    def wait(self, within: float | None = None) -> None:
        if self._thread is not None:
            self._thread.join(within)

    def take_error(self) -> Exception | None:
        error, self._error = self._error, None
        return error
