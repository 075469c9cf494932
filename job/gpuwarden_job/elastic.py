"""Continues a training with another number of ranks. The global batch stays the same, and so does the learning rate.

The position in the data counts over all ranks, so that no sample is repeated or skipped after the world changed.
"""

from __future__ import annotations


def share(begin: int, count: int, rank: int, size: int) -> range:
    """Returns this rank's share of the samples begin … begin + count - 1; the ranks' shares cover each sample once.

    Shares differ by at most one sample. Raises ValueError if a rank would get none, as that would hang the others.
    """
    if count < size:
        raise ValueError(f"a batch of {count} cannot be shared by {size} ranks: raise the batch or start fewer")
    quotient, rest = divmod(count, size)
    first = begin + rank * quotient + min(rank, rest)
    return range(first, first + quotient + (rank < rest))
