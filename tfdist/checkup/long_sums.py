"""Whether long all-reduces take what their links explain; needs no TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tfdist.checkup.report import Sum

# An all-reduce takes what a ring on the slowest link does, and up to twice as long where ranks
# share cores (docs/check_a_cluster.md, docs/exchange_algorithms.md). Short ones wait for cores.
_FACTOR = 3.0
_LONG = 10_000_000  # bytes


def slow_sum(sums: Sequence[Sum]) -> Iterator[str]:
    """The largest all-reduce, if it is long and takes longer than its links explain.

    Args:
        sums: by size, ascending.
    """
    if not sums or sums[-1].bytes < _LONG:
        return
    longer = sums[-1].seconds / sums[-1].ring_seconds
    if longer > _FACTOR:
        yield (
            f"An all-reduce of {sums[-1].bytes / 1e6:,.0f} MB takes {longer:.1f}x as long as a "
            f"ring on the slowest link ({1e3 * sums[-1].seconds:,.0f} ms instead of "
            f"{1e3 * sums[-1].ring_seconds:,.0f} ms): all links are in use at the same time there. "
            "See whether the hosts share a switch or an uplink that carries less than all of their "
            "links, and what else runs there"
        )
