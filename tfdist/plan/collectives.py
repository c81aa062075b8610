"""How much longer than their bytes need the operations of an engine keep the link busy."""

from __future__ import annotations

# By strategy and operation: between two hosts, and between more. From docs/exchange_algorithms.md
# (`make benchmark-collectives`). Gloo, which Horovod uses between CPUs, asks a peer for its data
# after it has begun to send to that peer: so of two ranks that gather one sends after the other.
_FACTORS = {
    ("horovod", "gather"): (1.86, 1.0),
    ("horovod", "sum of a part"): (1.0, 1.4),
}


def factor(strategy: str, operation: str, hosts: int) -> float:
    """How many times the seconds that its bytes need an operation takes.

    Args:
        strategy: the name of a backend.
        operation: "gather", "sum of a part" (a reduce-scatter) or "sum".
        hosts: the number of hosts, or of ranks that are on as many hosts.

    Example:

    >>> from tfdist.plan.collectives import factor
    >>> factor("horovod", "gather", 2) > 1.5, factor("multi_worker", "gather", 2)
    (True, 1.0)
    """
    two, more = _FACTORS.get((strategy, operation), (1.0, 1.0))
    return two if hosts == 2 else more
