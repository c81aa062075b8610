"""How many bytes a replica sends, by the number of replicas."""

from __future__ import annotations

from typing import Literal


def sent_bytes(nbytes: int, aggregation: Literal["sum", "gather"], replicas: int) -> float:
    """The bytes that a replica sends in one ring exchange of payloads of `nbytes`.

    Sums travel as partial sums: 2 (N − 1)/N times a payload (Patarasu and Yuan, "Bandwidth Optimal
    All-reduce Algorithms for Clusters of Workstations", 2009, section 4). Gathered payloads travel
    whole, to each of the N − 1 other replicas.

    Args:
        nbytes: the payload of one replica.
        aggregation: the compressor's `aggregation`.
        replicas: N, the number of replicas.

    Example:

    >>> from tfdist.compression.traffic import sent_bytes
    >>> [sent_bytes(1000, kind, 4) for kind in ("sum", "gather")]
    [1500.0, 3000.0]
    """
    if aggregation == "sum":
        return 2 * (replicas - 1) / replicas * nbytes
    return float((replicas - 1) * nbytes)


def gather_pays_until(ratio: float) -> int:
    """The largest number of replicas at which gathering is less traffic than uncompressed sums.

    Args:
        ratio: the bytes of a payload divided by the uncompressed bytes.

    Example:

    >>> from tfdist.compression.traffic import gather_pays_until
    >>> gather_pays_until(1 / 32)
    63
    """
    return max(1, int(-(-2 // ratio)) - 1) if ratio > 0 else 2**31
