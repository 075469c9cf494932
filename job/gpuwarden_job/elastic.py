"""The same training with another number of ranks: the batch of all ranks together stays, so that the learning rate does.

Position in the data is counted over all ranks, so that no sample is seen twice or never after the world changed.
"""

from __future__ import annotations


def share(begin: int, count: int, rank: int, size: int) -> range:
    """Returns which of the samples begin … begin + count - 1 this rank takes; all ranks together take each once.

    Shares differ by at most one sample. Raises ValueError if some rank would get none: an empty step hangs the others.
    """
    if count < size:
        raise ValueError(f"a batch of {count} cannot be shared by {size} ranks: raise the batch or start fewer")
    quotient, rest = divmod(count, size)
    first = begin + rank * quotient + min(rank, rest)
    return range(first, first + quotient + (rank < rest))
