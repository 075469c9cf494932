"""The library for training jobs: save in time, resume from a complete checkpoint, reschedule. No dependencies."""

from gpuwarden_job.cadence import Cadence
from gpuwarden_job.elastic import share
from gpuwarden_job.errors import CheckpointError, NothingLoadable, Refused, SaveFailed, Undecodable, WorldChanged
from gpuwarden_job.formats import load_trusted
from gpuwarden_job.guard import CheckpointGuard, Interruption
from gpuwarden_job.loading import Loaded
from gpuwarden_job.ranks import Ranks
from gpuwarden_job.requeue import REQUEUE, leave, park, requeue_code
from gpuwarden_job.reschedule import reschedulable, transient
from gpuwarden_job.state import StateMismatch, capture, host_copy, restore
from gpuwarden_job.store import CheckpointStore
from gpuwarden_job.torch_shards import ShardedModel, sharded_reader, sharded_writer
from gpuwarden_job.watch import PeerWatch

__all__ = [
    "REQUEUE",
    "Cadence",
    "CheckpointError",
    "CheckpointGuard",
    "CheckpointStore",
    "Interruption",
    "Loaded",
    "NothingLoadable",
    "PeerWatch",
    "Ranks",
    "Refused",
    "SaveFailed",
    "ShardedModel",
    "StateMismatch",
    "Undecodable",
    "WorldChanged",
    "capture",
    "host_copy",
    "leave",
    "load_trusted",
    "park",
    "requeue_code",
    "reschedulable",
    "restore",
    "sharded_reader",
    "sharded_writer",
    "share",
    "transient",
]
