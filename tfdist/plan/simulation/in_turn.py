"""Asynchronous training where updates wait: gradients are used in the order in which they began.

`Bounded(n, "wait")` lets n + 1 gradients be under way. Whenever one begins, all n + 1 are. The
bound leaves them the next n + 1 updates, so what begins later is used after all of them. The first
n + 1 begin together, and are used in the order in which they come.

So no gradient needs a question, whatever n is. `events.py`, which asks, finds the same.
"""

from __future__ import annotations

import array
import collections

import numpy as np

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
    finished, idle = [0] * workers, collections.deque(range(bound + 1, workers))
    # When gradients come, and whose they are, in the order in which they are used.
    first = sorted((seconds[0, worker], worker) for worker in range(bound + 1))
    coming: collections.deque[tuple[float, int]] = collections.deque(first)
    used, clock = array.array("d"), 0.0
    while True:
        end, worker = coming.popleft()
        if end > clock:  # else it has waited, or the chief has been busy until later
            clock = end
        clock += update
        used.append(clock)
        finished[worker] += 1
        if finished[worker] == steps:
            break
        idle.append(worker)
        following = idle.popleft()
        coming.append((clock + seconds[finished[following], following], following))
    return Run(np.array(used), np.minimum(np.arange(len(used)), bound))


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
