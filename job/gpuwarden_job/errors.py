"""What can go wrong with a checkpoint.

CheckpointError        the root: nothing else leaves the store, whatever the disk does
  SaveFailed           this save did not happen; what was saved before is untouched. Training may go on.
    Refused            nor will any later one: the job gives what a restart could not load. Its code has to change.
  NothingLoadable      there are checkpoints, and none is whole or rank 0 does not see them. To begin again would throw work away: a person decides.
  Undecodable          a checkpoint is whole, and the code that reads it cannot, or not without trust: older ones would fail alike
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
