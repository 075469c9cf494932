"""The errors of checkpoints.

CheckpointError        the base class: the store raises no other error, even for errors of the disk
  SaveFailed           this save failed; earlier checkpoints are untouched, and training may continue
    Refused            every save will fail: a restart could not load this state. The job's code has to change.
  NothingLoadable      checkpoints exist, but none is complete, or rank 0 does not see them. A person decides: starting
                       over would discard work.
  Undecodable          a checkpoint is complete, but cannot be decoded (without trust); older ones would fail, too
  WorldChanged         saved in shards by another number of ranks, and no `reshard` was given
"""

from __future__ import annotations


class CheckpointError(Exception):
    pass


class SaveFailed(CheckpointError):  # noqa: N818 - the name of the outcome
    pass


class Refused(SaveFailed):
    pass


class NothingLoadable(CheckpointError):  # noqa: N818
    pass


class Undecodable(CheckpointError):  # noqa: N818
    pass


class WorldChanged(CheckpointError):  # noqa: N818
    pass
