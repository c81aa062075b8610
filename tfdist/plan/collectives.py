"""How much longer than their bytes need the operations of an engine keep the link busy."""

from __future__ import annotations

# By strategy and operation: between two ranks, and between more. From docs/exchange_algorithms.md
# (`make benchmark-collectives`; with reducers `make benchmark-reduction-servers`, where buckets
# have 4 MiB).
_FACTORS = {
    ("horovod", "sum of a part"): (1.0, 1.4),
    ("multi_worker", "sum by reducers"): (1.2, 1.2),
}


def factor(strategy: str, operation: str, ranks: int, hosts: int) -> float:
    """How many times the seconds that its bytes need an operation takes.

    Args:
        strategy: the name of a backend.
        operation: "gather", "sum of a part" (a reduce-scatter), "sum by reducers" or "sum".
        ranks: the number of ranks that exchange.
        hosts: on how many hosts they are; within one host the link hardly counts.

    Example:

    >>> from tfdist.plan.collectives import factor
    >>> factor("horovod", "sum of a part", 3, 3) > 1.3, factor("horovod", "gather", 3, 3)
    (True, 1.0)
    """
    two, more = _FACTORS.get((strategy, operation), (1.0, 1.0))
    if hosts == 1:
        return 1.0
    return two if ranks == 2 else more
