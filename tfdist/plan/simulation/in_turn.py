"""Asynchronous training where updates wait: gradients are used in the order in which they began.

`Bounded(n, "wait")` lets n + 1 gradients be under way. Whenever some begin, all n + 1 are. The
bound leaves them the next n + 1 updates, so what begins later is used after all of them. Those that
begin together have read the same weights, and are used in the order in which they come.

So no gradient needs a question, whatever n is. `events.py`, which asks, finds the same.
"""

from __future__ import annotations

import array
import collections

import numpy as np
import numpy.typing as npt

from tfdist.plan.simulation.compute_times import Times
from tfdist.plan.simulation.runs import Policy, Run


def in_turn(times: Times, bound: int, update: float = 0.0) -> Run:
    """Workers that wait as with `Bounded(bound, "wait")`, until the first one has no more steps.

    Args:
        times: seconds of the steps of each worker, of shape `[steps, workers]`.
        bound: on the staleness, from 0 to the number of workers - 1.
        update: seconds of the chief for each gradient. It uses one after the other.
    """
    # Faster than the array itself for single elements.
    seconds = np.ascontiguousarray(times, np.float64).data
    steps, workers = times.shape
    finished, idle = [0] * workers, collections.deque(range(workers))
    # When each gradient comes, and whose it is, in the order in which they are used.
    coming: collections.deque[tuple[float, int]] = collections.deque()
    used, together = array.array("d"), array.array("q", [bound + 1])
    clock, is_over = 0.0, False
    while not is_over:
        begun = [idle.popleft() for _ in range(together[-1])]
        coming.extend(sorted([(clock + seconds[finished[one], one], one) for one in begun]))
        # With the first one those are used that have come before it, and waited for it alone.
        first, count = coming[0], 0
        clock = max(clock, first[0])  # the chief may have been busy until later
        while coming and coming[0] <= first:
            worker = coming.popleft()[1]
            clock += update
            used.append(clock)
            finished[worker] += 1
            is_over |= finished[worker] == steps
            idle.append(worker)
            count += 1
        together.append(count)
    return Run(np.array(used), _staleness(np.array(together, np.int64), len(used)))


def _staleness(together: npt.NDArray[np.int64], used: int) -> npt.NDArray[np.int64]:
    """The staleness of each gradient that was used.

    Args:
        together: how many began at a time: at the start, and after that as many as were used.
        used: the number of gradients that were used.
    """
    versions = np.concatenate([[0], np.cumsum(together[1:])])
    return np.arange(used) - np.repeat(versions, together)[:used]


def bound_that_waits(policy: Policy, workers: int, steps: int) -> int | None:
    """The n of a policy that does what `Bounded(n, "wait")` does; None for other policies.

    What a policy allows, it must allow with less under way, too, and with what is less stale.

    Args:
        policy: of an asynchronous chief.
        workers: the number of workers; None if there are not more than n, as they need not wait.
        steps: the number of steps of each.
    """
    if policy.may_start(0, workers):
        return None
    bound = next(n for n in range(workers + 1) if not policy.may_start(0, n)) - 1
    holds_back = policy.may_update([bound] * bound) and not policy.may_update([bound + 1])
    is_known = bound >= 0 and policy.may_start(steps, bound) and holds_back
    return bound if is_known and policy.accepts(bound) else None
